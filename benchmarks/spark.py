"""What Spark brings, and what its users make of it by hand."""

import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from types import MappingProxyType

import psycopg
from pyspark.sql import DataFrame

from benchmarks.course import Course
from benchmarks.stage import SCHEMA, Stage
from tallygate.lab.drills.baseline_job import tuned_jdbc
from tallygate.postgres.connect import jdbc
from tallygate.spark.kafka_options import READING

__all__ = [
    "WINDOWS",
    "as_it_comes",
    "files",
    "larger_polls",
    "merged",
    "nothing",
    "own_sink",
    "raw",
    "tuned",
    "with_sql",
]

WINDOWS = """
    SELECT window.start AS start, account, count(*) AS payments, sum(amount) AS total
    FROM (SELECT timestamp_seconds(id DIV 100) AS at, account % 50 AS account, amount FROM source)
    GROUP BY window(at, '1 minute'), account
"""


def nothing(stage: Stage) -> Course:
    """`from_json` into the `noop` sink: what reading and decoding alone cost Spark."""
    write = lambda batch, _: batch.write.format("noop").mode("append").save()  # noqa: E731
    return _query(stage, _decoded(stage), write)


def as_it_comes(stage: Stage) -> Course:
    return _jdbc(stage, _decoded(stage), *jdbc(stage.stack.dsn))


def tuned(stage: Stage) -> Course:
    return _jdbc(stage, _decoded(stage), *tuned_jdbc(stage.stack.dsn))


def larger_polls(stage: Stage) -> Course:
    """With what our pipelines tell Spark's reader: no page recommends it, and anyone can set it."""
    return _jdbc(stage, _decoded(stage, READING), *tuned_jdbc(stage.stack.dsn))


def with_sql(stage: Stage) -> Course:
    """The same selection that the SQL of our contender makes."""
    return _jdbc(stage, _decoded(stage).where("id >= 0"), *tuned_jdbc(stage.stack.dsn))


def merged(stage: Stage) -> Course:
    """The usual way to an upsert: a staging table by JDBC, then MERGE."""
    url, properties = tuned_jdbc(stage.stack.dsn)
    columns = (
        "start timestamptz, account bigint, payments bigint, total double precision, "
        "PRIMARY KEY (start, account)"
    )
    _decoded(stage).createOrReplaceTempView("source")
    frame = stage.spark.sql(WINDOWS)
    with (
        stage.table("merged", columns) as table,
        stage.table("staging") as staging,
        psycopg.connect(stage.stack.dsn, autocommit=True) as connection,
    ):

        def write(batch: DataFrame, _: int) -> None:
            batch.write.jdbc(url, staging, mode="overwrite", properties=properties)
            connection.execute(
                f"MERGE INTO {table} AS t USING {staging} AS s "
                "ON t.start = s.start AND t.account = s.account WHEN MATCHED THEN UPDATE SET "
                "payments = s.payments, total = s.total WHEN NOT MATCHED THEN INSERT "
                "VALUES (s.start, s.account, s.payments, s.total)".encode()
            )

        course = _query(stage, frame, write, mode="update")
        stage.check_windows(table)
    return course


def files(stage: Stage) -> Course:
    """Spark's own file sink, which only Spark can read without duplicates."""
    with tempfile.TemporaryDirectory() as folder:
        query = (
            _decoded(stage)
            .writeStream.format("parquet")
            .option("path", f"{folder}/rows")
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        ends = [
            datetime.fromisoformat(each["timestamp"]).timestamp()
            + each["durationMs"]["triggerExecution"] / 1000
            for each in query.recentProgress
        ]
        stage.check_files(f"{folder}/rows")
    return Course.of_batches(ends, stage.work.size, stage.work.rows)


def own_sink(stage: Stage) -> Course:
    """Spark's own Kafka sink; keys and values as they are."""
    topic = stage.target("spark")
    options = {**stage.connection.spark(), "topic": topic}

    def write(batch: DataFrame, _: int) -> None:
        batch.write.format("kafka").options(**options).save()

    _query(stage, raw(stage).select("key", "value"), write)
    return stage.course_of_topic(topic)


def raw(
    stage: Stage, topic: str | None = None, options: Mapping[str, str] = MappingProxyType({})
) -> DataFrame:
    """Records as Kafka has them."""
    return (
        stage.spark.readStream.format("kafka")
        .options(**stage.connection.spark())
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", topic or stage.work.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", stage.work.size)
        .options(**options)
        .load()
    )


def _decoded(stage: Stage, options: Mapping[str, str] = MappingProxyType({})) -> DataFrame:
    text = f"from_json(CAST(value AS STRING), '{SCHEMA}') AS event"
    return raw(stage, options=options).selectExpr(text).select("event.*")


def _jdbc(stage: Stage, frame: DataFrame, url: str, properties: dict[str, str]) -> Course:
    with stage.table("jdbc") as table:

        def write(batch: DataFrame, _: int) -> None:
            batch.write.jdbc(url, table, mode="append", properties=properties)

        _query(stage, frame, write)
        return stage.course_of_table(table)


def _query(
    stage: Stage,
    frame: DataFrame,
    write: Callable[[DataFrame, int], None],
    mode: str = "append",
) -> Course:
    """A plain `foreachBatch`, and when its batches ended."""
    ends: list[float] = []

    def each(batch: DataFrame, number: int) -> None:
        write(batch, number)
        ends.append(time.time())

    with tempfile.TemporaryDirectory() as checkpoint:
        writer = frame.writeStream.foreachBatch(each).outputMode(mode)
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        writer.start().awaitTermination()
    return Course.of_batches(ends, stage.work.size, stage.work.rows)
