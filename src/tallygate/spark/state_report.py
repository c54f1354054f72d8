"""What a query remembers from batch to batch, about how much that is, and what grows for ever.

State is dropped by the watermark, where Spark finds out from the plan that it can be. So what is
said here is asked of the plan in the same way, and not guessed from a watermark being somewhere.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from tallygate.spark.plan import analyzed, joins_streams, list_of, name_of, text_of, walk

WATERMARK = "spark.watermarkDelayMs"
"""The mark that Spark puts on a column of event time."""
ROW_OVERHEAD = 60
SOME_TIME = 10**12
"""Any watermark will do to ask whether there is a bound. Py4J takes a smaller number for an int."""


@dataclass(frozen=True)
class State:
    """What an operator remembers from batch to batch."""

    operator: str
    row: str
    bytes: int
    """About so many for each row."""
    until: str

    def __str__(self) -> str:
        return (
            f"{self.operator}: a row for each {self.row}, about {self.bytes} bytes, which makes "
            f"{self.bytes:,} MB for a million of them, {self.until}"
        )


def states(frame: DataFrame) -> list[State]:
    """The state that the query will keep."""
    root = analyzed(frame)
    found = []
    for node in walk(root):
        name = name_of(node)
        if name == "Aggregate" and node.isStreaming():
            until = _until(is_bounded(node.groupingExpressions()))
            found.append(State("aggregate", f"({_groups(node)})", _size(node), until))
        elif name.startswith("Deduplicate") and node.isStreaming():
            until = _until(_forgets_duplicates(node))
            found.append(State("dedup", f"({_keys(node)})", _size(node), until))
        elif "WithState" in name:
            found.append(State("own state", "key", _size(node), "as the function says"))
    for side in _joined_sides(frame, root):
        until = _until(side.bounded)
        found.append(State("join", f"record of {side.name}", _size(side.node), until))
    return found


def _until(bounded: bool) -> str:
    return "until the watermark passes" if bounded else "for ever"


def warnings(frame: DataFrame) -> list[str]:
    """What works, and grows."""
    root = analyzed(frame)
    found = [
        f"the join keeps every record of {side.name} in its state for ever, since nothing says "
        "when no partner can come for it any more. Add a watermark to both sides and bounds of "
        "time to the condition, as `b.at BETWEEN a.at AND a.at + INTERVAL 1 HOUR`."
        for side in _joined_sides(frame, root)
        if not side.bounded
    ]
    for node in walk(root):
        name = name_of(node)
        if name == "Deduplicate" and node.isStreaming() and not _forgets_duplicates(node):
            found.append(
                f"dropDuplicates remembers every ({_keys(node)}) without end. Use a watermark and "
                "dropDuplicatesWithinWatermark."
            )
        aggregates = name == "Aggregate" and node.isStreaming()
        if aggregates and not is_bounded(node.groupingExpressions()):
            found.append(
                f"the aggregate keeps a row for each ({_groups(node)}) without end; that is right "
                "if there are not too many different ones."
            )
    return found


@dataclass(frozen=True)
class _Side:
    """One of two streams that are joined."""

    node: Any
    bounded: bool
    """Whether its records are forgotten at some time."""

    @property
    def name(self) -> str:
        """What the query calls it, or what it holds."""
        if name_of(self.node) == "SubqueryAlias":
            return str(self.node.alias())
        return f"({', '.join(each.name() for each in list_of(self.node.output())[:6])})"


def _joined_sides(frame: DataFrame, root: Any) -> Iterator[_Side]:
    """Spark forgets records of a side when event time is a key of the join, or when both sides
    have a watermark and the condition bounds the side's time from below by that of the other."""
    jvm: Any = frame.sparkSession._jvm
    helper = jvm.org.apache.spark.sql.catalyst.analysis.StreamingJoinHelper
    for join, conditions in _joins(root, []):
        left, right = list_of(join.children())
        by_key = helper.isWatermarkInJoinKeys(join)
        given = [join.condition(), *(jvm.scala.Some(each) for each in conditions)]
        for side, other in ((left, right), (right, left)):
            columns = side.outputSet(), other.outputSet()
            some = jvm.scala.Some(SOME_TIME)
            bounds = (helper.getStateValueWatermark(*columns, each, some) for each in given)
            by_time = is_bounded(side.output()) and any(each.isDefined() for each in bounds)
            yield _Side(side, by_key or by_time)


def _joins(node: Any, conditions: list[Any]) -> Iterator[tuple[Any, list[Any]]]:
    """The joins of streams, each with what a WHERE right above it says, if that is the same as
    saying it in the join."""
    if joins_streams(node):
        yield node, conditions if text_of(node.joinType()) == "Inner" else []
    above = [node.condition()] if name_of(node) == "Filter" else []
    for child in list_of(node.children()):
        yield from _joins(child, above)


def is_bounded(columns: Any) -> bool:
    """Whether one of the columns carries a watermark, so that they are final at some time."""
    return any(
        WATERMARK in text_of(each.metadata().json())
        for each in list_of(columns)
        if name_of(each) == "AttributeReference"
    )


def watermarked(node: Any) -> bool:
    return any(name_of(each) == "EventTimeWatermark" for each in walk(node))


def _forgets_duplicates(node: Any) -> bool:
    """dropDuplicates forgets by its own columns alone, the step dedup by the watermark."""
    return is_bounded(node.keys()) if name_of(node) == "Deduplicate" else watermarked(node)


def _keys(node: Any) -> str:
    return ", ".join(each.name() for each in list_of(node.keys()))


def _groups(node: Any) -> str:
    names = [readable(text_of(each)) for each in list_of(node.groupingExpressions())]
    return ", ".join(names) or "stream"


def _size(node: Any) -> int:
    return ROW_OVERHEAD + sum(int(each.dataType().defaultSize()) for each in list_of(node.output()))


def readable(expression: str) -> str:
    """An expression of a plan without Spark's numbers and seeds."""
    seedless = re.sub(r"\((Some\()?-?\d+\)?\)(?= AS)", "()", expression)
    return re.sub(r"#\d+L?|-T\d+ms", "", seedless).strip()
