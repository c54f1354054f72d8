"""The source once more, over exactly the ranges that the ledger claims, through the transform in
batch mode."""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from tallygate.errors import ConfigError
from tallygate.kafka.connection import Connection
from tallygate.ledger.letters import Letter
from tallygate.ledger.ranges import Place, Range
from tallygate.pipeline.pipeline import Pipeline
from tallygate.pipeline.source import decoded
from tallygate.pipeline.static import Statics
from tallygate.pipeline.transform import transformed
from tallygate.records.decoding import COORDINATES, METADATA
from tallygate.spark.checkpoint import Checkpoint
from tallygate.spec import Kafka

__all__ = ["Noted", "latest_by_key", "recomputed", "source_records"]

_RAW = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "timestampType int"
)
_HEADERS = "headers array<struct<key: string, value: binary>>"


@dataclass(frozen=True)
class Noted:
    """Where the decoding step leaves the coordinates of what is unfit; a task that is repeated
    notes them again, under the same coordinates."""

    folder: str

    def keep(self, letters: list[Letter]) -> None:
        lines = (json.dumps([each.topic, each.partition, each.offset]) for each in letters)
        (Path(self.folder) / f"{uuid.uuid4().hex}.jsonl").write_text("\n".join(lines))

    def found(self) -> set[tuple[str, int, int]]:
        return {
            (topic, partition, offset)
            for file in Path(self.folder).iterdir()
            for topic, partition, offset in map(json.loads, file.read_text().splitlines())
        }


def source_records(
    spark: SparkSession, source: Kafka, connection: Connection, ranges: Sequence[Range]
) -> DataFrame:
    """The records of these ranges, as Kafka has them."""
    mine = [each for each in ranges if source.pattern or each.topic in source.topic]
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for each in mine:
        starts.setdefault(each.topic, {})[str(each.partition)] = each.start
        ends.setdefault(each.topic, {})[str(each.partition)] = each.until
    reader = spark.read.format("kafka").options(**connection.spark())
    reader = reader.option("kafka.isolation.level", "read_committed")
    if source.headers:
        reader = reader.option("includeHeaders", "true")
    if not starts:
        return spark.createDataFrame([], _RAW + (f", {_HEADERS}" if source.headers else ""))
    assigned = {topic: sorted(map(int, partitions)) for topic, partitions in starts.items()}
    return (
        reader.option("assign", json.dumps(assigned))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .load()
    )


def recomputed(
    pipeline: Pipeline,
    spark: SparkSession,
    connection: Connection,
    ranges: Mapping[Place, Range],
    noted: Noted,
    statics: Statics,
    checkpoint: Checkpoint,
) -> DataFrame:
    """What the transform gives from these records."""
    views = {}
    for name, source in pipeline.streams.items():
        if not isinstance(source, Kafka):
            raise ConfigError(
                f"{name} is not Kafka: what was read from it cannot be read again, so it cannot "
                "be audited."
            )
        raw = source_records(spark, source, connection, list(ranges.values()))
        views[name] = decoded(raw, source, noted)
    if pipeline.transform is None:
        extra = set(METADATA.names) - set(COORDINATES)
        return next(iter(views.values())).drop(*extra)
    return transformed(spark, pipeline, {**views, **statics.seen(checkpoint)})


def latest_by_key(frame: DataFrame, key: Sequence[str]) -> DataFrame:
    """Of several rows of one key the last record's, as an upsert keeps them."""
    order = Window.partitionBy(*key).orderBy(f.col("_offset").desc())
    ranked = frame.withColumn("_rank", f.row_number().over(order))
    return ranked.where("_rank = 1").drop("_rank")
