"""The load of a drill: numbered records at a steady rate, and a book of what became of each.

What was **acknowledged** is a promise of the brokers, and the drill holds them to it. What was
produced but never acknowledged may be there or not: neither is a fault.
"""

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message

from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.kafka.producer import Acks, producer_properties
from tallygate.kafka.read import records_in
from tallygate.lab.drills.subject import payment
from tallygate.waiting import wait_until

KEYS = 50
RECORD_LIFE = 120.0


class Workload:
    """A producer in a thread of its own."""

    def __init__(
        self,
        connection: Connection,
        topic: str,
        *,
        rate: int = 400,
        acks: Acks = "all",
        value: Callable[[int], str] = payment,
        by_place: bool = False,
    ) -> None:
        """With `by_place` a record's id is where it lies, for records that have none of their
        own."""
        self.topic, self.acks, self._rate = topic, acks, rate
        self._value, self._by_place = value, by_place
        self.produced = 0
        self.acknowledged: set[int] = set()
        self.failed: set[int] = set()
        self.partitions: set[int] = set()
        self.moments: list[tuple[float, float]] = []
        """When a record was produced, and when it was acknowledged."""
        chosen = producer_properties(
            acks=acks, idempotent=acks == "all", timeout_ms=int(RECORD_LIFE * 1000)
        )
        quick = {"linger_ms": 50, "retry_backoff_ms": 50, "reconnect_backoff_max_ms": 500}
        self._producer = clients.producer(connection, **{**chosen, **quick})
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Produce nothing more, and wait until each record is acknowledged or has failed."""
        self._ending.set()
        self._thread.join()
        left = self._producer.flush(RECORD_LIFE + 5)
        if left:
            raise TimeoutError(f"{left} records for {self.topic} are neither delivered nor failed")

    def abandon(self) -> None:
        """Produce nothing more, whatever becomes of the rest."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def send(self, count: int) -> None:
        """Produce so many at once, before the thread is started."""
        wanted = self.produced + count
        while self.produced < wanted:
            self._send()
        self._producer.flush(60)

    def wait_for(self, more: int, timeout: float = 60) -> None:
        """Wait until so many more records are acknowledged."""
        wanted = len(self.acknowledged) + more
        wait_until(
            lambda: len(self.acknowledged) >= wanted,
            timeout,
            f"{more} more records for {self.topic} were not acknowledged in {timeout:.0f} s",
        )

    def longest_wait(self, since: float) -> float | None:
        """The longest that a record produced since then waited to be acknowledged."""
        waits = (acked - sent for sent, acked in self.moments if sent >= since)
        longest = max(waits, default=None)
        return None if longest is None else round(longest, 2)

    def _run(self) -> None:
        """At the rate, whatever became of the records before: a stall is made up for."""
        started, already = time.monotonic(), self.produced
        while not self._ending.is_set():
            due = already + int((time.monotonic() - started) * self._rate)
            while self.produced < due and not self._ending.is_set():
                self._send()
            self._producer.poll(0.01)

    def _send(self) -> None:
        number, sent = self.produced, time.monotonic()

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.failed.add(number)
                return
            partition = message.partition() or 0
            place = place_id(partition, message.offset() or 0)
            self.acknowledged.add(place if self._by_place else number)
            self.partitions.add(partition)
            self.moments.append((sent, time.monotonic()))

        try:
            self._producer.produce(
                self.topic, self._value(number), str(number % KEYS), on_delivery=delivered
            )
            self.produced += 1
        except BufferError:
            self._producer.poll(0.1)
        except KafkaException:  # a topic that is away for a moment
            self._producer.poll(0.1)


def place_id(partition: int, offset: int) -> int:
    """One number for a place in a topic."""
    return (partition << 40) + offset


def ids_in(topic: str, connection: Connection) -> list[int]:
    """The ids in a topic, as often as they are there."""
    return [_id(record.value) for record in records_in(topic, connection)]


def _id(value: Any) -> int:
    return int(json.loads(value)["id"])
