"""What a streaming frame's plan means for its delivery, read before the query starts.

**Narrow** means that every row still belongs to one record: all operators between the source and
the result are known to take one row after the other. Then the coordinates of the record can be
carried to the result, whatever the query selects: the plan is rebuilt with them in every
projection. Everything that is not known to be narrow counts as wide; that is slower, and never
wrong.

A join of the stream with a static side carries the coordinates too, but Spark may shuffle for it:
its rows can be told apart, and are not written partition by partition.

Inside `foreachBatch` it is too late for this: the frame there is a bare scan of rows.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tallygate.core.decoding import COORDINATES
from tallygate.core.offsets import TopicPartition
from tallygate.errors import ConfigError
from tallygate.spark.kafka_options import READING

_NARROW = {"Project", "Filter", "SubqueryAlias", "View", "Generate", "EventTimeWatermark"}
_STATEFUL = {
    "Aggregate",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "Distinct",
    "FlatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState",
    "TransformWithState",
    "TransformWithStateInPandas",
    "TransformWithStateInPySpark",
    "SessionWindow",
}
_SPARING = {
    "Aggregate",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "EventTimeWatermark",
    "Filter",
    "Generate",
    "Join",
    "Project",
    "RebalancePartitions",
    "Repartition",
    "RepartitionByExpression",
}
"""Operators that look at nothing but what their expressions name."""
_RAW = ("topic", "partition", "offset")
DECODING = "tallygate_decoding"
"""The name under which plans have the function of our decoding step."""
FETCHING = "tallygate_fetching"
"""The same of the step that reads records in the place of Spark's own reader."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    frame: DataFrame
    """The frame, with its rows' coordinates if they can be carried."""
    has_coordinates: bool
    narrow: bool
    """Whether each Spark partition holds the rows of one Kafka partition."""
    stateful: bool
    replayable: bool
    """Whether the source is Kafka, and one: its records can be read again without the checkpoint,
    which a new one can stand in for."""
    why: str
    """For people: why the plan is narrow or wide."""


def read_plan(frame: DataFrame) -> Plan:
    root = analyzed(frame)
    nodes = list(walk(root))
    names = {name_of(node) for node in nodes}
    streaming = {name_of(node) for node in nodes if _flows(node)}
    stateful = bool(streaming & _STATEFUL) or any(joins_streams(node) for node in nodes)
    sources = sum(name_of(node) == "StreamingRelationV2" for node in nodes)
    replayable = not foreign_sources(frame) and sources <= 1
    carried = _carry(frame, root)
    if isinstance(carried, str):
        return Plan(
            frame=frame,
            has_coordinates=False,
            narrow=False,
            stateful=stateful,
            replayable=replayable,
            why=f"wide: {carried}",
        )
    # A subquery becomes a join when the plan is optimized, which comes after this.
    joined = "Join" in names or any(node.subqueries().nonEmpty() for node in nodes)
    why = "a join with a static side, which may shuffle" if joined else "narrow"
    return Plan(
        frame=_with_coordinates(frame, root, *carried),
        has_coordinates=True,
        narrow=not joined,
        stateful=stateful,
        replayable=replayable,
        why=why,
    )


def needed_columns(frame: DataFrame) -> set[str] | None:
    """The columns of the decoding steps that the frame makes use of; None if that is not known.
    Spark cannot know that a step of Python need not give out the rest."""
    session = frame.sparkSession._jsparkSession
    root = session.sessionState().optimizer().execute(analyzed(frame))
    above = [node for node in walk(root) if not decodes(node)]
    if not {name_of(node) for node in above if _decodes_below(node)} <= _SPARING:
        return None
    read = {attribute.exprId().id() for attribute in list_of(root.output())}
    for node in above:
        read |= {attribute.exprId().id() for attribute in list_of(node.references().toSeq())}
    return {
        attribute.name()
        for node in walk(root)
        if decodes(node)
        for attribute in list_of(node.output())
        if attribute.exprId().id() in read
    }


def foreign_sources(frame: DataFrame) -> list[str]:
    """The frame's sources that are not Kafka."""
    nodes = list(walk(analyzed(frame)))
    found = {
        text_of(node.sourceName()) for node in nodes if name_of(node) == "StreamingRelationV2"
    } - {"kafka"}
    if any(name_of(node) == "StreamingRelation" for node in nodes):
        found.add("files")
    return sorted(found)


def kafka_servers(frame: DataFrame) -> str:
    """The brokers that the frame's sources read from."""
    nodes = walk(analyzed(frame))
    found = {
        str(node.extraOptions().get("kafka.bootstrap.servers"))
        for node in nodes
        if name_of(node) == "StreamingRelationV2"
    }
    if len(found) != 1:
        raise ConfigError(
            f"the frame reads from {len(found)} Kafka clusters; one ledger needs one cluster."
        )
    return found.pop()


def topics_read(frame: DataFrame, existing: Iterable[str]) -> set[str]:
    """Those of the existing topics that the frame's sources read."""
    found: set[str] = set()
    spark = frame.sparkSession
    for node in walk(analyzed(frame)):
        if name_of(node) != "StreamingRelationV2":
            continue
        options = node.extraOptions()
        named = re.split(r"\s*,\s*", str(options.getOrDefault("subscribe", "")).strip())
        named += json.loads(options.getOrDefault("assign", "{}"))
        pattern = options.get("subscribePattern")
        found |= {
            topic
            for topic in existing
            if topic in named or (pattern is not None and fits_pattern(spark, pattern, topic))
        }
    return found


def partitions_assigned(frame: DataFrame) -> set[TopicPartition]:
    """The partitions that the frame's sources name one by one: of their topics no others are
    read."""
    given = [
        json.loads(node.extraOptions().getOrDefault("assign", "{}"))
        for node in walk(analyzed(frame))
        if name_of(node) == "StreamingRelationV2"
    ]
    return {(topic, n) for each in given for topic, numbers in each.items() for n in numbers}


def seen_besides_records(frame: DataFrame) -> str | None:
    """What a batch's rows depend on besides its records, and on the time of computing them."""
    root = analyzed(frame)
    jvm: Any = frame.sparkSession._jvm
    current = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
    if root.containsPattern(current):
        return "current time"
    return "static side" if any(map(_is_static, _with_subqueries(root))) else None


def _is_static(node: Any) -> bool:
    """Whether rows come from here that are no records."""
    leaf = not node.children().nonEmpty()
    return leaf and not node.isStreaming() and name_of(node) != "OneRowRelation"


def _with_subqueries(root: Any) -> Iterator[Any]:
    for node in walk(root):
        yield node
        for query in list_of(node.subqueries()):
            yield from _with_subqueries(query)


def committed_only(frame: DataFrame) -> DataFrame:
    """The frame with sources that see committed records only, that fail on lost ones, and that
    read as ours do where nothing else was said.

    A record of an aborted transaction was never sent, and one that is gone must not be skipped."""
    nodes = list(walk(analyzed(frame)))
    for node in nodes:
        if name_of(node) == "StreamingRelationV2" and (
            str(node.extraOptions().getOrDefault("failOnDataLoss", "true")).lower() == "false"
        ):
            raise ConfigError(
                "the source has failOnDataLoss=false, which skips lost records in silence; remove "
                "the option."
            )
    return frame_of(frame.sparkSession, _committed_only(frame, nodes[0]))


def _committed_only(frame: DataFrame, node: Any) -> Any:
    jvm: Any = frame.sparkSession._jvm
    if name_of(node) == "StreamingRelationV2":
        options = jvm.java.util.HashMap()
        for name, text in READING.items():
            options.put(name, text)
        options.putAll(node.extraOptions().asCaseSensitiveMap())
        options.put("kafka.isolation.level", "read_committed")
        options = jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(options)
        return copied(frame.sparkSession, node, node.extraOptions(), options)
    children = [_committed_only(frame, child) for child in list_of(node.children())]
    return node.withNewChildren(seq_of(frame.sparkSession, children)) if children else node


def copied(spark: SparkSession, node: Any, part: Any, instead: Any) -> Any:
    """A node of a plan with another part in the place of one, however many parts such a node has:
    that differs from one Spark to the next."""
    gateway: Any = spark.sparkContext._gateway
    count = node.productArity()
    arguments = gateway.new_array(gateway.jvm.java.lang.Object, count)
    for index in range(count):
        there = node.productElement(index)
        arguments[index] = instead if there == part else there
    return node.makeCopy(arguments)


def analyzed(frame: DataFrame) -> Any:
    """The root of the frame's plan, as Spark has analyzed it."""
    return frame._jdf.queryExecution().analyzed()


def partition_count(frame: DataFrame) -> int:
    """How many partitions the frame's rows are computed in."""
    plan: Any = frame._jdf.queryExecution()
    return int(plan.toRdd().getNumPartitions())


def fits_pattern(spark: SparkSession, pattern: str, name: str) -> bool:
    """Whether a topic's name is one that Spark subscribes to by this pattern."""
    jvm: Any = spark._jvm
    return bool(jvm.java.util.regex.Pattern.matches(pattern, name))


def frame_of(spark: SparkSession, plan: Any) -> DataFrame:
    jvm: Any = spark._jvm
    dataset = getattr(jvm.org.apache.spark.sql.classic, "Dataset")  # noqa: B009
    return DataFrame(dataset.ofRows(spark._jsparkSession, plan), spark)


def _carry(frame: DataFrame, node: Any) -> tuple[Any, list[Any]] | str:
    """The plan below `node` with the coordinates in its output, and these; or why it cannot be."""
    name = name_of(node)
    found = {attribute.name(): attribute for attribute in list_of(node.output())}
    if decodes(node) and set(COORDINATES) <= set(found):
        return node, [found[each] for each in COORDINATES]
    if name == "StreamingRelationV2" and set(_RAW) <= set(found):
        return node, [found[each] for each in _RAW]
    if name in ("StreamingRelationV2", "StreamingRelation"):
        return "the source is not Kafka"
    if _joins_static(node):
        below = _carry(frame, node.children().head())
        if isinstance(below, str):
            return below
        child, coordinates = below
        sides = [child, node.children().last()]
        return node.withNewChildren(seq_of(frame.sparkSession, sides)), coordinates
    if name not in _NARROW:
        return f"{name} may mix rows of several records"
    below = _carry(frame, node.children().head())
    if isinstance(below, str):
        return below
    child, coordinates = below
    if name == "View":
        return child, coordinates
    if name == "Project":
        return _project(frame, _extended(node.projectList(), coordinates), child), coordinates
    return node.withNewChildren(seq_of(frame.sparkSession, [child])), coordinates


def _with_coordinates(frame: DataFrame, root: Any, plan: Any, coordinates: list[Any]) -> DataFrame:
    """The frame whose columns are those of `root`, then the coordinates under their own names."""
    own = list_of(root.output())
    names = [attribute.name() for attribute in own]
    there = set(COORDINATES) & set(names)
    if there:
        same = {
            name
            for name, coordinate in zip(COORDINATES, coordinates, strict=True)
            for attribute in own
            if attribute.name() == name and attribute.exprId().equals(coordinate.exprId())
        }
        if there != same:
            raise ConfigError(
                f"the transform makes a column {min(there - same)!r} of its own; that name stands "
                "for a record's coordinates. Give it another."
            )
    missing = [
        (name, coordinate)
        for name, coordinate in zip(COORDINATES, coordinates, strict=True)
        if name not in there
    ]
    columns = root.output()
    for _, coordinate in missing:
        columns = columns.appended(coordinate)
    carried = frame_of(frame.sparkSession, _project(frame, columns, plan))
    return carried.toDF(*names, *(name for name, _ in missing))


def _extended(projected: Any, coordinates: list[Any]) -> Any:
    there = [each.exprId() for each in list_of(projected)]
    for coordinate in coordinates:
        if not any(each.equals(coordinate.exprId()) for each in there):
            projected = projected.appended(coordinate)
    return projected


def _project(frame: DataFrame, columns: Any, child: Any) -> Any:
    jvm: Any = frame.sparkSession._jvm
    return jvm.org.apache.spark.sql.catalyst.plans.logical.Project(columns, child)


def joins_streams(node: Any) -> bool:
    children = list_of(node.children())
    return name_of(node) == "Join" and all(_flows(child) for child in children)


def _flows(node: Any) -> bool:
    """Whether records of the source come through here. They do so in a stream, and in the batch
    that an audit reads again, where they come from the decoding step."""
    return bool(node.isStreaming()) or _decodes_below(node)


def decodes(node: Any) -> bool:
    """Whether this is our decoding step, right above the records of Kafka. A step of the user's
    may give the same columns; what its tasks hold is another matter."""
    if name_of(node) != "MapInArrow" or function_of(node).name() != DECODING:
        return False
    (below,) = list_of(node.children())
    return set(_RAW) <= _names(below) and all(map(_only_reads, walk(below)))


def function_of(step: Any) -> Any:
    """The function of a step in Python: the first of its parts, whatever Spark calls it."""
    return step.productElement(0)


def _only_reads(node: Any) -> bool:
    """Whether a node reads records, or passes them on as they are. An audit reads in several
    rounds, which it brings together before it decodes."""
    name = name_of(node)
    if name == "Union":
        return not node.isStreaming()
    if name == "MapInArrow":
        return bool(function_of(node).name() == FETCHING)
    return name == "Project" or not node.children().nonEmpty()


def _names(node: Any) -> set[str]:
    return {attribute.name() for attribute in list_of(node.output())}


def _decodes_below(node: Any) -> bool:
    return any(decodes(each) for each in walk(node))


def _joins_static(node: Any) -> bool:
    """Whether every row of the result belongs to one row of the stream, on the left."""
    if name_of(node) != "Join":
        return False
    left, right = list_of(node.children())
    kind = text_of(node.joinType()).lower()
    return (
        _flows(left)
        and not _flows(right)
        and kind in ("inner", "leftouter", "leftsemi", "leftanti")
    )


def walk(node: Any) -> Any:
    yield node
    for child in list_of(node.children()):
        yield from walk(child)


def name_of(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def text_of(value: Any) -> str:
    return str(value)


def list_of(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]


def seq_of(spark: SparkSession, items: list[Any]) -> Any:
    jvm: Any = spark._jvm
    converters = jvm.scala.jdk.javaapi.CollectionConverters
    return converters.asScala(jvm.java.util.List.of(*items)).toSeq()
