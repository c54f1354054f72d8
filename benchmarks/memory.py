"""Whether a driver's memory stays flat while a pipeline runs batch after batch.

    python -m benchmarks.memory [--batches 1100] [--records 100]

Small batches, so that what a batch leaves behind shows, and not what it carries. After every
hundredth batch the JVM is asked to collect its garbage, and its heap in use and the memory of the
Python process are noted. The first 200 batches are warm-up: classes, compiled code, caches.
"""

import argparse
from typing import Any

import psutil

from benchmarks import ours
from benchmarks.ratios import conclude, ratio
from benchmarks.stage import SCHEMA, Stage, Work
from tallygate import Kafka, Postgres

WARM_UP, EVERY, MOST_GROWTH = 200, 100, 1.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=1100)
    parser.add_argument("--records", type=int, default=100)
    given = parser.parse_args()
    work = Work(given.batches * given.records, partitions=2, batches=given.batches)
    with Stage.opened(work) as stage:
        samples = run(stage)
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


def run(stage: Stage) -> list[dict[str, Any]]:
    samples: list[dict[str, Any]] = []

    def look(progress: Any) -> None:
        if progress.batch % EVERY == 0:
            found = {name: round(size) for name, size in used(stage).items()}
            samples.append({"batch": progress.batch, **found})
            print(samples[-1], flush=True)

    source = Kafka(stage.work.topic, schema=SCHEMA)
    ours.run(stage, "memory", source, Postgres("memory"), on_progress=look)
    return samples


def used(stage: Stage) -> dict[str, float]:
    """Mebibytes of the Python process, and of the JVM's heap after its garbage was collected."""
    jvm: Any = stage.spark.sparkContext._jvm
    jvm.System.gc()
    runtime = jvm.java.lang.Runtime.getRuntime()
    return {
        "heap": (runtime.totalMemory() - runtime.freeMemory()) / 2**20,
        "python": psutil.Process().memory_info().rss / 2**20,
    }


if __name__ == "__main__":
    main()
