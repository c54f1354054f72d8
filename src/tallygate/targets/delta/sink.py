"""Writing a batch to a Delta table: one transaction of the table, whatever the mode.

What is left of the batch is found from the ledger, the entry that will count is written down, and
then Delta writes rows and count in one commit. Whether that took place is asked of the table: an
answer that went missing, and a write that Delta left out, look the same from here.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Observation, Window
from pyspark.sql import functions as f

from tallygate.core.decoding import COORDINATES
from tallygate.core.offsets import remaining
from tallygate.errors import TargetError
from tallygate.failpoints import reach
from tallygate.quoting import backticked
from tallygate.spark.error_text import reason
from tallygate.spark.temporary_conf import held
from tallygate.targets.delta.entry import Entry
from tallygate.targets.delta.ledger import DeltaLedger
from tallygate.targets.delta.table import is_conflict
from tallygate.targets.sink import Batch, Retry, Written
from tallygate.targets.task_report import skipped, within

__all__ = ["DeltaSink"]

APPLICATION = "spark.databricks.delta.write.txnAppId"
VERSION = "spark.databricks.delta.write.txnVersion"
NOTE = "spark.databricks.delta.commitInfo.userMetadata"
ONCE = "spark.databricks.delta.merge.materializeSource"

Count = Callable[[], int]
"""Says how many rows were written, once it is known that they were."""


@dataclass(frozen=True)
class DeltaSink:
    ledger: DeltaLedger
    columns: tuple[str, ...]
    """Those that the table gets."""
    mode: str
    key: tuple[str, ...]
    divisible: bool
    """Whether rows carry the coordinates of their records."""
    stateful: bool

    def write(self, frame: DataFrame, batch: Batch) -> Written:
        entry = self.ledger.current()
        left = remaining(batch.ranges, entry.positions, divisible=self.divisible)
        reach("batch-planned", batch.id)
        if not left:
            return skipped(frame, stateful=self.stateful)
        rows = frame.where(within(left)) if batch.is_in_part(left) else frame
        after = entry.moved(left, batch.id)
        reach("rows-begun", batch.id)
        self.ledger.intend(after)
        reach("ledger-moved", batch.id)
        started = time.perf_counter()
        count = self._committed(rows, after)
        reach("committed", batch.id)
        return Written(self.mode, count, {"write": time.perf_counter() - started})

    def _committed(self, rows: DataFrame, after: Entry) -> int:
        assert after.batch is not None
        try:
            reach("commit-sent", after.batch)
            count = self._merge(rows, after) if self.mode == "upsert" else self._save(rows, after)
        except Exception as error:
            if is_conflict(error):
                raise Retry("somebody else changed the table at the same time") from error
            if isinstance(error, AnalysisException):
                raise self._changed(error) from error
            raise
        self.ledger.confirm(after)
        return count()

    def _save(self, rows: DataFrame, after: Entry) -> Count:
        """Append the rows, or put them in the place of all that were there."""
        counted = Observation()
        chosen = rows.select(*map(backticked, self.columns))
        chosen = chosen.observe(counted, f.count(f.lit(1)).alias("rows"))
        writer = chosen.write.format("delta").mode("append")
        if self.mode == "replace":
            writer = writer.mode("overwrite").option("partitionOverwriteMode", "static")
        writer = writer.option("txnAppId", self.ledger.application)
        writer = writer.option("txnVersion", after.version)
        writer.option("userMetadata", self._note(after)).save(self.ledger.table.path)
        return lambda: int(counted.get["rows"])

    def _merge(self, rows: DataFrame, after: Entry) -> Count:
        """Rows of a key that is there take its place; of several the newest counts.

        Delta takes a merge's number from the session, which in a query is a copy of its own. The
        source of a merge is read twice, and must be computed only once.
        """
        session = rows.sparkSession
        view = f"tallygate_{after.run}"
        self._newest(rows).createOrReplaceTempView(view)
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
            VERSION: str(after.version),
            NOTE: self._note(after),
            ONCE: "all",
        }
        try:
            with held(session, settings):
                done = session.sql(statement).collect()
        finally:
            session.catalog.dropTempView(view)
        return lambda: int(done[0]["num_affected_rows"])

    def _newest(self, rows: DataFrame) -> DataFrame:
        """By the records' offsets, or else in the order in which rows came."""
        order = (
            [backticked(name) for name in reversed(COORDINATES)]
            if self.divisible
            else ["_tallygate_at"]
        )
        marked = rows
        if not self.divisible:
            marked = rows.withColumn("_tallygate_at", f.monotonically_increasing_id())
        newest = Window.partitionBy(*map(backticked, self.key)).orderBy(*(f.desc(n) for n in order))
        ranked = marked.withColumn("_tallygate_rank", f.row_number().over(newest))
        return ranked.where("_tallygate_rank = 1").select(*map(backticked, self.columns))

    def _note(self, after: Entry) -> str:
        """What Delta's own history says of the commit."""
        moved = ", ".join(str(each) for each in after.ranges if len(each))
        return f"{self.ledger.pipeline}, run {after.epoch}, batch {after.batch}: {moved}"

    def _changed(self, error: AnalysisException) -> TargetError:
        return TargetError(
            f"Delta cannot write to {self.ledger.table.path} any more: {reason(error)}; if "
            "the table was altered, start again: it is checked at the start."
        )
