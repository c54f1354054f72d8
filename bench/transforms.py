"""Windowed counts by upsert, Parquet files, and state that does not grow, beside the usual ways.

    python bench/transforms.py [--rows 2000000] [--batches 5] [--rounds 3] [--keys 5000000]

`merge`: the hand-made way to an upsert that looks exactly-once: `foreachBatch` writes a staging
table by JDBC and runs a MERGE. `files`: Spark's own file sink. The first batch is warm-up;
contenders take turns; rows in the result are counted, or it does not count.

State: as many keys as `--keys` pass through a dedup with a watermark of 10 minutes, in batches of
equal size; the driver's memory (it runs the tasks too) after the last third is compared with that
after the first.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable
from typing import Any

import psutil
import psycopg
from pipelines import SCHEMA, Bench
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from ratios import conclude, ratio

from tallygate import Kafka, Parquet, Pipeline, Postgres
from tallygate.drills.plain import tuned_jdbc

MANY, BATCHES = "many", 15
WINDOWS = """
    SELECT window.start AS start, account, count(*) AS payments, sum(amount) AS total
    FROM (SELECT timestamp_seconds(id DIV 100) AS at, account % 50 AS account, amount FROM source)
    GROUP BY window(at, '1 minute'), account
"""


class Transforms(Bench):
    def windows(self) -> float:
        table = self.fresh("windows")
        sink = Postgres(table, mode="upsert", key=("start", "account"))
        rate = self.run(table, sink, WINDOWS)
        self.counted(table)
        return rate

    def merge(self) -> float:
        table, staging = self.fresh("merged"), self.fresh("staging")
        url, properties = tuned_jdbc(self.stack.dsn)
        columns = "start timestamptz, account bigint, payments bigint, total double precision"
        with psycopg.connect(self.stack.dsn, autocommit=True) as connection:
            connection.execute(
                f"CREATE TABLE {table} ({columns}, PRIMARY KEY (start, account))".encode()
            )

            def write(batch: DataFrame, _: int) -> None:
                batch.write.jdbc(url, staging, mode="overwrite", properties=properties)
                connection.execute(
                    f"MERGE INTO {table} AS t USING {staging} AS s "
                    "ON t.start = s.start AND t.account = s.account WHEN MATCHED THEN UPDATE SET "
                    "payments = s.payments, total = s.total WHEN NOT MATCHED THEN INSERT "
                    "VALUES (s.start, s.account, s.payments, s.total)".encode()
                )

            self.parsed().createOrReplaceTempView("source")
            frame = self.spark.sql(WINDOWS)
            rate = self.rate(self.query(frame, write, mode="update"))
        self.counted(table)
        return rate

    def counted(self, table: str) -> None:
        with psycopg.connect(self.stack.dsn, autocommit=True) as connection:
            found = connection.execute(f"SELECT sum(payments) FROM {table}".encode()).fetchone()
            assert found == (self.rows,), f"{table}: {found} of {self.rows} rows"
            connection.execute(f"DROP TABLE {table}".encode())

    def parquet(self) -> float:
        with tempfile.TemporaryDirectory() as folder:
            name = self.fresh("parquet")
            rate = self.run(name, Parquet(f"{folder}/rows"), None)
            found = self.spark.read.parquet(f"{folder}/rows").count()
            assert found == self.rows, f"{found} of {self.rows} rows"
        return rate

    def files(self) -> float:
        with tempfile.TemporaryDirectory() as folder:
            query = (
                self.parsed()
                .writeStream.format("parquet")
                .option("path", f"{folder}/rows")
                .option("checkpointLocation", f"{folder}/checkpoint")
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            seconds = [
                each["durationMs"]["triggerExecution"] / 1000 for each in query.recentProgress
            ]
            assert self.spark.read.parquet(f"{folder}/rows").count() == self.rows
        return (self.rows - self.size) / sum(seconds[1:])

    def memory(self, keys: int) -> dict[str, Any]:
        """With a topic of its own, of as many records as there are to be keys."""
        self.rows = keys
        self.fill(MANY)
        sizes = self.state(keys, BATCHES)
        said = f"memory while {keys:,} keys pass through a watermark, MiB"
        third = BATCHES // 3
        last, first = max(sizes[-third:]), max(sizes[:third])
        return ratio(said, last, first, 1.2, at_most=True, samples=sizes)

    def state(self, keys: int, batches: int) -> list[float]:
        """Mebibytes of the JVM, Python and its workers after each batch."""
        sizes: list[float] = []

        def look(_: Any) -> None:
            family = [psutil.Process(), *psutil.Process().children(recursive=True)]
            used = sum(each.memory_info().rss for each in family if each.is_running())
            sizes.append(round(used / 2**20))
            print(f"state: batch {len(sizes)}, {sizes[-1]:,.0f} MiB", flush=True)

        def keyed(source: DataFrame) -> DataFrame:
            number = f.col("id") + f.col("_partition").cast("long") * keys
            at = f.timestamp_seconds(f.col("id") / 500)
            made = source.select(number.alias("key"), at.alias("at"))
            return made.withWatermark("at", "10 minutes").dropDuplicatesWithinWatermark(["key"])

        with tempfile.TemporaryDirectory() as folder:
            Pipeline(
                name=self.fresh("state"),
                source=Kafka(MANY, schema=SCHEMA, max_records=keys // batches),
                transform=keyed,
                sink=Parquet(f"{folder}/keys"),
                checkpoint=f"{folder}/checkpoint",
            ).run(until="available", settings=self.settings, spark=self.spark, told=look)
        return sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keys", type=int, default=5_000_000)
    given = parser.parse_args()
    with Transforms.opened(given.rows, given.batches) as bench:
        results = measure(bench, given.rounds)
        if given.keys:
            results.append(bench.memory(given.keys))
    conclude("transforms", results)


def measure(bench: Transforms, rounds: int) -> list[dict[str, Any]]:
    contenders: dict[str, Callable[[], float]] = {
        "windows": bench.windows,
        "merge": bench.merge,
        "parquet": bench.parquet,
        "files": bench.files,
    }
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, contender in contenders.items():
            rates[name].append(contender())
            print(f"round {number + 1}: {name} {rates[name][-1]:,.0f} rows/s", flush=True)
    rate = {name: statistics.median(values) for name, values in rates.items()}
    return [
        ratio("windowed upsert, rows/s against MERGE by hand", rate["windows"], rate["merge"], 1.2),
        ratio("Parquet, rows/s against Spark's file sink", rate["parquet"], rate["files"], 0.9),
    ]


if __name__ == "__main__":
    main()
