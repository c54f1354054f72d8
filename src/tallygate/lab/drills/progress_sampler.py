"""How far everything is, looked at again and again while a drill is played."""

import contextlib
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Protocol

import psycopg
from confluent_kafka import KafkaException, TopicPartition

from tallygate.errors import TallygateError
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.lab.drills.outcome import ProgressSample
from tallygate.lab.drills.workload import Workload
from tallygate.postgres.connect import connect
from tallygate.quoting import double_quoted

EVERY = 0.25
AWAY = (TallygateError, psycopg.Error, KafkaException)


class Positions(Protocol):
    def read(self) -> dict[int, int]:
        """For each partition of the topic, up to where it is done. The topics of drills begin at
        offset 0, so this is also how many records are done."""

    def close(self) -> None: ...


class LedgerPositions:
    """Of a pipeline whose ledger is in PostgreSQL."""

    def __init__(self, dsn: str, pipeline: str) -> None:
        self._dsn, self._query = dsn, _POSITIONS
        self._values: tuple[str, ...] = (pipeline,)
        self._connection: psycopg.Connection | None = None

    def read(self) -> dict[int, int]:
        try:
            if self._connection is None or self._connection.closed:
                self._connection = connect(self._dsn, timeout=2, autocommit=True)
            rows = self._connection.execute(self._query.encode(), self._values).fetchall()
        except psycopg.Error:
            self.close()
            raise
        return {int(partition): int(offset) for partition, offset in rows}

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


_POSITIONS = "SELECT partition, next_offset FROM tallygate.positions WHERE pipeline = %s"


class RowCount(LedgerPositions):
    """Of consumers, which keep no ledger that is ours: the rows of their table."""

    def __init__(self, dsn: str, table: str) -> None:
        super().__init__(dsn, table)
        self._query = f"SELECT 0, count(*) FROM public.{double_quoted(table)}"
        self._values = ()


class GroupPositions:
    """Of a pipeline whose ledger is in a consumer group."""

    def __init__(self, connection: Connection, group: str, topic: str, partitions: int) -> None:
        self._consumer = clients.consumer(connection, group_id=group)
        self._partitions = [TopicPartition(topic, number) for number in range(partitions)]

    def read(self) -> dict[int, int]:
        found = self._consumer.committed(self._partitions, timeout=5)
        return {each.partition: max(0, each.offset) for each in found}

    def close(self) -> None:
        self._consumer.close()


class Gauge:
    def __init__(self, positions: Positions, workload: Callable[[], Workload]) -> None:
        self.began = time.monotonic()
        self.samples: list[ProgressSample] = []
        self.positions, self._workload = positions, workload
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()
        self.positions.close()

    @property
    def committed(self) -> int:
        return self.samples[-1].committed if self.samples else 0

    def longest_pause(self, fault: float) -> float | None:
        """The longest time without a commit, from the fault on, while there was something to
        commit."""
        longest, since = 0.0, None
        for before, after in pairwise(self._from(fault)):
            idle = after.committed == before.committed and before.acknowledged > before.committed
            if not idle:
                since = None
                continue
            since = before.at if since is None else since
            longest = max(longest, after.at - since)
        return round(longest, 2)

    def longest_wait(self, fault: float) -> float | None:
        """The longest that an acknowledged record waited for its commit, from the fault on."""
        later = iter(samples := self._from(fault))
        longest, commit = 0.0, next(later, None)
        for sample in samples:
            while commit is not None and commit.committed < sample.acknowledged:
                commit = next(later, None)
            if commit is not None:
                longest = max(longest, commit.at - sample.at)
        return round(longest, 2)

    def _from(self, fault: float) -> list[ProgressSample]:
        return [sample for sample in self.samples if sample.at >= fault - self.began]

    def _run(self) -> None:
        """While the store is away, what is known stays."""
        committed = 0
        while not self._ending.wait(EVERY):
            with contextlib.suppress(*AWAY):
                committed = sum(self.positions.read().values())
            workload = self._workload()
            at = round(time.monotonic() - self.began, 2)
            acknowledged = len(workload.acknowledged)
            self.samples.append(ProgressSample(at, workload.produced, acknowledged, committed))
