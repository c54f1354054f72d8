"""How long a record takes from its sending until its row can be seen."""

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import psycopg
from pyspark.sql import DataFrame

from benchmarks.spark import raw
from benchmarks.stage import COMMITTED_AT, MiscountedError, Stage
from tallygate.engine.pipeline import Pipeline
from tallygate.engine.status import request_stop
from tallygate.kafka.producer import Producer
from tallygate.lab.drills.baseline_job import tuned_jdbc
from tallygate.spec import Kafka, Postgres
from tallygate.waiting import wait_until

__all__ = ["Latency", "latency", "ours", "plain"]

COLUMNS = "id bigint, sent double precision, _topic text, _partition int, _offset bigint"
SCHEMA = "id long, sent double"
REST, LONGEST = 3.0, 60.0
"""Seconds of rest after the last record, and for what is missing then."""
Stop = Callable[[], None]
Start = Callable[[Stage, str, str, str], Stop]


@dataclass(frozen=True)
class Latency:
    """In seconds."""

    p50: float
    p99: float


def latency(stage: Stage, start: Start, rate: int, seconds: int) -> Latency:
    """At a steady rate; the first third of the time is warm-up."""
    topic = stage.fresh("paced").replace("_", "-")
    stage.topics.create(topic, partitions=stage.work.partitions, replication=1)
    with stage.table("paced", COLUMNS) as table, tempfile.TemporaryDirectory() as folder:
        stop = start(stage, topic, table, f"{folder}/checkpoint")
        try:
            _pace(stage, topic, rate, seconds)
            time.sleep(REST)  # counting is work too, and would be in the way of the last ones
            _wait_for(stage, table, rate * seconds)
        finally:
            stop()
        with psycopg.connect(stage.stack.dsn) as connection:
            rows = connection.execute(
                f"SELECT {COMMITTED_AT} - sent "
                f"FROM public.{table} WHERE sent > (SELECT min(sent) + {seconds / 3} "
                f"FROM public.{table}) ORDER BY 1".encode()
            ).fetchall()
    values = [float(row[0]) for row in rows]
    return Latency(statistics.median(values), values[int(len(values) * 0.99)])


def _wait_for(stage: Stage, table: str, records: int) -> None:
    """Until every record is there. What comes late is the slowest of all: without it, the
    percentiles would be those of the quick."""

    def ids() -> int:
        with psycopg.connect(stage.stack.dsn) as connection:
            query = f"SELECT count(DISTINCT id) FROM public.{table}"
            row = connection.execute(query.encode()).fetchone()
        return int(row[0]) if row else 0

    wait_until(
        lambda: ids() == records,
        LONGEST,
        lambda: f"{table}: {ids()} of {records} records came within {LONGEST:.0f} s.",
        error=MiscountedError,
        every=1,
    )


def _pace(stage: Stage, topic: str, rate: int, seconds: int) -> None:
    with Producer(stage.connection) as producer:
        begin = time.time()
        for number in range(rate * seconds):
            if number % (rate // 100) == 0 and (wait := begin + number / rate - time.time()) > 0:
                producer.poll(0)
                time.sleep(wait)
            producer.send(topic, json.dumps({"id": number, "sent": time.time()}))


def plain(stage: Stage, topic: str, table: str, checkpoint: str) -> Stop:
    """`foreachBatch` with tuned JDBC."""
    url, properties = tuned_jdbc(stage.stack.dsn)
    frame = (
        raw(stage, topic)
        .selectExpr(
            f"from_json(CAST(value AS STRING), '{SCHEMA}') AS event",
            "topic AS _topic",
            "partition AS _partition",
            "offset AS _offset",
        )
        .select("event.*", "_topic", "_partition", "_offset")
    )

    def write(batch: DataFrame, _: int) -> None:
        batch.write.jdbc(url, f"public.{table}", mode="append", properties=properties)

    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    query = writer.start()

    def stop() -> None:
        failed = query.exception()
        query.stop()
        if failed is not None:
            raise failed

    return stop


def ours(stage: Stage, topic: str, table: str, checkpoint: str) -> Stop:
    pipeline = Pipeline(
        name=table,
        source=Kafka(topic, schema=SCHEMA),
        sink=Postgres(table),
        checkpoint=checkpoint,
    )
    thread = ThreadPoolExecutor(1)
    running = thread.submit(pipeline.run, settings=stage.settings, spark=stage.spark)

    def stop() -> None:
        """If the run has failed, its error is raised here."""
        if not running.done():
            request_stop(table, stage.settings)
        running.result(60)
        thread.shutdown()

    return stop
