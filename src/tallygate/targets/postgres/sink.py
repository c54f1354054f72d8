"""Writing a batch to PostgreSQL, in one of three ways with one guarantee.

  driver      the ranges say that the batch is small: its rows are collected, and one transaction
              holds rows, dead letters and ledger. Lowest latency.
  partition   rows are appended, and no Kafka partition is spread over several tasks: each task
              commits its rows with the ledger rows of its partitions. Highest throughput: each row
              is written once.
  staged      anything else: tasks fill a staging table, and the driver merges it and moves the
              ledger in one transaction.

**An unanswered commit is neither done nor failed.** Nothing here repeats a write by itself: when a
store does not answer, `Retry` is raised, and the batch is planned again from what the ledger says.
"""

import dataclasses
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tallygate.core.decoding import Decoder
from tallygate.core.offsets import Range, count, is_topic, remaining
from tallygate.errors import TargetError, UnreachableError
from tallygate.failpoints import reach
from tallygate.kafka.connection import Connection
from tallygate.postgres.arrow import Connected, is_refusal, pooled
from tallygate.postgres.plain import JSON
from tallygate.postgres.tables import SCHEMA
from tallygate.quoting import backticked
from tallygate.targets.batch_input import FetchedRows, FrameRows, Rows, Task
from tallygate.targets.postgres.ledger import BatchRow, Claim, PostgresLedger
from tallygate.targets.postgres.nested import to_json
from tallygate.targets.postgres.staging import Staging
from tallygate.targets.postgres.table import Column, Target
from tallygate.targets.postgres.writer import (
    Blocks,
    Writer,
    committed,
    problem_of,
    reason,
)
from tallygate.targets.sink import Batch, Retry, Written
from tallygate.targets.task_report import Report, skipped, slowest, unmoved

__all__ = ["PostgresSink"]


@dataclass
class PostgresSink:
    dsn: str
    ledger: PostgresLedger
    claim: Claim
    target: Target
    columns: tuple[Column, ...]
    """The target's columns."""
    staging: Staging
    mode: str
    key: tuple[str, ...]
    delivery: str
    divisible: bool
    """Whether rows carry the coordinates of their records."""
    narrow: bool
    """Whether no Kafka partition is spread over several tasks."""
    stateful: bool
    decoder: Decoder | None = None
    """For frames of raw records, which are decoded where they are written."""
    source: Connection | None = None
    """Given if those are also read there, from these brokers."""
    driver_rows: int = 20_000
    _careful: bool = field(default=False, init=False)

    def write(self, frame: DataFrame, batch: Batch) -> Written:
        try:
            return self._write(frame, batch)
        except (Retry, UnreachableError) as error:
            raise Retry(str(error)) from error
        except Exception as error:
            raise self._explained(error) from error

    def _write(self, frame: DataFrame, batch: Batch) -> Written:
        positions = self.ledger.positions()
        left = remaining(batch.ranges, positions, divisible=self.divisible)
        reach("batch-planned", batch.id)
        if not left:
            return skipped(frame, stateful=self.stateful)
        rows = self._rows(frame, left)
        writer = self._writer(batch, left, trim=not rows.exact and batch.is_in_part(left))
        counted = all(is_topic(each.topic) for each in left)  # elsewhere one may be a whole file
        if counted and count(left) <= self.driver_rows and self.mode != "replace":
            return self._by_driver(rows, writer, left)
        if self._plain_append and self.narrow and rows.keeps_whole(len(batch.whole)):
            self._begin(each for each in left if each.place not in positions)
            return self._by_partition(rows, writer, left)
        return self._by_staging(rows, writer, left)

    def _rows(self, frame: DataFrame, left: tuple[Range, ...]) -> Rows:
        if self.source is not None:
            return FetchedRows(frame.sparkSession, self.source, left)
        return FrameRows(self._prepared(frame))

    def _writer(self, batch: Batch, left: tuple[Range, ...], *, trim: bool) -> Writer:
        return Writer(
            self.dsn,
            self.target.schema,
            self.target.name,
            _arrow(self.columns),
            self.claim,
            self.delivery,
            batch.id,
            {each.place: each for each in left},
            trim,
            self.divisible,
            single=False,
            careful=self._careful,
            decoder=self.decoder,
        )

    def _prepared(self, frame: DataFrame) -> DataFrame:
        """The frame with values that Arrow cannot carry, or PostgreSQL not take, as text."""
        if self.decoder is not None:
            return frame
        special = {
            column.name: to_json(f.col(backticked(column.name)))
            if column.json
            else f.col(backticked(column.name)).cast("string")
            for column in self.columns
            if column.json or column.text
        }
        return frame.withColumns(special) if special else frame

    @property
    def _plain_append(self) -> bool:
        return self.mode == "append" and not self.key

    def _by_driver(self, given: Rows, writer: Writer, left: tuple[Range, ...]) -> Written:
        started = time.perf_counter()
        blocks = Blocks(writer, iter(given.collected()))
        read = time.perf_counter() - started
        rows = 0
        with pooled(self.dsn, careful=self._careful) as connection:

            def save() -> None:
                nonlocal rows
                rows = self._save(connection, writer, blocks)
                self.claim.keep(connection, blocks.letters)

            def move() -> None:
                self.claim.check(connection)
                self.claim.move(connection, left)
                seconds = {"read": round(read, 4), "write": round(self._since(started) - read, 4)}
                self._record(connection, writer.batch, "driver", left, rows, seconds)

            commit = committed(connection, self.delivery, writer.batch, save, move)
        write = self._since(started) - read - commit
        return Written("driver", rows, {"read": read, "write": write, "commit": commit})

    def _save(self, connection: Connected, writer: Writer, blocks: Blocks) -> int:
        """Rows into the table, over the staging table where they are not just appended."""
        if self._plain_append:
            return writer.ingest(connection, blocks, blocks)
        self.staging.clear(connection)
        staged = self._staged(writer)
        inner = Blocks(staged, blocks.source)
        count = staged.ingest(connection, inner, inner, "driver")
        blocks.letters += inner.letters
        return self.staging.merge(
            connection, ["driver"], count, careful=self._careful, letters=blocks.letters
        )

    def _begin(self, ranges: Iterable[Range]) -> None:
        """Write down where partitions begin before any of them moves. A partition that the ledger
        does not know when it knows others of its topic is one that was added, and begins at 0."""
        starts = [dataclasses.replace(each, until=each.start) for each in ranges if each.start]
        if starts:
            with pooled(self.dsn) as connection:
                self.claim.check(connection)
                self.claim.move(connection, starts)
                connection.commit()

    def _by_partition(self, given: Rows, writer: Writer, left: tuple[Range, ...]) -> Written:
        started = time.perf_counter()
        task = dataclasses.replace(writer, single=not given.exact)
        reports = self._reports(given, task.write)
        seconds = slowest(reports)
        with pooled(self.dsn) as connection:
            self.claim.check(connection)
            self.claim.move(connection, unmoved(left, reports))
            rows = sum(report.rows for report in reports)
            self._record(connection, writer.batch, "partition", left, rows, seconds)
            connection.commit()
        return Written("partition", rows, {**seconds, "total": self._since(started)})

    def _by_staging(self, given: Rows, writer: Writer, left: tuple[Range, ...]) -> Written:
        with pooled(self.dsn) as connection:
            self.staging.clear(connection)
            connection.commit()
        reports = self._reports(given, self._staged(writer).stage)
        reach("rows-staged", writer.batch)
        attempts = [report.attempt for report in reports if report.rows]
        staged = sum(report.rows for report in reports)
        seconds = slowest(reports)
        rows = 0
        with pooled(self.dsn, careful=self._careful) as connection:

            def merge() -> None:
                nonlocal rows
                letters: list[Any] = []
                rows = self.staging.merge(
                    connection, attempts, staged, careful=self._careful, letters=letters
                )
                self.claim.keep(connection, letters)

            def move() -> None:
                self.claim.check(connection)
                self.claim.move(connection, left)
                self._record(connection, writer.batch, "staged", left, rows, seconds)

            started = time.perf_counter()
            commit = committed(connection, self.delivery, writer.batch, merge, move)
        seconds["write"] += self._since(started) - commit
        return Written("staged", rows, {**seconds, "commit": commit})

    def _staged(self, writer: Writer) -> Writer:
        columns = _arrow(self.staging.staged)
        return dataclasses.replace(writer, schema=SCHEMA, table=self.staging.name, columns=columns)

    def _reports(self, given: Rows, task: Task) -> list[Report]:
        """Run the tasks and hear what they say; what must not go on is raised."""
        reports = given.run(task)
        problems = {report.problem: str(report.message) for report in reports}
        if "target" in problems:
            raise self._changed(problems["target"])
        if "refused" in problems:
            raise self._refusal(problems["refused"])
        return reports

    def _record(
        self,
        connection: Connected,
        batch: int,
        way: str,
        left: tuple[Range, ...],
        rows: int,
        seconds: Mapping[str, float],
    ) -> None:
        self.claim.record(connection, BatchRow(batch, way, left, rows, seconds))

    def _refusal(self, message: str) -> Exception:
        """The first time a row is refused the batch is written again, carefully."""
        if self._careful:
            return TargetError(
                f"PostgreSQL refuses the batch for {self.target}: {reason(message)}."
            )
        self._careful = True
        return Retry(message)

    def _explained(self, error: Exception) -> Exception:
        if is_refusal(error):
            return self._refusal(str(error))
        if problem_of(error) == "retry":
            return Retry(str(error))
        return self._changed(str(error)) if problem_of(error) == "target" else error

    def _changed(self, message: str) -> TargetError:
        return TargetError(
            f"PostgreSQL cannot write to {self.target} any more: {reason(message)}; if the table "
            "was dropped or altered, start again: it is made or checked at the start."
        )

    @staticmethod
    def _since(started: float) -> float:
        return time.perf_counter() - started


def _arrow(columns: Iterable[Column]) -> pa.Schema:
    return pa.schema(
        [pa.field(c.name, c.arrow, metadata=JSON if c.json else None) for c in columns]
    )
