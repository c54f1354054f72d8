"""The plan of a stream over given ranges of offsets, whose tasks read by themselves.

Spark's own reader costs as much as all the rest of a pipeline without state: the JVM reads a
record, turns it into a row, into Arrow, and hands it to the decoding step. That step can read by
itself, given the ranges. So below it the plan is given another leaf: in the place of records, one
row for each range, each in a task of its own, as Spark's reader would have it.

All that is above stays as it was analyzed when the stream was started: a function of the user's is
not called again.

**The rows show no difference.** So it is done only where they are made of the
records alone, by operators that are known. State, static sides and the time of a batch only the
stream has. A random value gets a seed of its own with each batch of a stream; here all batches
would get the same values, and a uuid would be there many times.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tallygate.core.letters import Coordinates
from tallygate.core.offsets import Range, TopicPartition
from tallygate.spark.plan import (
    analyzed,
    copied,
    decodes,
    frame_of,
    function_of,
    list_of,
    name_of,
    seen_besides_records,
    seq_of,
    walk,
)

UNTIL = "until"
"""The column that ranges have and records have not."""
TOPIC_ID = "topic_id"
"""The id that the range's topic had when the range was planned, if it is known."""
APART = "apart"
"""The column that says which offsets of a range are left out."""
_RANGES = (
    f"array<struct<topic: string, partition: int, offset: long, {UNTIL}: long, "
    f"{TOPIC_ID}: string, {APART}: array<long>>>"
)
_SOURCE = "StreamingRelationV2"
_KNOWN = {
    _SOURCE,
    "EventTimeWatermark",
    "Filter",
    "Generate",
    "MapInArrow",
    "MapInPandas",
    "Project",
    "RebalancePartitions",
    "Repartition",
    "RepartitionByExpression",
    "SubqueryAlias",
    "View",
}


def by_records_alone(plan: DataFrame) -> bool:
    """Whether a batch of this stream may be computed by `over_ranges`: its rows are made of the
    records of one source that we decode, and of nothing else."""
    nodes = list(walk(analyzed(plan)))
    names = [name_of(node) for node in nodes]
    return (
        set(names) <= _KNOWN
        and names.count(_SOURCE) == sum(map(decodes, nodes)) == 1
        and seen_besides_records(plan) is None
        and all(each.deterministic() for node in nodes for each in list_of(node.expressions()))
    )


def over_ranges(
    plan: DataFrame,
    ranges: Iterable[Range],
    spark: SparkSession,
    ids: Mapping[str, str],
    apart: Collection[Coordinates] = (),
) -> DataFrame:
    """What the plan gives for these ranges, without the records that are kept `apart`, if their
    topics still have these `ids` when they are read. It is run in a session of the caller's choice:
    the one of a stream's batches has the settings under which the stream is planned."""
    leaf = analyzed(_rows([each for each in ranges if len(each)], ids, spark, apart))
    root = analyzed(plan)
    return frame_of(spark, _replaced(root, leaf, spark))


def ranges_in(rows: pa.RecordBatch) -> tuple[list[Range], dict[str, str], set[Coordinates]]:
    """The ranges of a task, the ids of their topics as far as they are known, and the records of
    them that are left out."""
    ranges, ids, apart = [], {}, set()
    for row in rows.to_pylist():
        topic, partition = row["topic"], row["partition"]
        ranges.append(Range(topic, partition, row["offset"], row[UNTIL]))
        apart |= {(topic, partition, offset) for offset in row[APART] or ()}
        if row[TOPIC_ID] is not None:
            ids[topic] = row[TOPIC_ID]
    return ranges, ids, apart


def _rows(
    ranges: list[Range],
    ids: Mapping[str, str],
    spark: SparkSession,
    apart: Collection[Coordinates],
) -> DataFrame:
    offsets: dict[TopicPartition, list[int]] = defaultdict(list)
    for topic, partition, offset in sorted(apart):
        offsets[topic, partition].append(offset)
    text = json.dumps(
        [
            {
                "topic": each.topic,
                "partition": each.partition,
                "offset": each.start,
                UNTIL: each.until,
                TOPIC_ID: ids.get(each.topic),
                APART: offsets[each.topic_partition],
            }
            for each in ranges
        ]
    )
    numbers = spark.range(0, len(ranges), 1, len(ranges)).toDF("number")
    rows = numbers.selectExpr(f"from_json('{text}', '{_RANGES}')[number] AS range")
    return rows.select("range.*")


def _replaced(node: Any, leaf: Any, spark: SparkSession) -> Any:
    if decodes(node):
        step = _function(node, list_of(leaf.output()), spark)
        return copied(spark, node.withNewChildren(seq_of(spark, [leaf])), function_of(node), step)
    children = [_replaced(child, leaf, spark) for child in list_of(node.children())]
    return node.withNewChildren(seq_of(spark, children)) if children else node


def _function(step: Any, columns: list[Any], spark: SparkSession) -> Any:
    """The step's function. It is given whole rows: what it names as arguments only has to be
    there, and as many."""
    function = function_of(step)
    wanted = range(function.children().size())
    return function.withNewChildren(seq_of(spark, [columns[i % len(columns)] for i in wanted]))
