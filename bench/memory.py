"""Whether a driver's memory stays flat while a pipeline runs batch after batch.

    python bench/memory.py [--batches 1100] [--records 100]

Small batches, so that what a batch leaves behind shows, and not what it carries. After every
hundredth batch the JVM is asked to collect its garbage, and its heap in use and the memory of the
Python process are noted. The first 200 batches are warm-up: classes, compiled code, caches.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import psutil
from ratios import conclude, ratio

from tallygate import Kafka, Pipeline, Postgres, Producer, Settings, Stack, Topics
from tallygate import session as spark_session

WARM_UP, EVERY, MOST_GROWTH = 200, 100, 1.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=1100)
    parser.add_argument("--records", type=int, default=100)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tallygate-bench-") as folder:
        Path(folder).chmod(0o755)
        settings = Settings.load({"state.dir": folder})
        with Stack(brokers=1, purge=True, settings=settings) as stack:
            samples = run(stack, settings, given.batches, given.records)
    settled = [each for each in samples if each["batch"] >= WARM_UP]
    first, last = settled[0], settled[-1]
    conclude(
        "memory",
        [
            ratio(
                f"{what} after batch {last['batch']} against batch {first['batch']}, MiB",
                last[what],
                first[what],
                MOST_GROWTH,
                at_most=True,
                samples=[each[what] for each in samples],
            )
            for what in ("python", "heap")
        ],
    )


def run(stack: Stack, settings: Settings, batches: int, records: int) -> list[dict[str, Any]]:
    Topics(stack.cluster.connection, settings).create("events", partitions=2, replication=1)
    with Producer(stack.cluster.connection) as producer:
        for number in range(batches * records):
            producer.send("events", json.dumps({"id": number}), partition=number % 2)
    spark = spark_session("memory", settings=settings)
    samples: list[dict[str, Any]] = []

    def look(progress: Any) -> None:
        if progress.batch % EVERY:
            return
        jvm: Any = spark.sparkContext._jvm
        jvm.System.gc()
        runtime = jvm.java.lang.Runtime.getRuntime()
        heap = (runtime.totalMemory() - runtime.freeMemory()) / 2**20
        python = psutil.Process().memory_info().rss / 2**20
        samples.append({"batch": progress.batch, "heap": round(heap), "python": round(python)})
        print(f"batch {progress.batch}: {python:.0f} MiB Python, {heap:.0f} MiB heap", flush=True)

    Pipeline(
        name="memory",
        source=Kafka("events", schema="id long", max_records=records),
        sink=Postgres("memory"),
        checkpoint=f"{settings.state_dir}/checkpoint",
    ).run(until="available", settings=settings, spark=spark, told=look)
    spark.stop()
    return samples


if __name__ == "__main__":
    main()
