"""How fast an audit is beside the pipeline whose rows it checks, and whether its memory is flat.

    python -m benchmarks.audit [--rows 2000000] [--batches 5]

The pipeline loads a topic into PostgreSQL; its first batch is warm-up and does not count. Then the
table is audited, all of the time that it takes, and must be found valid. For the memory a pipeline
of a quarter of the rows is audited first: what is compared is the most that the JVM and the Python
process held during each audit, by the kernel's own note. Both are loaded before, so that both
audits begin with what the loads have left behind.
"""

import argparse
import os
import tempfile
from typing import Any

from benchmarks import ours
from benchmarks.meter import Peak
from benchmarks.ratios import conclude, ratio
from benchmarks.stage import SCHEMA, Stage, Work
from tallygate import Kafka, Pipeline, Postgres
from tallygate.auditing.audit import audit
from tallygate.auditing.verdict import Verdict

TARGET, MOST_GROWTH = 1.5, 1.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--batches", type=int, default=5)
    given = parser.parse_args()
    with Stage.opened(Work(given.rows, batches=given.batches)) as stage:
        results = measure(stage)
    conclude("audit", results)


def measure(stage: Stage) -> list[dict[str, Any]]:
    quarter = stage.filled(topic="quarter", rows=stage.work.rows // 4)
    loaded(quarter)
    load = loaded(stage)
    _, fewer = audited(quarter)
    rate, more = audited(stage)
    print(f"loaded {load:,.0f} rows/s, audited {rate:,.0f} rows/s", flush=True)
    said = f"audit of {stage.work.rows:,} rows in PostgreSQL, rows/s against the load"
    return [
        ratio(said, rate, load, TARGET),
        *(
            ratio(
                f"the most that {what} held in an audit of all rows against a quarter, MiB",
                more[what],
                fewer[what],
                MOST_GROWTH,
                at_most=True,
            )
            for what in more
        ),
    ]


def loaded(stage: Stage) -> float:
    """Rows a second, after its warm-up."""
    topic = stage.work.topic
    stage.settle()
    ours.run(stage, topic, Kafka(topic, schema=SCHEMA), Postgres(topic))
    return stage.course_of_table(topic).rate


def audited(stage: Stage) -> tuple[float, dict[str, float]]:
    """Rows a second, and the most memory that was held."""
    topic, rows = stage.work.topic, stage.work.rows
    gateway: Any = stage.spark.sparkContext._gateway
    gateway.jvm.System.gc()
    stage.settle()
    peaks = {"Python": Peak(os.getpid()), "the JVM": Peak(gateway.proc.pid)}
    with tempfile.TemporaryDirectory() as checkpoint:
        source, sink = Kafka(topic, schema=SCHEMA), Postgres(topic)
        pipeline = Pipeline(name=topic, source=source, sink=sink, checkpoint=checkpoint)
        report = audit(pipeline, settings=stage.settings, spark=stage.spark)
    assert report.verdict is Verdict.VALID, report
    assert report.rows == rows, report
    return rows / report.seconds, {what: peak.size for what, peak in peaks.items()}


if __name__ == "__main__":
    main()
