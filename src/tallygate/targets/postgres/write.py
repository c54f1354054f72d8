"""Writing a batch to PostgreSQL, by one of three strategies with one guarantee.

  driver      the ranges say that the batch is small: its rows are collected, and one transaction
              holds rows, dead letters and ledger. Lowest latency.
  partition   rows are appended, and no partition of Kafka is spread over several tasks: each task
              commits its rows with the positions of its partitions. Highest throughput: each row
              is written once.
  staged      anything else: tasks fill a staging table, and the driver merges it and moves the
              ledger in one transaction.

**An unanswered commit is neither done nor failed.** Nothing here repeats a write by itself: when a
store does not answer, `UnknownOutcomeError` is raised, and the batch is planned again from what the
ledger says.
"""

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import pyarrow as pa

from tallygate.core.blocks import Blocks
from tallygate.core.ledger import Claim
from tallygate.core.letters import Letter
from tallygate.core.offsets import Range, count, is_topic
from tallygate.failpoints import reach
from tallygate.postgres.arrow import Connected, pooled
from tallygate.postgres.ledger_tables import (
    UNFINISHED,
    BatchRecord,
    KnownTable,
    check_claim,
    finish,
    move,
    record,
)
from tallygate.postgres.letter_tables import keep_letters
from tallygate.postgres.plain import JSON
from tallygate.postgres.sessions import LOCK_WAIT, bounded, session_name
from tallygate.postgres.tables import SCHEMA
from tallygate.targets.base import WriteBatch, Written
from tallygate.targets.postgres.rows import RowWriter, commit_in_order
from tallygate.targets.postgres.staging import Staging
from tallygate.targets.postgres.table import Column
from tallygate.targets.task_report import slowest, unmoved


@dataclass(frozen=True, kw_only=True)
class BatchWriter:
    """A run's way to write batches."""

    dsn: str
    claim: Claim
    delivery: str
    staging: Staging
    target: str
    driver_rows: int
    narrow: bool
    """Whether every Spark partition holds the rows of one partition of Kafka."""
    careful: bool = False
    """Whether rows may be refused one by one, since PostgreSQL has refused some, or since what it
    refuses is not written again."""
    known: KnownTable | None = None
    """The target table, as the run found it."""
    lock_wait: float = LOCK_WAIT
    """How long the ledger is waited for, in seconds, while another transaction holds it."""

    def write(self, batch: WriteBatch) -> Written:
        # Elsewhere than in a topic one position may stand for a whole file.
        counted = all(is_topic(each.topic) for each in batch.left)
        small = counted and count(batch.left) <= self.driver_rows
        if small and self.staging.mode != "replace":
            return self._by_driver(batch)
        if self._appends and self.narrow and batch.input.keeps_partitions_whole():
            return self._by_partition(batch)
        return self._by_staging(batch)

    @property
    def _appends(self) -> bool:
        return self.staging.mode == "append" and not self.staging.key

    def _rows(self, batch: WriteBatch) -> RowWriter:
        table = self.staging.table
        return RowWriter(
            dsn=self.dsn,
            target=self.target,
            schema=table.schema,
            table=table.name,
            columns=_arrow(self.staging.columns),
            claim=self.claim,
            delivery=self.delivery,
            batch=batch.id,
            careful=self.careful,
            known=self.known,
            lock_wait=self.lock_wait,
            epochs=batch.epochs,
        )

    def _staged(self, batch: WriteBatch) -> RowWriter:
        columns = _arrow(self.staging.staged)
        return replace(self._rows(batch), schema=SCHEMA, table=self.staging.name, columns=columns)

    def _by_driver(self, batch: WriteBatch) -> Written:
        started = time.perf_counter()
        blocks = batch.input.blocks()
        read = time.perf_counter() - started
        rows = 0
        with self._connection(careful=self.careful) as connection:

            def save() -> None:
                nonlocal rows
                rows = self._save(connection, batch, blocks)
                self._keep(connection, blocks.letters)

            def ledger() -> None:
                seconds = {"read": round(read, 4), "write": round(_since(started) - read, 4)}
                self._move(connection, batch, batch.left)
                self._record(connection, batch, "driver", rows, seconds)

            try:
                commit = commit_in_order(connection, self.delivery, batch.id, save, ledger)
            except Exception as error:
                raise blocks.failure or error from None
        write = _since(started) - read - commit
        return Written("driver", rows, {"read": read, "write": write, "commit": commit})

    def _save(self, connection: Connected, batch: WriteBatch, blocks: Blocks) -> int:
        """Rows into the table, over the staging table where they are not just appended."""
        if self._appends:
            return self._rows(batch).ingest(connection, blocks, blocks.letters)
        self.staging.clear(connection)
        marked = self._staged(batch).marked()
        staged = marked.ingest(connection, blocks, blocks.letters, "driver")
        return self.staging.merge(
            connection, ["driver"], staged, careful=self.careful, letters=blocks.letters
        )

    def _by_partition(self, batch: WriteBatch) -> Written:
        started = time.perf_counter()
        number = self._begin(batch)
        rows = self._rows(batch)
        reports = batch.input.run(rows.commit_partitions, one_partition=True)
        seconds = slowest(reports)
        written = sum(report.rows for report in reports)
        with self._connection() as connection:
            self._move(connection, batch, unmoved(batch.left, reports))
            finish(connection, self.claim, number, _done(batch, "partition", written, seconds))
            connection.commit()
        return Written("partition", written, {**seconds, "total": _since(started)})

    def _begin(self, batch: WriteBatch) -> int:
        """Write down the batch, and where partitions begin, before any of them moves; return the
        batch's number in the history. A partition that the ledger does not know when it knows
        others of its topic is one that was added, and begins at 0."""
        starts = [replace(each, until=each.start) for each in batch.new if each.start]
        with self._connection() as connection:
            # It need not wait for the disk: no commit that comes later is there without this one.
            connection.rows("SET LOCAL synchronous_commit = off")
            self._move(connection, batch, starts)
            begun = _done(batch, "partition", UNFINISHED, {})
            number = record(connection, self.claim, begun)
            connection.commit()
        return number

    def _by_staging(self, batch: WriteBatch) -> Written:
        with self._connection() as connection:
            self.staging.clear(connection)
            connection.commit()
        reports = batch.input.run(self._staged(batch).stage)
        reach("rows-staged", batch.id)
        attempts = [report.attempt for report in reports if report.rows]
        staged = sum(report.rows for report in reports)
        seconds = slowest(reports)
        rows = 0
        with self._connection(careful=self.careful) as connection:

            def merge() -> None:
                nonlocal rows
                letters: list[Letter] = []
                rows = self.staging.merge(
                    connection, attempts, staged, careful=self.careful, letters=letters
                )
                self._keep(connection, letters)

            def ledger() -> None:
                self._move(connection, batch, batch.left)
                self._record(connection, batch, "staged", rows, seconds)

            started = time.perf_counter()
            commit = commit_in_order(connection, self.delivery, batch.id, merge, ledger)
        seconds["write"] += _since(started) - commit
        return Written("staged", rows, {**seconds, "commit": commit})

    def _connection(self, *, careful: bool = False) -> AbstractContextManager[Connected]:
        return pooled(self.dsn, careful=careful, name=session_name(self.claim))

    def _keep(self, connection: Connected, letters: list[Letter]) -> None:
        if letters:
            with bounded(self.dsn, connection, self.lock_wait):
                keep_letters(connection, self.claim, letters)

    def _move(self, connection: Connected, batch: WriteBatch, ranges: Iterable[Range]) -> None:
        with bounded(self.dsn, connection, self.lock_wait):
            check_claim(connection, self.claim, self.known)
            move(connection, self.claim, ranges, batch.epochs)

    def _record(
        self,
        connection: Connected,
        batch: WriteBatch,
        strategy: str,
        rows: int,
        seconds: dict[str, float],
    ) -> None:
        record(connection, self.claim, _done(batch, strategy, rows, seconds))


def _done(batch: WriteBatch, strategy: str, rows: int, seconds: dict[str, float]) -> BatchRecord:
    return BatchRecord(
        batch_id=batch.id, strategy=strategy, ranges=batch.left, rows=rows, seconds=seconds
    )


def _arrow(columns: Iterable[Column]) -> pa.Schema:
    return pa.schema(
        [pa.field(c.name, c.arrow, metadata=JSON if c.json else None) for c in columns]
    )


def _since(started: float) -> float:
    return time.perf_counter() - started
