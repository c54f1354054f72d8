"""Whether memory stays flat while keys pass through a watermark.

    python -m benchmarks.state [--keys 5000000] [--batches 15]

As many keys as `--keys` pass through a dedup with a watermark of 10 minutes, in batches of equal
size; the driver's memory (it runs the tasks too) after the last third is compared with that after
the first.
"""

import argparse
import tempfile
from typing import Any

import psutil
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from benchmarks.ratios import conclude, ratio
from benchmarks.stage import SCHEMA, Stage, Work
from tallygate import Kafka, Parquet, Pipeline

MOST_GROWTH = 1.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=5_000_000)
    parser.add_argument("--batches", type=int, default=15)
    given = parser.parse_args()
    with Stage.opened(Work(given.keys, batches=given.batches)) as stage:
        sizes = samples(stage)
    said = f"memory while {given.keys:,} keys pass through a watermark, MiB"
    third = given.batches // 3
    last, first = max(sizes[-third:]), max(sizes[:third])
    conclude("state", [ratio(said, last, first, MOST_GROWTH, at_most=True, samples=sizes)])


def samples(stage: Stage) -> list[float]:
    """Mebibytes of the JVM, Python and its workers after each batch."""
    sizes: list[float] = []

    def look(_: Any) -> None:
        family = [psutil.Process(), *psutil.Process().children(recursive=True)]
        used = sum(each.memory_info().rss for each in family if each.is_running())
        sizes.append(round(used / 2**20))
        print(f"batch {len(sizes)}: {sizes[-1]:,.0f} MiB", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        Pipeline(
            name="state",
            source=Kafka(stage.work.topic, schema=SCHEMA, max_records=stage.work.size),
            transform=keyed,
            sink=Parquet(f"{folder}/keys"),
            checkpoint=f"{folder}/checkpoint",
        ).run(until="available", settings=stage.settings, spark=stage.spark, on_progress=look)
    return sizes


def keyed(source: DataFrame) -> DataFrame:
    at = f.timestamp_seconds(f.col("id") / 500)
    made = source.select(f.col("id").alias("key"), at.alias("at"))
    return made.withWatermark("at", "10 minutes").dropDuplicatesWithinWatermark(["key"])


if __name__ == "__main__":
    main()
