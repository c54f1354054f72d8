"""The deliveries: each is an order of two acts, saving the offsets and doing the work.

  at-most-once     save, then work: what a crash interrupts is lost
  at-least-once    work, then save: what a crash interrupts is done again
  auto-commit      saved every few seconds by the client, whatever the work: a crash loses or
                   repeats, by chance
  exactly-once     saved and worked in one transaction of one store: PostgreSQL or Kafka

A delivery is given records that follow each other in each partition, and says how many of them,
from the front, are done *and* saved, and what stopped it. It never guesses: when the store does
not answer, the outcome is unknown, and `positions` asks the store before anything is done again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as Offset

from tallygate.core.offsets import TopicPartition
from tallygate.core.record import Output, Record
from tallygate.errors import DeliveryError
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.kafka.producer import ANSWER_TIMEOUT, producer_properties

Handler = Callable[..., Any]


class UnknownOutcomeError(Exception):
    """The store did not answer, or another consumer moved the position: ask the store."""


class Delivery(Protocol):
    properties: Mapping[str, Any]
    """What the consumer needs to be set to."""
    moved_by: str
    """How the offsets are moved by hand, for who has to."""
    keeps_work: bool
    """Whether the work is kept where the position is. Then a position that went back says that the
    work since is undone; otherwise it says nothing of the work, which was done."""

    def apply(self, records: Sequence[Record]) -> tuple[int, Exception | None]:
        """Handle the records; return how many are done and saved, and the handler's failure."""

    def divert(self, record: Record, instead: Output) -> None:
        """Save a record as done by writing another in its stead."""

    def positions(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The next offset of each partition that has one, by the store's word."""

    def begin(self, partition: TopicPartition, offset: int) -> int:
        """Save that a partition is read from this offset on, unless one is saved already, and
        return the one that counts. Otherwise "latest" would move on with every restart."""

    def close(self) -> None: ...


def ends(records: Iterable[Record]) -> dict[TopicPartition, int]:
    """For each partition the offset after the last of its records."""
    return {(record.topic, record.partition): record.offset + 1 for record in records}


def offsets(positions: Mapping[TopicPartition, int]) -> list[Offset]:
    return [Offset(topic, number, at) for (topic, number), at in positions.items()]


class GroupOffsets:
    """What the deliveries share whose offsets are the consumer group's."""

    properties: Mapping[str, Any] = {}
    moved_by = "stop the group and reset its offsets with any Kafka tool"
    keeps_work = False

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def positions(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The group's offsets. Kafka answers once no transaction that holds one of them is open."""
        asked = [Offset(topic, number) for topic, number in partitions]
        if not asked:
            return {}
        try:
            found = self._consumer.committed(asked, timeout=ANSWER_TIMEOUT)
        except KafkaException as error:
            raise UnknownOutcomeError(error.args[0].str()) from error
        return {(tp.topic, tp.partition): tp.offset for tp in found if tp.offset >= 0}

    def begin(self, partition: TopicPartition, offset: int) -> int:
        self._commit({partition: offset})
        return offset

    def close(self) -> None:
        pass

    def _commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """Commit, or leave it to the group's offsets to tell whether that was done."""
        try:
            self._consumer.commit(offsets=offsets(positions), asynchronous=False)
        except KafkaException as error:
            raise UnknownOutcomeError(error.args[0].str()) from error


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


def deliver(producer: Any, output: Output, record: Record) -> None:
    """Write a record and wait until it is acknowledged, or say that it was not."""
    failures: list[str] = []

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            failures.append(error.str())

    try:
        send(producer, output, on_delivery=delivered)
        left = producer.flush(ANSWER_TIMEOUT)
    except KafkaException as error:
        failures.append(error.args[0].str())
    if failures or left:
        reason = failures[0] if failures else "it was not acknowledged in time"
        raise DeliveryError(f"{record.where} could not be written to {output.topic!r}: {reason}.")


def send(producer: Any, output: Output, **options: Any) -> None:
    if output.partition is not None:
        options["partition"] = output.partition
    if output.timestamp is not None:
        options["timestamp"] = output.timestamp
    while True:
        try:
            producer.produce(
                output.topic, output.value, output.key, headers=list(output.headers), **options
            )
            return
        except BufferError:
            producer.poll(0.05)
