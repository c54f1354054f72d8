"""The demo: real brokers, a real database, a real Spark query, started, used and stopped.

This is the plain way that everybody begins with: `foreachBatch` and JDBC. It delivers at least
once: kill it at the wrong moment and rows come twice.
"""

import json
import os
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tallygate.errors import TallygateError
from tallygate.kafka.connection import Connection
from tallygate.kafka.producer import Producer
from tallygate.kafka.topics import Topics
from tallygate.postgres.connecting import connect, jdbc
from tallygate.progress import Progress
from tallygate.settings import Settings
from tallygate.spark.session import session
from tallygate.stack import Stack

__all__ = ["run", "tuned_jdbc"]

TOPIC = TABLE = "payments"
SCHEMA = "id long, account long, amount double, at string"


def run(events: int, settings: Settings, progress: Progress) -> Iterator[str]:
    """Run the demo, yielding a line for each thing done; everything is stopped at the end."""
    stack = Stack(f"demo-{os.getpid()}", purge=True, settings=settings)
    started = time.monotonic()
    spark = None
    try:
        stack.up(progress=progress)
        yield _said("3 Kafka brokers and PostgreSQL are up", started)
        connection = stack.cluster.connection
        Topics(connection, settings).create(TOPIC, partitions=4)
        started = time.monotonic()
        load(connection, events, progress)
        yield _said(f"{events:,} events are in topic {TOPIC!r}", started)
        started = time.monotonic()
        spark = session("tallygate demo", settings=settings, progress=progress)
        yield _said("Spark is up", started)
        started = time.monotonic()
        stream(spark, connection, stack.dsn, progress)
        with connect(stack.dsn) as database:
            counted = database.execute(f"SELECT count(*), count(DISTINCT id) FROM {TABLE}")
            rows, distinct = counted.fetchone() or (0, 0)
        yield _said(f"{rows:,} rows ({distinct:,} distinct) are in table {TABLE!r}", started)
        if not rows == distinct == events:
            raise TallygateError(f"{events:,} events in, but {rows:,} rows out.")
        yield f"Result: {events:,} events in, {rows:,} rows out: each event is there once."
    finally:
        if spark is not None:
            spark.stop()
        stack.down(purge=True, progress=progress)
    yield "Everything is stopped."


def load(connection: Connection, events: int, progress: Progress) -> None:
    """Produce payments with an idempotent producer."""
    producer = Producer(connection, compression="lz4")
    chance = random.Random(7)
    for number in range(events):
        account = chance.randrange(1000)
        event = {
            "id": number,
            "account": account,
            "amount": round(chance.uniform(1, 500), 2),
            "at": "2026-01-01T00:00:00Z",
        }
        producer.send(TOPIC, json.dumps(event), key=str(account))
        if number % 5000 == 0:
            progress(f"Loading: {number:,} of {events:,}")
    producer.close()


def stream(spark: SparkSession, connection: Connection, dsn: str, progress: Progress) -> None:
    """Run the query until it has read all that is there."""
    url, properties = tuned_jdbc(dsn)

    def write(batch: DataFrame, number: int) -> None:
        progress(f"Streaming: batch {number}")
        batch.write.jdbc(url, TABLE, mode="append", properties=properties)

    source = (
        spark.readStream.format("kafka")
        .options(**connection.spark())
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 50_000)
        .load()
    )
    parsed = source.selectExpr(f"from_json(CAST(value AS STRING), '{SCHEMA}') AS event")
    with tempfile.TemporaryDirectory(prefix="tallygate-demo-") as checkpoint:
        query = (
            parsed.select("event.*")
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(Path(checkpoint)))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


def tuned_jdbc(dsn: str) -> tuple[str, dict[str, str]]:
    """URL and properties for Spark's JDBC writer, tuned as its users tune it."""
    url, properties = jdbc(dsn)
    return f"{url}?reWriteBatchedInserts=true", {**properties, "batchsize": "10000"}


def _said(what: str, since: float) -> str:
    return f"{what} ({time.monotonic() - since:.1f} s)."
