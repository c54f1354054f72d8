"""Exactly once into PostgreSQL: what the handler does there and the offsets in one transaction."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import psycopg

from tallygate.consumer.dedup import Dedup
from tallygate.consumer.delivery import Handler, UnknownOutcomeError, deliver, ends
from tallygate.core.offsets import TopicPartition
from tallygate.core.record import Output, Record
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.kafka.producer import producer_properties
from tallygate.postgres.connect import connect, open_watchful
from tallygate.postgres.sessions import insist
from tallygate.postgres.tables import upgrade

_AWAY = ("08", "25006", "40", "53", "57P", "58")
"""What SQLSTATEs begin with that no record is to blame for."""


class ExactlyOncePostgres:
    """Rows and offsets in one transaction. An offset moves only by compare-and-set from where this
    consumer knows it to be, so a second consumer of the same partition, however it came to be, is
    noticed in the transaction that would have overlapped."""

    properties: Mapping[str, Any] = {}
    moved_by = "stop the group and set next_offset of its row in tallygate.consumer_offsets"
    keeps_work = True

    def __init__(
        self,
        connection: Connection,
        handler: Handler,
        dsn: str,
        group: str,
        dedup: Dedup | None,
    ) -> None:
        self._dsn, self._handler, self._group, self._dedup = dsn, handler, group, dedup
        self._producer = clients.producer(connection, **producer_properties(any_size=True))
        self._next: dict[TopicPartition, int] = {}
        self.duplicates = 0
        self._database: psycopg.Connection | None = connect(dsn, autocommit=True)
        insist(dsn, upgrade, doing="to the tables of consumers")

    def apply(self, records: Sequence[Record]) -> tuple[int, Exception | None]:
        at = -1
        duplicates = 0
        if any(r.offset < self._next.get((r.topic, r.partition), 0) for r in records):
            raise UnknownOutcomeError("some of these records are in the store already")
        try:
            with self._transaction() as database:
                fresh = [True] * len(records)
                if self._dedup is not None:
                    fresh = self._dedup.fresh(records, self._group, database)
                for at, record in enumerate(records):
                    if fresh[at]:
                        self._handler(record, database)
                    else:
                        duplicates += 1
                at = len(records)
                self._move(database, ends(records))
        except UnknownOutcomeError:
            raise
        except Exception as error:
            if isinstance(error, psycopg.IntegrityError | psycopg.DataError) and at == len(records):
                return self._one_by_one(records, error)
            if self._is_down(error) or at == len(records):
                raise UnknownOutcomeError(str(error)) from error
            if at < 0:  # the dedup could not find an id, or keep one: find out whose
                without = self._first_without_id(records)
                if without is None:
                    return self._one_by_one(records, error)
                at = without
            if at > 0:
                done, earlier = self.apply(records[:at])
                if earlier is not None:
                    return done, earlier
            return at, error
        self.duplicates += duplicates
        self._next.update(ends(records))
        return len(records), None

    def divert(self, record: Record, instead: Output) -> None:
        """The dead letter is acknowledged before the offset moves. A crash in between writes it
        twice; it carries its record's coordinates, by which a replay knows it."""
        deliver(self._producer, instead, record)
        with self._transaction() as database:
            self._move(database, ends([record]))
        self._next.update(ends([record]))

    def positions(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        with self._transaction() as database:
            rows = database.execute(
                "SELECT topic, partition, next_offset FROM tallygate.consumer_offsets "
                "WHERE group_name = %s",
                (self._group,),
            ).fetchall()
        wanted = set(partitions)
        found = {(topic, number): at for topic, number, at in rows if (topic, number) in wanted}
        self._next.update(found)
        return found

    def begin(self, partition: TopicPartition, offset: int) -> int:
        """Give a partition its first row, unless another consumer was faster; then its row
        counts."""
        with self._transaction() as database:
            database.execute(
                "INSERT INTO tallygate.consumer_offsets (group_name, topic, partition, next_offset)"
                " VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING",
                (self._group, *partition, offset),
            )
        return self.positions([partition])[partition]

    def close(self) -> None:
        if self._database is not None:
            self._database.close()

    @contextlib.contextmanager
    def _transaction(self) -> Any:
        try:
            if self._database is None or self._database.closed:
                self._database = open_watchful(self._dsn, autocommit=True, timeout=5)
        except psycopg.OperationalError as error:
            raise UnknownOutcomeError(str(error).strip()) from error
        try:
            with self._database.transaction():
                yield self._database
        except psycopg.Error as error:
            if self._is_down(error):
                raise UnknownOutcomeError(str(error).strip()) from error
            raise

    def _is_down(self, error: Exception) -> bool:
        """Whether the database is the reason and not the record: it is away, full, or a standby
        that only reads, or it chose us to break a deadlock."""
        if isinstance(error, psycopg.Error) and (error.sqlstate or "").startswith(_AWAY):
            return True
        broken = self._database is None or self._database.closed or self._database.broken
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and bool(broken)

    def _move(self, database: psycopg.Connection, positions: Mapping[TopicPartition, int]) -> None:
        """Compare and set, in one order for everybody, so that two cannot wait for each other."""
        for partition in sorted(positions):
            moved = database.execute(
                "UPDATE tallygate.consumer_offsets SET next_offset = %s, updated_at = now() "
                "WHERE group_name = %s AND topic = %s AND partition = %s AND next_offset = %s",
                (positions[partition], self._group, *partition, self._next.get(partition, -1)),
            )
            if moved.rowcount != 1:
                raise UnknownOutcomeError(
                    f"{partition[0]}/{partition[1]} was moved by another consumer"
                )

    def _one_by_one(
        self, records: Sequence[Record], error: Exception
    ) -> tuple[int, Exception | None]:
        """A constraint that is checked at commit does not say whose row breaks it, and neither does
        the insert of all ids say which one cannot be kept: find out."""
        if len(records) == 1:
            return 0, error
        for index, record in enumerate(records):
            _, problem = self.apply([record])
            if problem is not None:
                return index, problem
        return len(records), None

    def _first_without_id(self, records: Sequence[Record]) -> int | None:
        assert self._dedup is not None
        for index, record in enumerate(records):
            try:
                self._dedup.id(record)
            except Exception:
                return index
        return None
