"""Tallygate's pipelines, by each way of commit."""

import tempfile
import time
from collections.abc import Callable

from benchmarks.course import Course
from benchmarks.spark import WINDOWS
from benchmarks.stage import SCHEMA, Stage
from tallygate.engine.pipeline import Pipeline
from tallygate.engine.progress import Progress
from tallygate.spec import Kafka, KafkaSink, Parquet, Postgres

__all__ = ["append", "into_files", "pass_on", "run", "staged", "windows", "with_sql"]

SELECTED = "SELECT id, account, amount, at, note FROM source WHERE id >= 0"
SHUFFLED = "SELECT /*+ REPARTITION(4, id) */ id, account, amount, at, note FROM source"


def append(stage: Stage) -> Course:
    """No transform: decoded where it is written, a transaction for each partition."""
    return _into_table(stage, None)


def with_sql(stage: Stage) -> Course:
    return _into_table(stage, SELECTED)


def staged(stage: Stage) -> Course:
    """After a shuffle: into a staging table, and from there in one transaction."""
    return _into_table(stage, SHUFFLED)


def pass_on(stage: Stage) -> Course:
    """Keys and values as they are, each record once in the other topic."""
    topic = stage.target("ours")
    run(stage, topic, Kafka(stage.work.topic, format="bytes"), KafkaSink(topic, coordinates=False))
    return stage.course_of_topic(topic)


def windows(stage: Stage) -> Course:
    """Counts by window and account, by upsert; measured by the ends of batches, since a row that
    is written again loses the time at which it was there first."""
    ends: list[float] = []
    with stage.table("ours") as table:
        sink = Postgres(table, mode="upsert", key=("start", "account"))
        source = Kafka(stage.work.topic, schema=SCHEMA)
        run(stage, table, source, sink, WINDOWS, lambda _: ends.append(time.time()))
        stage.check_windows(table)
    return Course.of_batches(ends, stage.work.size, stage.work.rows)


def into_files(stage: Stage) -> Course:
    """Parquet, in which no reader ever sees a duplicate; measured by the ends of batches."""
    ends: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        source, sink = Kafka(stage.work.topic, schema=SCHEMA), Parquet(f"{folder}/rows")
        run(
            stage,
            stage.fresh("files"),
            source,
            sink,
            on_progress=lambda _: ends.append(time.time()),
        )
        stage.check_files(f"{folder}/rows")
    return Course.of_batches(ends, stage.work.size, stage.work.rows)


def run(
    stage: Stage,
    name: str,
    source: Kafka,
    sink: Postgres | KafkaSink | Parquet,
    transform: str | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Pipeline(
            name=name,
            source=source.model_copy(update={"max_records": stage.work.size}),
            transform=transform,
            sink=sink,
            checkpoint=f"{folder}/checkpoint",
        ).run(
            until="available",
            settings=stage.settings,
            spark=stage.spark,
            on_progress=on_progress,
        )


def _into_table(stage: Stage, transform: str | None) -> Course:
    with stage.table("ours") as table:
        run(stage, table, Kafka(stage.work.topic, schema=SCHEMA), Postgres(table), transform)
        return stage.course_of_table(table)
