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

from memory import used
from ratios import conclude, ratio

from tallygate import Kafka, Pipeline, Postgres
from tallygate.audit.audit import audit
from tallygate.audit.verdict import Verdict
from tallygate.bench import ours
from tallygate.bench.stage import SCHEMA, Stage, Work

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
    audited(stage.filled(topic="quarter", rows=stage.work.rows // 4))
    before = used(stage)
    load, rate = audited(stage)
    after = used(stage)
    said = f"audit of {stage.work.rows:,} rows in PostgreSQL, rows/s against the load"
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


def audited(stage: Stage) -> tuple[float, float]:
    """Rows a second of the load after its warm-up, and of the audit."""
    topic, rows = stage.work.topic, stage.work.rows
    source, sink = Kafka(topic, schema=SCHEMA), Postgres(topic)
    ours.run(stage, topic, source, sink)
    load = stage.course_of_table(topic).rate
    with tempfile.TemporaryDirectory() as checkpoint:
        pipeline = Pipeline(name=topic, source=source, sink=sink, checkpoint=checkpoint)
        report = audit(pipeline, settings=stage.settings, spark=stage.spark)
    assert report.verdict is Verdict.VALID, report
    assert report.rows == rows, report
    rate = rows / report.seconds
    print(f"{topic}: loaded {load:,.0f} rows/s, audited {rate:,.0f} rows/s", flush=True)
    return load, rate


if __name__ == "__main__":
    main()
