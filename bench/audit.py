"""How fast an audit is beside the pipeline whose rows it checks, and whether its memory is flat.

    python bench/audit.py [--rows 2000000] [--batches 5]

The pipeline loads a topic into PostgreSQL; its first batch is warm-up and does not count. Then the
table is audited, all of the time that it takes, and must be found valid. For the memory a pipeline
of a quarter of the rows is audited first: afterwards, and after the larger one, the JVM is asked to
collect its garbage, and its heap in use and the memory of the Python process are compared.
"""

import argparse
import tempfile
from typing import Any

import psutil
from pipelines import SCHEMA, TOPIC, Bench
from ratios import conclude, ratio

from tallygate import Kafka, Pipeline, Postgres
from tallygate.audit.audit import audit
from tallygate.audit.verdict import Verdict

TARGET, MOST_GROWTH = 1.5, 1.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--batches", type=int, default=5)
    given = parser.parse_args()
    with Bench.opened(given.rows, given.batches) as bench:
        results = measure(bench)
    conclude("audit", results)


def measure(bench: Bench) -> list[dict[str, Any]]:
    quarter = Bench(bench.stack, bench.spark, bench.settings, bench.rows // 4)
    quarter.size = bench.size // 4
    quarter.fill("quarter")
    audited(quarter, "quarter")
    before = memory(bench)
    load, rate = audited(bench, TOPIC)
    after = memory(bench)
    said = f"audit of {bench.rows:,} rows in PostgreSQL, rows/s against the load"
    return [
        ratio(said, rate, load, TARGET),
        *(
            ratio(
                f"{what} after auditing all rows against a quarter, MiB",
                after[what],
                before[what],
                MOST_GROWTH,
                at_most=True,
            )
            for what in ("python", "heap")
        ),
    ]


def audited(bench: Bench, topic: str) -> tuple[float, float]:
    """Rows a second of the load after its first batch, and of the audit."""
    source, sink = Kafka(topic, schema=SCHEMA), Postgres(topic)
    load = bench.run(topic, sink, None, source)
    with tempfile.TemporaryDirectory() as checkpoint:
        pipeline = Pipeline(name=topic, source=source, sink=sink, checkpoint=checkpoint)
        report = audit(pipeline, settings=bench.settings, spark=bench.spark)
    assert report.verdict is Verdict.VALID, report
    assert report.rows == bench.rows, report
    rate = report.rows / report.seconds
    print(f"{topic}: loaded {load:,.0f} rows/s, audited {rate:,.0f} rows/s", flush=True)
    return load, rate


def memory(bench: Bench) -> dict[str, float]:
    jvm: Any = bench.spark.sparkContext._jvm
    jvm.System.gc()
    runtime = jvm.java.lang.Runtime.getRuntime()
    return {
        "heap": (runtime.totalMemory() - runtime.freeMemory()) / 2**20,
        "python": psutil.Process().memory_info().rss / 2**20,
    }


if __name__ == "__main__":
    main()
