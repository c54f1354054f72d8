"""Records of Kafka read again, over given ranges of offsets."""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tallygate.core.offsets import Range, TopicPartition
from tallygate.kafka.connection import Connection
from tallygate.kafka.fetch import HEADERS, HEADERS_DDL, fetch
from tallygate.spark.kafka_options import READING
from tallygate.spark.plan import FETCHING

_FETCHED = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"
_RAW = f"{_FETCHED}, timestampType int"


def records(
    spark: SparkSession,
    connection: Connection,
    ranges: Iterable[Range],
    *,
    headers: bool = False,
    committed: bool = True,
    beyond_spark: bool = False,
) -> DataFrame:
    """The records of these ranges, as Kafka has them; `committed` leaves out those of transactions
    that were aborted. Those that are `beyond_spark` its own reader cannot read."""
    if beyond_spark and committed:
        return _fetched(spark, connection, [each for each in ranges if len(each)], headers)
    frames = [
        _read(spark, connection, once, headers, committed) for once in rounds(filter(len, ranges))
    ]
    if not frames:
        columns = f"{_RAW}, {HEADERS.name} {HEADERS_DDL}" if headers else _RAW
        return spark.createDataFrame([], columns)
    return reduce(DataFrame.unionByName, frames)


def rounds(ranges: Iterable[Range]) -> list[list[Range]]:
    """The ranges in groups that have each partition once: Spark reads one range of it at a time."""
    found: list[dict[TopicPartition, Range]] = []
    for each in sorted(ranges):
        for group in found:
            if each.topic_partition not in group:
                group[each.topic_partition] = each
                break
        else:
            found.append({each.topic_partition: each})
    return [list(group.values()) for group in found]


def _fetched(
    spark: SparkSession, connection: Connection, ranges: list[Range], headers: bool
) -> DataFrame:
    brokers = connection.travelling()

    def run(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for block in numbers:
            for number in block.column("id").to_pylist():
                yield from fetch([ranges[number]], brokers, headers=headers)

    run.__name__ = FETCHING
    columns = f"{_FETCHED}, {HEADERS.name} {HEADERS_DDL}" if headers else _FETCHED
    return spark.range(0, len(ranges), 1, max(1, len(ranges))).mapInArrow(run, columns)


def _read(
    spark: SparkSession,
    connection: Connection,
    ranges: Sequence[Range],
    headers: bool,
    committed: bool,
) -> DataFrame:
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for each in ranges:
        starts.setdefault(each.topic, {})[str(each.partition)] = each.start
        ends.setdefault(each.topic, {})[str(each.partition)] = each.until
    assigned = {topic: sorted(map(int, partitions)) for topic, partitions in starts.items()}
    isolation = "read_committed" if committed else "read_uncommitted"
    return (
        spark.read.format("kafka")
        .options(**{**READING, **connection.spark()})
        .option("kafka.isolation.level", isolation)
        .option("includeHeaders", str(headers).lower())
        .option("assign", json.dumps(assigned))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .load()
    )
