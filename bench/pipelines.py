"""Exactly-once pipelines beside what Spark brings, on one stack, one topic and one session.

    python bench/pipelines.py [--rows 2000000] [--batches 5] [--rounds 3] [--latency-seconds 30]

Each contender reads the whole topic in batches of equal size; the first batch is warm-up and does
not count. Contenders take turns, round by round, and medians are compared as ratios. Every result
in PostgreSQL is counted: rows in = rows out, or it does not count.

Latency: records with the time of their sending are produced at 2,000 a second, and the difference
to the time of the row's transaction is taken in the table.
"""

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psycopg
from pyspark.sql import DataFrame, SparkSession
from ratios import conclude, ratio

from tallygate import (
    Kafka,
    KafkaSink,
    Parquet,
    Pipeline,
    Postgres,
    Producer,
    Settings,
    Stack,
    Topics,
)
from tallygate import session as spark_session
from tallygate.drills.plain import tuned_jdbc
from tallygate.kafka.loader import Load, load
from tallygate.kafka.producer import producer_properties
from tallygate.records.files import FileFormat

TOPIC, PARTITIONS = "events", 4
SCHEMA = "id long, account long, amount double, at string, note string"
TARGETS = (
    ("PostgreSQL append, rows/s against tuned JDBC", "ours", "jdbc", 1.1),
    ("PostgreSQL append, rows/s against noop", "ours", "noop", 0.6),
    ("PostgreSQL append with SQL, rows/s against tuned JDBC", "ours_sql", "jdbc", 1.1),
    ("Kafka to Kafka, rows/s against Spark's sink", "ours_kafka", "spark_kafka", 0.75),
    ("the same with the source as a header", "ours_kafka_traced", "spark_kafka", 0.75),
)


class Bench:
    def __init__(self, stack: Stack, spark: SparkSession, settings: Settings, rows: int) -> None:
        self.stack, self.spark, self.settings, self.rows = stack, spark, settings, rows
        self.connection = stack.cluster.connection
        self.topics = Topics(self.connection, settings)
        self.number = 0
        self.size = rows

    @classmethod
    @contextmanager
    def opened(cls, rows: int, batches: int) -> Iterator[Self]:
        """On a stack and a session of its own, with the topic filled."""
        with tempfile.TemporaryDirectory(prefix="tallygate-bench-") as folder:
            Path(folder).chmod(0o755)
            settings = Settings.load({"state.dir": folder})
            with Stack(brokers=1, purge=True, settings=settings) as stack:
                spark = spark_session("bench", settings=settings)
                bench = cls(stack, spark, settings, rows)
                bench.size = rows // batches
                bench.fill(TOPIC)
                yield bench
                spark.stop()

    def fill(self, topic: str) -> None:
        self.topics.create(topic, partitions=PARTITIONS, replication=1)
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            for number in range(self.rows):
                file.write(
                    f'{{"id":{number},"account":{number % 1000},"amount":{number / 4},'
                    f'"at":"2026-01-01T00:00:00Z","note":"note {number % 97:012d}"}}\n'
                )
            file.flush()
            properties = producer_properties(compression="lz4")
            load(Load(topic, file.name, FileFormat.lines, properties=properties), self.connection)

    def fresh(self, prefix: str) -> str:
        self.number += 1
        return f"{prefix}_{self.number}"

    def raw(self, topic: str = TOPIC) -> DataFrame:
        return (
            self.spark.readStream.format("kafka")
            .options(**self.connection.spark())
            .option("kafka.isolation.level", "read_committed")
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", self.size)
            .load()
        )

    def parsed(self, topic: str = TOPIC) -> DataFrame:
        text = f"from_json(CAST(value AS STRING), '{SCHEMA}') AS event"
        return self.raw(topic).selectExpr(text).select("event.*")

    def query(
        self, frame: DataFrame, write: Callable[[DataFrame, int], None], mode: str = "append"
    ) -> list[float]:
        """The times between the ends of batches, of a plain foreachBatch."""
        ends: list[float] = []

        def each(batch: DataFrame, number: int) -> None:
            write(batch, number)
            ends.append(time.perf_counter())

        with tempfile.TemporaryDirectory() as checkpoint:
            writer = frame.writeStream.foreachBatch(each).outputMode(mode)
            writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
            writer.start().awaitTermination()
        return ends

    def rate(self, ends: list[float]) -> float:
        """Rows a second after the first batch."""
        return (self.rows - self.size) / (ends[-1] - ends[0])

    # Kafka to nothing and to PostgreSQL

    def noop(self) -> float:
        write = lambda batch, _: batch.write.format("noop").mode("append").save()  # noqa: E731
        return self.rate(self.query(self.parsed(), write))

    def jdbc(self) -> float:
        table = self.fresh("jdbc")
        url, properties = tuned_jdbc(self.stack.dsn)

        def write(batch: DataFrame, _: int) -> None:
            batch.write.jdbc(url, table, mode="append", properties=properties)

        rate = self.rate(self.query(self.parsed(), write))
        self.check(table)
        return rate

    def ours(self, transform: str | None = None) -> float:
        table = self.fresh("ours")
        rate = self.run(table, Postgres(table), transform)
        self.check(table)
        return rate

    def ours_sql(self) -> float:
        return self.ours("SELECT id, account, amount, at, note FROM source WHERE id >= 0")

    def ours_kafka_traced(self) -> float:
        """With a header on each record that says where it came from."""
        return self.ours_kafka(coordinates=True)

    def run(
        self,
        name: str,
        sink: Postgres | KafkaSink | Parquet,
        transform: str | None,
        source: Kafka | None = None,
    ) -> float:
        source = source or Kafka(TOPIC, schema=SCHEMA)
        ends: list[float] = []
        with tempfile.TemporaryDirectory() as checkpoint:
            Pipeline(
                name=name,
                source=source.model_copy(update={"max_records": self.size}),
                transform=transform,
                sink=sink,
                checkpoint=f"{checkpoint}/c",
            ).run(
                until="available",
                settings=self.settings,
                spark=self.spark,
                told=lambda _: ends.append(time.perf_counter()),
            )
        return self.rate(ends)

    def check(self, table: str) -> None:
        with psycopg.connect(self.stack.dsn, autocommit=True) as connection:
            query = f"SELECT count(*), count(DISTINCT id) FROM {table}"
            found = connection.execute(query.encode()).fetchone()
            assert found == (self.rows, self.rows), f"{table}: {found} of {self.rows} rows"
            connection.execute(f"DROP TABLE {table}".encode())

    # Kafka to Kafka

    def target(self, prefix: str) -> str:
        name = self.fresh(prefix).replace("_", "-")
        self.topics.create(name, partitions=PARTITIONS, replication=1)
        return name

    def spark_kafka(self) -> float:
        target = self.target("spark")

        def write(batch: DataFrame, _: int) -> None:
            batch.write.format("kafka").options(**self.connection.spark()).option(
                "topic", target
            ).save()

        rate = self.rate(self.query(self.raw().select("key", "value"), write))
        self.topics.delete([target])
        return rate

    def ours_kafka(self, coordinates: bool = False) -> float:
        """As Spark's: keys and values as they are, nothing is decoded."""
        target = self.target("ours")
        sink, source = KafkaSink(target, coordinates=coordinates), Kafka(TOPIC, format="bytes")
        rate = self.run(target, sink, None, source)
        self.topics.delete([target])
        return rate

    # Latency

    def latency(self, start: Callable[[str, str, str], Any], seconds: int) -> tuple[float, float]:
        """The median and the 99th percentile, in seconds, at 2,000 records a second."""
        topic, table = self.fresh("slow").replace("_", "-"), self.fresh("slow")
        self.topics.create(topic, partitions=PARTITIONS, replication=1)
        with psycopg.connect(self.stack.dsn, autocommit=True) as connection:
            connection.execute(
                f"CREATE TABLE public.{table} (sent double precision, _topic text, _partition int, "
                "_offset bigint, seen double precision DEFAULT "
                "extract(epoch FROM clock_timestamp()))".encode()
            )
        with tempfile.TemporaryDirectory() as checkpoint:
            stop = start(topic, table, f"{checkpoint}/c")
            self.pace(topic, seconds)
            time.sleep(3)
            stop()
        with psycopg.connect(self.stack.dsn) as connection:
            rows = connection.execute(
                f"SELECT seen - sent FROM public.{table} WHERE sent > "
                f"(SELECT min(sent) + {seconds / 3} FROM public.{table}) ORDER BY 1".encode()
            ).fetchall()
        values = [float(row[0]) for row in rows]
        return statistics.median(values), values[int(len(values) * 0.99)]

    def pace(self, topic: str, seconds: int) -> None:
        with Producer(self.connection) as producer:
            begin = time.time()
            for number in range(2000 * seconds):
                due = begin + number / 2000
                if number % 20 == 0 and (wait := due - time.time()) > 0:
                    producer.poll(0)
                    time.sleep(wait)
                producer.send(topic, json.dumps({"sent": time.time()}))

    def slow_jdbc(self, topic: str, table: str, checkpoint: str) -> Callable[[], None]:
        url, properties = tuned_jdbc(self.stack.dsn)
        frame = self.raw(topic).selectExpr(
            "from_json(CAST(value AS STRING), 'sent double').sent AS sent",
            "topic AS _topic",
            "partition AS _partition",
            "offset AS _offset",
        )

        def write(batch: DataFrame, _: int) -> None:
            batch.write.jdbc(url, f"public.{table}", mode="append", properties=properties)

        writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
        query = writer.start()

        def stop() -> None:
            assert query.exception() is None, query.exception()
            query.stop()

        return stop

    def slow_ours(self, topic: str, table: str, checkpoint: str) -> Callable[[], None]:
        pipeline = Pipeline(
            name=table,
            source=Kafka(topic, schema="sent double"),
            sink=Postgres(table),
            checkpoint=checkpoint,
        )
        done = threading.Thread(
            target=lambda: pipeline.run(settings=self.settings, spark=self.spark)
        )
        done.start()

        def stop() -> None:
            from tallygate.pipeline.status import request_stop

            request_stop(table, self.settings)
            done.join(60)

        return stop


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--latency-seconds", type=int, default=30)
    given = parser.parse_args()
    with Bench.opened(given.rows, given.batches) as bench:
        results = measure(bench, given.rounds, given.latency_seconds)
    conclude("pipelines", results)


def measure(bench: Bench, rounds: int, seconds: int) -> list[dict[str, Any]]:
    contenders: dict[str, Callable[[], float]] = {
        "noop": bench.noop,
        "jdbc": bench.jdbc,
        "ours": bench.ours,
        "ours_sql": bench.ours_sql,
        "spark_kafka": bench.spark_kafka,
        "ours_kafka": bench.ours_kafka,
        "ours_kafka_traced": bench.ours_kafka_traced,
    }
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, contender in contenders.items():
            rates[name].append(contender())
            print(f"round {number + 1}: {name} {rates[name][-1]:,.0f} rows/s", flush=True)
    rate = {name: statistics.median(values) for name, values in rates.items() if values}
    results = [
        ratio(said, rate[ours], rate[peer], target) for said, ours, peer, target in TARGETS if rate
    ]
    if seconds:
        peer, ours = (bench.latency(way, seconds) for way in (bench.slow_jdbc, bench.slow_ours))
        for name, place in (("p50", 0), ("p99", 1)):
            said = f"latency {name} at 2,000/s, against plain foreachBatch JDBC (s)"
            results.append(ratio(said, ours[place], peer[place], 1.2, at_most=True))
    return results


if __name__ == "__main__":
    main()
