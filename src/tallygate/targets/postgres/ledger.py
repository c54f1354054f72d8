"""The ledger in PostgreSQL: rows of the store that holds the results.

**No gap, no overlap.** A position moves only by compare-and-set, from exactly where the batch says
that it begins, in the transaction of the rows it stands for. If the comparison fails for any
partition, all of the transaction is rolled back.

**One writer.** Each run takes the next epoch of its pipeline. Every commit reads the epoch under a
share lock in that same transaction; a new run takes the row for itself, so it waits for commits
that are under way, and those that come later see its epoch and are fenced. The positions that a new
run reads are therefore final.
"""

import json
import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import psycopg

from tallygate.core.letters import Letter
from tallygate.core.offsets import Known, MovedError, Place, Range
from tallygate.core.runs import Run, fenced
from tallygate.errors import FencedError, LedgerError
from tallygate.postgres.connect import connect
from tallygate.postgres.plain import PlainConnection
from tallygate.postgres.tables import upgrade

__all__ = ["BatchRow", "Claim", "PostgresLedger"]

BATCHES_KEPT = 10_000
TRIM_EVERY = 100
LETTERS_AT_ONCE = 8 << 20
"""Bytes; twice as many in hex. What jsonb holds ends at 256 MiB."""


class Statements(Protocol):
    """What the ledger needs of a connection."""

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]: ...


@dataclass(frozen=True)
class Claim:
    """A run's right to write for its pipeline. It travels to the tasks, and is checked in each
    transaction."""

    pipeline: str
    epoch: int

    def check(self, transaction: Statements) -> None:
        """Keep the epoch from changing until this transaction ends, or find that it has."""
        found = transaction.rows(
            "SELECT epoch FROM tallygate.pipelines WHERE name = $1 FOR SHARE", self.pipeline
        )
        if not found:
            raise LedgerError(
                f"pipeline {self.pipeline!r} is not in the ledger any more; somebody removed it."
            )
        if found[0][0] != self.epoch:
            raise self.fenced(transaction)

    def fenced(self, transaction: Statements) -> FencedError:
        newer = transaction.rows(
            "SELECT epoch, host, pid, started_at::text FROM tallygate.runs "
            "WHERE pipeline = $1 ORDER BY epoch DESC LIMIT 1",
            self.pipeline,
        )
        return fenced(self.pipeline, self.epoch, Run(*newer[0]))

    def move(self, transaction: Statements, ranges: Iterable[Range]) -> None:
        """Compare and set every position, or raise: then nothing may be committed."""
        wanted = sorted(each for each in ranges)
        if not wanted:
            return
        listed = json.dumps(
            [{"t": r.topic, "p": r.partition, "s": r.start, "u": r.until} for r in wanted]
        )
        transaction.rows(
            "INSERT INTO tallygate.positions"
            " (pipeline, topic, partition, first_offset, next_offset)"
            " SELECT $1, t, p, s, s FROM jsonb_to_recordset(($2::text)::jsonb)"
            " AS wanted (t text, p int, s bigint, u bigint) ON CONFLICT DO NOTHING",
            self.pipeline,
            listed,
        )
        moved = transaction.rows(
            "UPDATE tallygate.positions AS held SET next_offset = u, updated_at = now()"
            " FROM jsonb_to_recordset(($2::text)::jsonb)"
            " AS wanted (t text, p int, s bigint, u bigint)"
            " WHERE pipeline = $1 AND topic = t AND partition = p AND next_offset = s"
            " RETURNING topic",
            self.pipeline,
            listed,
        )
        if len(moved) != len(wanted):
            raise MovedError(
                f"the ledger of {self.pipeline!r} is not at the start of "
                f"{', '.join(map(str, wanted))} any more."
            )

    def keep(self, transaction: Statements, letters: Sequence[Letter]) -> None:
        """Keep dead letters. They count once the ledger has moved past them."""
        for some in _bounded(letters):
            transaction.rows(
                "INSERT INTO tallygate.dead_letter_records"
                ' (pipeline, topic, partition, "offset", key, value, record_time, cause)'
                " SELECT $1, t, p, o, decode(k, 'hex'), decode(v, 'hex'),"
                " to_timestamp(ms / 1000.0), c FROM jsonb_to_recordset(($2::text)::jsonb)"
                " AS letter (t text, p int, o bigint, k text, v text, ms bigint, c text)"
                " ON CONFLICT DO NOTHING",
                self.pipeline,
                json.dumps([_fields(each) for each in some]),
            )

    def record(self, transaction: Statements, batch: "BatchRow") -> None:
        """Add a batch to the history, which is kept within a bound."""
        ranges = [[each.topic, each.partition, each.start, each.until] for each in batch.ranges]
        number = transaction.rows(
            "INSERT INTO tallygate.batches (pipeline, epoch, batch_id, way, ranges, rows, seconds)"
            " VALUES ($1, $2, $3, $4, ($5::text)::jsonb, $6, ($7::text)::jsonb) RETURNING number",
            self.pipeline,
            self.epoch,
            batch.batch_id,
            batch.way,
            json.dumps(ranges),
            batch.rows,
            json.dumps(batch.seconds),
        )[0][0]
        if number % TRIM_EVERY == 0:
            transaction.rows(
                "DELETE FROM tallygate.batches WHERE pipeline = $1 AND number <= $2",
                self.pipeline,
                number - BATCHES_KEPT,
            )


@dataclass(frozen=True)
class BatchRow:
    """A batch for the history."""

    batch_id: int
    way: str
    ranges: Sequence[Range]
    rows: int
    seconds: Mapping[str, float]


def _bounded(letters: Sequence[Letter]) -> Iterator[list[Letter]]:
    """The letters by so many that each lot is of a size that jsonb can hold."""
    some: list[Letter] = []
    size = 0
    for each in letters:
        more = len(each.key or b"") + len(each.value or b"") + len(each.cause)
        if some and size + more > LETTERS_AT_ONCE:
            yield some
            some, size = [], 0
        some.append(each)
        size += more
    if some:
        yield some


def _fields(letter: Letter) -> dict[str, Any]:
    return {
        "t": letter.topic,
        "p": letter.partition,
        "o": letter.offset,
        "k": None if letter.key is None else letter.key.hex(),
        "v": None if letter.value is None else letter.value.hex(),
        "ms": letter.time_ms,
        "c": letter.cause.replace("\0", "\N{REPLACEMENT CHARACTER}"),
    }


class PostgresLedger:
    """The driver's side: runs, positions, history. One connection, reopened when it is lost."""

    def __init__(self, dsn: str, pipeline: str, timeout: float = 10) -> None:
        self.pipeline, self._dsn, self._timeout = pipeline, dsn, timeout
        self._connection: psycopg.Connection | None = None

    def prepare(self) -> None:
        upgrade(self._open())

    def known(self) -> Known | None:
        """The pipeline as it is now, if it ever ran."""
        with self._open().transaction():
            row = (
                self._open()
                .execute(
                    "SELECT checkpoint_id FROM tallygate.pipelines WHERE name = %s",
                    (self.pipeline,),
                )
                .fetchone()
            )
            if row is None:
                return None
            held = (
                self._open()
                .execute(
                    "SELECT topic, partition, next_offset, topic_id FROM tallygate.positions "
                    "WHERE pipeline = %s",
                    (self.pipeline,),
                )
                .fetchall()
            )
        positions = {(topic, partition): at for topic, partition, at, _ in held}
        ids = {topic: topic_id for topic, _, _, topic_id in held if topic_id}
        return Known(positions, ids, row[0])

    def begin(
        self, *, target: str, delivery: str, stateful: bool, checkpoint: str, version: str
    ) -> Claim:
        """Take the next epoch. From here on no older run commits anything."""
        with self._open().transaction():
            row = (
                self._open()
                .execute(
                    "INSERT INTO tallygate.pipelines "
                    "(name, epoch, target, delivery, stateful, checkpoint) "
                    "VALUES (%s, 1, %s, %s, %s, %s) ON CONFLICT (name) DO UPDATE SET "
                    "epoch = pipelines.epoch + 1, target = EXCLUDED.target, "
                    "delivery = EXCLUDED.delivery, stateful = EXCLUDED.stateful, "
                    "checkpoint = EXCLUDED.checkpoint RETURNING epoch",
                    (self.pipeline, target, delivery, stateful, checkpoint),
                )
                .fetchone()
            )
            assert row is not None
            self._open().execute(
                "INSERT INTO tallygate.runs (pipeline, epoch, host, pid, version) "
                "VALUES (%s, %s, %s, %s, %s)",
                (self.pipeline, row[0], socket.gethostname(), os.getpid(), version),
            )
            self._open().execute(
                # Of batches that were never committed: their records may be fit by now.
                "DELETE FROM tallygate.dead_letter_records AS letters WHERE letters.pipeline = %s "
                "AND NOT EXISTS (SELECT FROM tallygate.positions AS held WHERE "
                "held.pipeline = letters.pipeline AND held.topic = letters.topic AND "
                "held.partition = letters.partition "
                'AND held.next_offset > letters."offset")',
                (self.pipeline,),
            )
        return Claim(self.pipeline, row[0])

    def positions(self) -> dict[Place, int]:
        rows = self._execute(
            "SELECT topic, partition, next_offset FROM tallygate.positions WHERE pipeline = %s",
            (self.pipeline,),
        )
        return {(topic, partition): at for topic, partition, at in rows}

    def remember(
        self, claim: Claim, checkpoint_id: str | None, topic_ids: Mapping[str, str]
    ) -> None:
        """Keep what a later start compares: the checkpoint's id and those of the topics."""
        self._execute(
            "UPDATE tallygate.pipelines SET checkpoint_id = %s WHERE name = %s AND epoch = %s",
            (checkpoint_id, claim.pipeline, claim.epoch),
        )
        for topic, topic_id in topic_ids.items():
            self._execute(
                "UPDATE tallygate.positions SET topic_id = %s WHERE pipeline = %s AND topic = %s "
                "AND topic_id IS DISTINCT FROM %s "
                "AND (SELECT epoch FROM tallygate.pipelines WHERE name = %s) = %s",
                (topic_id, claim.pipeline, topic, topic_id, claim.pipeline, claim.epoch),
            )

    def lose(self, claim: Claim, lost: Iterable[Range], reason: str) -> None:
        """Go on after a lost range: the ledger moves past it, and keeps that it is lost."""
        with self._open().transaction():
            claim.check(PlainConnection(self._open()))
            for each in lost:
                moved = self._open().execute(
                    "UPDATE tallygate.positions SET next_offset = %s, updated_at = now() WHERE "
                    "pipeline = %s AND topic = %s AND partition = %s AND next_offset = %s",
                    (each.until, self.pipeline, *each.place, each.start),
                )
                if moved.rowcount != 1:
                    raise LedgerError(f"the ledger moved while {each} was given up; start again.")
                self._open().execute(
                    "INSERT INTO tallygate.lost_ranges "
                    "(pipeline, topic, partition, from_offset, until_offset, reason) "
                    "VALUES (%s, %s, %s, %s, %s, %s)",
                    (self.pipeline, *each.place, each.start, each.until, reason),
                )

    def letters(self) -> int:
        """How many dead letters count."""
        rows = self._execute(
            "SELECT count(*) FROM tallygate.dead_letters WHERE pipeline = %s", (self.pipeline,)
        )
        return int(rows[0][0])

    def beat(self, claim: Claim, progress: Mapping[str, Any]) -> bool:
        """Say that the run is alive; raise if it is not the newest any more. True is the answer if
        somebody asked it to stop."""
        rows = self._execute(
            "UPDATE tallygate.runs SET heartbeat_at = now(), progress = %s "
            "WHERE pipeline = %s AND epoch = %s AND epoch = "
            "(SELECT epoch FROM tallygate.pipelines WHERE name = %s) RETURNING stop_requested",
            (json.dumps(progress), claim.pipeline, claim.epoch, claim.pipeline),
        )
        if not rows:
            raise claim.fenced(PlainConnection(self._open()))
        return bool(rows[0][0])

    def end(self, claim: Claim, outcome: str) -> None:
        self._execute(
            "UPDATE tallygate.runs SET stopped_at = now(), heartbeat_at = now(), outcome = %s "
            "WHERE pipeline = %s AND epoch = %s",
            (outcome, claim.pipeline, claim.epoch),
        )

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _open(self) -> psycopg.Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._dsn, timeout=self._timeout, autocommit=True)
        return self._connection

    def _execute(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run a statement that may be repeated, once more if the connection had been lost."""
        try:
            done = self._open().execute(statement.encode(), values)
        except (psycopg.OperationalError, psycopg.InterfaceError):
            self.close()
            done = self._open().execute(statement.encode(), values)
        return done.fetchall() if done.description else []
