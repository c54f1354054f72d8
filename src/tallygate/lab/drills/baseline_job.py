"""The job that everybody writes: Spark's `foreachBatch` with JDBC, or Spark's own Kafka sink.

It is the control of many drills, in a process of its own:
`python -m tallygate.lab.drills.baseline_job`, given one JSON object that says what to do. With
`dies` it kills itself, its JVM included, once its first batch is written and before Spark has
logged it as done: the moment that decides. It is the first batch because how many there will be is
a matter of chance.
"""

import json
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f

from tallygate.kafka.connection import Connection
from tallygate.lab.drills.subject import SCHEMA
from tallygate.postgres.connect import jdbc
from tallygate.quoting import double_quoted
from tallygate.settings import Settings
from tallygate.spark.session import session


@dataclass(frozen=True)
class PlainJob:
    bootstrap_servers: str
    topic: str
    checkpoint: str
    dsn: str | None = None
    table: str | None = None
    to_topic: str | None = None
    """Instead of a table: Spark's own Kafka sink."""
    options: dict[str, str] | None = None
    """For the Kafka source."""
    by_place: bool = False
    """Whether the rows are the places of the records, whatever is in them."""
    mode: str = "PERMISSIVE"
    """What `from_json` does with a bad record."""
    windows: bool = False
    """Instead of rows: how many there are in each window of event time, with a watermark."""
    master: str | None = None
    by_partition: bool = False
    """Instead of JDBC: each task opens a connection and inserts its rows, as many do by hand."""
    dies: bool = False
    died: str = ""
    """A file that is made when it has died, so that it does not die again."""

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tallygate.lab.drills.baseline_job", json.dumps(asdict(self))]

    def run(self, settings: Settings) -> None:
        given = settings.with_flags({} if self.master is None else {"spark.master": self.master})
        spark = session("a plain job", settings=given)
        connection = Connection.to(self.bootstrap_servers)
        reader = spark.readStream.format("kafka").options(**connection.spark())
        reader = reader.option("subscribe", self.topic).option("startingOffsets", "earliest")
        reader = reader.options(**(self.options or {}))
        raw = reader.load()
        writer = (self._windows(raw) if self.windows else raw).writeStream
        writer = writer.outputMode("update") if self.windows else writer
        writer = writer.foreachBatch(self._table if self.table else self._topic)
        query = writer.option("checkpointLocation", self.checkpoint).start()
        signal.signal(signal.SIGTERM, lambda *_: query.stop())
        query.awaitTermination()

    def _table(self, batch: DataFrame, _: int) -> None:
        rows = batch if self.windows else self._decoded(batch)
        if self.by_place:
            rows = batch.selectExpr("shiftleft(CAST(partition AS LONG), 40) + offset AS id")
        if self.by_partition:
            rows.foreachPartition(ByHand(self.dsn or "", self.table or "", self.died))
            return
        url, properties = tuned_jdbc(self.dsn or "")
        rows.write.mode("append").jdbc(url, self.table or "", properties=properties)
        self._die()

    def _decoded(self, raw: DataFrame) -> DataFrame:
        value = f.from_json(f.col("value").cast("string"), SCHEMA, {"mode": self.mode})
        return raw.select(value.alias("v")).select("v.*")

    def _windows(self, raw: DataFrame) -> DataFrame:
        timed = self._decoded(raw).withWatermark("at", "5 seconds")
        counts = timed.groupBy(f.window("at", "5 seconds")).count()
        return counts.selectExpr("unix_timestamp(window.start) AS id", "count AS n")

    def _topic(self, batch: DataFrame, _: int) -> None:
        writer = batch.select("key", "value").write.format("kafka")
        writer = writer.options(**Connection.to(self.bootstrap_servers).spark())
        writer.option("topic", self.to_topic or "").save()
        self._die()

    def _die(self) -> None:
        if not self.dies or Path(self.died).exists():
            return
        Path(self.died).touch()
        me = psutil.Process(os.getpid())
        for each in [*me.children(recursive=True), me]:
            each.send_signal(signal.SIGKILL)


def has_read(checkpoint: Path, topic: str, ends: Mapping[int, int]) -> bool:
    """Whether a plain job stands at these ends of a topic. One that still has the offsets of an
    older topic of that name may be beyond them, and has read nothing of this one."""
    read = _read_up_to(checkpoint, topic)
    return all(read.get(number, 0) == end for number, end in ends.items())


def _read_up_to(checkpoint: Path, topic: str) -> dict[int, int]:
    """Up to where each partition is done, by the log of a plain job's checkpoint."""
    done = [int(path.name) for path in checkpoint.glob("commits/[0-9]*")]
    if not done:
        return {}
    last = (checkpoint / "offsets" / str(max(done))).read_text().splitlines()[-1]
    return {int(number): offset for number, offset in json.loads(last).get(topic, {}).items()}


@dataclass(frozen=True)
class ByHand:
    """What a task does; once, after its commit and before Spark has heard of it, its executor
    dies."""

    dsn: str
    table: str
    died: str

    def __call__(self, rows: Iterable[Row]) -> None:
        import psycopg

        with psycopg.connect(self.dsn) as connection:
            name = double_quoted(self.table)
            connection.execute(f"CREATE TABLE IF NOT EXISTS public.{name} (id bigint)".encode())
            with connection.cursor() as cursor:
                values = [(row["id"],) for row in rows]
                cursor.executemany(f"INSERT INTO public.{name} VALUES (%s)".encode(), values)
        if values and not Path(self.died).exists():
            Path(self.died).touch()
            # The worker was forked by a daemon, and the daemon was started by the executor.
            psutil.Process().parents()[1].send_signal(signal.SIGKILL)


def tuned_jdbc(dsn: str) -> tuple[str, dict[str, str]]:
    """URL and properties for Spark's JDBC writer, tuned as its users tune it."""
    url, properties = jdbc(dsn)
    return f"{url}?reWriteBatchedInserts=true", {**properties, "batchsize": "10000"}


if __name__ == "__main__":
    PlainJob(**json.loads(sys.argv[1])).run(Settings.load())
