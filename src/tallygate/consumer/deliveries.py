"""The deliveries whose offsets are the consumer group's: saved before the work, after it, or by the
client whenever it likes. See `consumer.delivery`."""

from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer

from tallygate.consumer.delivery import GroupOffsets, Handler, deliver, ends
from tallygate.core.record import Output, Record
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.kafka.producer import producer_properties

__all__ = ["AtLeastOnce", "AtMostOnce", "AutoCommit"]


class _GroupDelivery(GroupOffsets):
    """Work and offsets are saved apart, in one order or the other."""

    def __init__(self, consumer: Consumer, connection: Connection, handler: Handler) -> None:
        super().__init__(consumer)
        self._handler = handler
        self._producer = clients.producer(connection, **producer_properties(any_size=True))

    def divert(self, record: Record, instead: Output) -> None:
        """The other record is acknowledged before this one is saved as done."""
        deliver(self._producer, instead, record)
        self._save([record])

    def _save(self, records: Sequence[Record]) -> None:
        self._commit(ends(records))

    def _work(self, records: Sequence[Record]) -> tuple[int, Exception | None]:
        for index, record in enumerate(records):
            try:
                self._handler(record)
            except Exception as error:
                return index, error
        return len(records), None


class AtMostOnce(_GroupDelivery):
    def apply(self, records: Sequence[Record]) -> tuple[int, Exception | None]:
        self._save(records)
        return self._work(records)


class AtLeastOnce(_GroupDelivery):
    def apply(self, records: Sequence[Record]) -> tuple[int, Exception | None]:
        done, error = self._work(records)
        if done:
            self._save(records[:done])
        return done, error


class AutoCommit(_GroupDelivery):
    properties: Mapping[str, Any] = {"enable_auto_commit": True, "auto_commit_interval_ms": 1000}

    def apply(self, records: Sequence[Record]) -> tuple[int, Exception | None]:
        return self._work(records)

    def _save(self, records: Sequence[Record]) -> None:
        """The client does, in its own time."""
