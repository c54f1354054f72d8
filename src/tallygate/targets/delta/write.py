"""Writing a batch to a Delta table: one transaction of the table, whatever the mode.

The run writes down the entry that will count, and then Delta writes rows and count in one commit.
Whether that took place is asked of the table: an answer that went missing, and a write that Delta
left out, look the same from here.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Observation, Window
from pyspark.sql import functions as f

from tallygate.core.decoding import COORDINATES
from tallygate.core.ledger import Claim, LedgerEntry
from tallygate.core.letters import MOST_KEPT, Letter
from tallygate.errors import TargetError
from tallygate.failpoints import reach
from tallygate.quoting import backticked
from tallygate.spark.error_text import reason
from tallygate.spark.observed import observed_count
from tallygate.spark.temporary_conf import temporary_conf
from tallygate.targets.base import RefusedRowsError, UnknownOutcomeError, WriteBatch, Written
from tallygate.targets.delta.ledger import TableLedger
from tallygate.targets.delta.table import breaks_rule, is_conflict

APPLICATION = "spark.databricks.delta.write.txnAppId"
VERSION = "spark.databricks.delta.write.txnVersion"
NOTE = "spark.databricks.delta.commitInfo.userMetadata"
ONCE = "spark.databricks.delta.merge.materializeSource"

RowCount = Callable[[], int]
"""Says how many rows were written, once it is known that they were."""


@dataclass(frozen=True, kw_only=True)
class TableWriter:
    """Writes the batches of one pipeline."""

    ledger: TableLedger
    columns: tuple[str, ...]
    """Those that the table gets."""
    mode: str
    key: tuple[str, ...]
    has_coordinates: bool

    def write(
        self, claim: Claim, batch: WriteBatch, keep: Callable[[list[Letter]], None]
    ) -> Written:
        """`keep` takes the rows that the table refuses, as dead letters."""
        before = self.ledger.current(claim)
        state = before.state.moved(batch.left, batch.epochs)
        after = before.next(state=state, batch=batch.id, ranges=batch.left)
        rows = batch.input.frame()
        reach("rows-begun", batch.id)
        self.ledger.intend(after)
        reach("ledger-moved", batch.id)
        started = time.perf_counter()
        reach("commit-sent", batch.id)
        try:
            counted = self.send(rows, after)
        except RefusedRowsError as refusal:
            rows, letters = self._set_aside(rows, refusal)
            keep(letters)
            counted = self.send(rows, after)
        self.ledger.confirm(claim, after)
        reach("committed", batch.id)
        return Written(self.mode, counted(), {"write": time.perf_counter() - started})

    def send(self, rows: DataFrame, after: LedgerEntry) -> RowCount:
        """Have Delta write rows and count. It may have left them out, and does not tell."""
        try:
            return self._merge(rows, after) if self.mode == "upsert" else self._save(rows, after)
        except Exception as error:
            if is_conflict(error):
                raise UnknownOutcomeError(
                    "another writer changed the table at the same time"
                ) from error
            if breaks_rule(error):
                raise RefusedRowsError(
                    f"Delta refuses rows for {self.ledger.table.path}: {reason(error)}. Change the "
                    "table's rules, or the transform."
                ) from error
            if isinstance(error, AnalysisException):
                raise self._changed(error) from error
            raise

    def _save(self, rows: DataFrame, after: LedgerEntry) -> RowCount:
        """Append the rows, or put them in the place of all that were there."""
        observed = Observation()
        chosen = rows.select(*map(backticked, self.columns))
        chosen = chosen.observe(observed, f.count(f.lit(1)).alias("rows"))
        writer = chosen.write.format("delta").mode("append")
        if self.mode == "replace":
            writer = writer.mode("overwrite").option("partitionOverwriteMode", "static")
        writer = writer.option("txnAppId", self.ledger.application)
        writer = writer.option("txnVersion", after.number)
        writer.option("userMetadata", _note(after)).save(self.ledger.table.path)
        return lambda: observed_count(observed, "rows")

    def _merge(self, rows: DataFrame, after: LedgerEntry) -> RowCount:
        """Rows of a key that is there take its place; of several the newest counts.

        Delta takes a merge's number from the session, which in a query is a copy of its own. The
        source of a merge is read twice, and must be computed only once.
        """
        session = rows.sparkSession
        view = f"tallygate_{after.state.run.id}"
        self._newest_of_key(rows).createOrReplaceTempView(view)
        names = [backticked(name) for name in self.columns]
        same = " AND ".join(
            f"held.{backticked(name)} <=> new.{backticked(name)}" for name in self.key
        )
        statement = (
            f"MERGE INTO delta.{backticked(self.ledger.table.path)} AS held USING {view} AS new "
            f"ON {same} "
            f"WHEN MATCHED THEN UPDATE SET {', '.join(f'{n} = new.{n}' for n in names)} "
            f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) "
            f"VALUES ({', '.join(f'new.{n}' for n in names)})"
        )
        settings = {
            APPLICATION: self.ledger.application,
            VERSION: str(after.number),
            NOTE: _note(after),
            ONCE: "all",
        }
        try:
            with temporary_conf(session, settings):
                done = session.sql(statement).collect()
        finally:
            session.catalog.dropTempView(view)
        return lambda: int(done[0]["num_affected_rows"])

    def _newest_of_key(self, rows: DataFrame) -> DataFrame:
        """By the records' offsets, or else in the order in which rows came."""
        if self.has_coordinates:
            order = [backticked(name) for name in reversed(COORDINATES)]
        else:
            order = ["_tallygate_at"]
            rows = rows.withColumn("_tallygate_at", f.monotonically_increasing_id())
        newest = Window.partitionBy(*map(backticked, self.key)).orderBy(*(f.desc(n) for n in order))
        ranked = rows.withColumn("_tallygate_rank", f.row_number().over(newest))
        return ranked.where("_tallygate_rank = 1").select(*map(backticked, self.columns))

    def _set_aside(
        self, rows: DataFrame, refusal: RefusedRowsError
    ) -> tuple[DataFrame, list[Letter]]:
        """The rows that the table takes, and the others as dead letters.

        Delta names one row and commits nothing, and a part of a batch cannot be tried without a
        commit. But the rules are the table's own expressions: all rows that break one are found at
        once. Where that finds none, as for a rule about columns that only the table has, the table
        refuses the batch again."""
        if not self.has_coordinates:
            raise RefusedRowsError(
                f"{str(refusal).rstrip('.')}. Rows do not have the coordinates of a record, so "
                "none can be set aside."
            ) from refusal
        broken = [f.when(is_broken, f.lit(said)) for said, is_broken in self._rules(rows)]
        if not broken:
            raise refusal
        cause = "_tallygate_cause"
        judged = rows.withColumn(cause, f.coalesce(*broken))
        content = f.to_json(f.struct(*map(backticked, self.columns))).alias("value")
        refused = judged.where(f.col(cause).isNotNull())
        found = refused.select(*COORDINATES, cause, content).collect()
        letters = [
            Letter(topic, partition, offset, said, value=value.encode()).cut(MOST_KEPT)
            for topic, partition, offset, said, value in found
        ]
        return judged.where(f.col(cause).isNull()).drop(cause), letters

    def _rules(self, rows: DataFrame) -> Iterator[tuple[str, Column]]:
        """What the table asks of a row, in Delta's words, and whether a row breaks it."""
        table = self.ledger.table.begin()
        for name in sorted(table.never_null & set(self.columns)):
            yield (
                f"NOT NULL constraint violated for column: {name}",
                f.col(backticked(name)).isNull(),
            )
        given = rows.select(*map(backticked, self.columns))
        for name, text in sorted(table.checks.items()):
            holds = f.coalesce(f.expr(text), f.lit(False))
            try:
                given.where(holds)
            except AnalysisException:
                continue
            yield f"CHECK constraint {name} ({text}) violated", ~holds

    def _changed(self, error: AnalysisException) -> TargetError:
        return TargetError(
            f"Delta cannot write to {self.ledger.table.path} any more: {reason(error)}; if "
            "the table was altered, start again: the start checks it."
        )


def _note(after: LedgerEntry) -> str:
    """What Delta's own history says of the commit."""
    moved = ", ".join(str(each) for each in after.ranges if len(each))
    return f"{after.pipeline}, run {after.state.run.epoch}, batch {after.batch}: {moved}"
