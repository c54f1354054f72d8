"""What a stream cannot do, found in the plan before a query starts, with the reason and what to do
instead. What is allowed but grows without end is a warning.

Our own words come first; Spark's own check, which it makes when a query starts, comes last, for
whatever is not known here.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from tallygate.errors import ConfigError
from tallygate.spark.plan import joins_streams, list_of, name_of, text_of, walk
from tallygate.spark.saying import reason

__all__ = ["OUTPUT_MODES", "State", "refuse", "states", "warnings"]

OUTPUT_MODES = {"append": "append", "upsert": "update", "replace": "complete"}


def refuse(frame: DataFrame, mode: str, *, repeats: str | None = None) -> None:
    """Raise if the frame cannot be streamed in this mode. `repeats` says why a batch that is
    computed again must give the same rows, if it must."""
    root = frame._jdf.queryExecution().analyzed()
    for node in walk(root):
        reason = _refusal(node, mode)
        if reason is not None:
            raise ConfigError(reason)
    _refuse_topics_read_twice(root)
    if repeats is not None:
        for text in _random(root):
            raise ConfigError(
                f"{text} gives other values when a batch is computed again after a crash, and "
                f"{repeats}. Derive the value from the record, as by md5() or xxhash64(), or let "
                "the producer send it."
            )
    _ask_spark(frame, root, mode)


def _refuse_topics_read_twice(root: Any) -> None:
    """Spark would read it twice, each time from a position of its own."""
    seen: set[str] = set()
    for node in walk(root):
        if name_of(node) != "StreamingRelationV2":
            continue
        for topic in str(node.extraOptions().getOrDefault("subscribe", "")).split(","):
            if topic and topic in seen:
                raise ConfigError(
                    f"topic {topic!r} is read twice, and the ledger has one position for it. Use "
                    "the source once (a join or union of a stream with itself can often be an "
                    "aggregate), or write what both sides need to a topic first."
                )
            seen.add(topic)


def _refusal(node: Any, mode: str) -> str | None:
    name = name_of(node)
    if not node.isStreaming():
        return None
    if name in ("GlobalLimit", "LocalLimit", "Offset", "Tail") and mode != "replace":
        return (
            "LIMIT has no meaning for a stream: which rows are the first ones changes with every "
            "batch. Keep all rows, and limit when you query the result; only an aggregate that "
            "replaces its whole table (mode replace) can be limited."
        )
    if name == "Distinct":
        return (
            "DISTINCT (and UNION without ALL) would have to remember every row for ever. Use a "
            "dedup step with a watermark, UNION ALL, or GROUP BY with mode upsert."
        )
    if name in ("Except", "Intersect"):
        return (
            f"{name.upper()} compares whole rows and gives each one once, so it would have to "
            "remember every row for ever. Use LEFT ANTI JOIN or LEFT SEMI JOIN with a static side, "
            "which keep a record or leave it out, one by one."
        )
    if name == "Sort":
        return _sort(node, mode)
    if name == "Join":
        return _join(node)
    if name == "Aggregate" and mode == "append" and not _bounded(node):
        return (
            "an aggregate can only be appended once it is final, and without a watermark on one "
            "of its groups (a window of event time, say) it never is. Add a watermark step and "
            "group by a window, or use mode upsert with the groups as the key."
        )
    if name == "DeduplicateWithinWatermark" and not _watermarks(node):
        return "dedup needs a watermark, which says how far apart duplicates can be: add that step."
    return None


def _sort(node: Any, mode: str) -> str | None:
    sorted_groups = any(name_of(below) == "Aggregate" for below in walk(node))
    if mode == "replace" and sorted_groups:
        return None
    return (
        "ORDER BY needs all rows, and a stream has no last one. Sort when you query the result; "
        "only an aggregate that replaces its whole table (mode replace) can be sorted."
    )


def _join(node: Any) -> str | None:
    left, right = list_of(node.children())
    kind = text_of(node.joinType())
    if left.isStreaming() and right.isStreaming():
        if kind in ("LeftOuter", "RightOuter", "FullOuter") and not (
            _watermarks(left) and _watermarks(right)
        ):
            return (
                "an outer join of two streams gives out a row without a partner once no partner "
                "can come any more. Add a watermark to both sides and a bound of time to the "
                "condition, as `b.at BETWEEN a.at AND a.at + INTERVAL 1 HOUR`."
            )
        return None
    outer = {"LeftOuter": left, "LeftAnti": left, "LeftSemi": left, "RightOuter": right}
    if kind == "FullOuter" or (kind in outer and not outer[kind].isStreaming()):
        side = "full outer" if kind == "FullOuter" else "right" if kind == "RightOuter" else "left"
        return (
            f"this {side} join would have to give out every row of the static side that no record "
            "ever matches, and a stream does not end, so that is never known. Put the stream on "
            "the left, and use an inner or a left join."
        )
    return None


def warnings(frame: DataFrame) -> list[str]:
    """What works, and grows."""
    found = []
    for node in walk(frame._jdf.queryExecution().analyzed()):
        if joins_streams(node):
            sides = [_columns(child) for child in list_of(node.children())]
            bare = [
                side
                for side, child in zip(sides, list_of(node.children()), strict=True)
                if not _watermarks(child)
            ]
            if bare:
                found.append(
                    f"the join keeps every record of ({bare[0]}) in its state without end, since "
                    "nothing says when no partner can come any more. Add a watermark to both sides "
                    "and a bound of time to the condition."
                )
        if name_of(node) == "Deduplicate" and node.isStreaming() and not _watermarks(node):
            keys = ", ".join(each.name() for each in list_of(node.keys()))
            found.append(
                f"dropDuplicates remembers every ({keys}) without end. Use a watermark and "
                "dropDuplicatesWithinWatermark."
            )
        if name_of(node) == "Aggregate" and node.isStreaming() and not _bounded(node):
            found.append(
                f"the aggregate keeps a row for each ({_groups(node)}) without end; that is right "
                "if there are not too many different ones."
            )
    return found


@dataclass(frozen=True)
class State:
    """What an operator remembers from batch to batch."""

    operator: str
    row: str
    bytes: int
    """About so many for each row."""
    until: str

    def __str__(self) -> str:
        return f"{self.operator}: a row for each {self.row}, about {self.bytes} bytes, {self.until}"


def states(frame: DataFrame) -> list[State]:
    """The state that the query will keep."""
    found = []
    for node in walk(frame._jdf.queryExecution().analyzed()):
        name = name_of(node)
        until = "until the watermark passes" if _watermarks(node) else "for ever"
        if name == "Aggregate" and node.isStreaming():
            bounded = "until the watermark passes" if _bounded(node) else "for ever"
            found.append(State("aggregate", f"({_groups(node)})", _size(node), bounded))
        elif name.startswith("Deduplicate") and node.isStreaming():
            keys = ", ".join(each.name() for each in list_of(node.keys()))
            found.append(State("dedup", f"({keys})", _size(node), until))
        elif joins_streams(node):
            size = sum(_size(child) for child in list_of(node.children()))
            found.append(State("join", "record of both sides", size // 2, until))
        elif "WithState" in name:
            found.append(State("own state", "key", _size(node), "as the function says"))
    return found


ROW_OVERHEAD = 60


def _size(node: Any) -> int:
    return ROW_OVERHEAD + sum(int(each.dataType().defaultSize()) for each in list_of(node.output()))


def _groups(node: Any) -> str:
    names = [_readable(text_of(each)) for each in list_of(node.groupingExpressions())]
    return ", ".join(names) or "stream"


def _columns(node: Any) -> str:
    return ", ".join(each.name() for each in list_of(node.output())[:6])


def _bounded(node: Any) -> bool:
    """Whether one of the groups carries a watermark, so that a group is final at some time."""
    return any(
        "spark.watermarkDelayMs" in text_of(each.metadata().json())
        for each in list_of(node.groupingExpressions())
        if name_of(each) == "AttributeReference"
    )


def _watermarks(node: Any) -> bool:
    return any(name_of(each) == "EventTimeWatermark" for each in walk(node))


def _random(node: Any) -> Iterator[str]:
    for each in walk(node):
        for expression in list_of(each.expressions()):
            if not expression.deterministic():
                yield _readable(text_of(expression))


def _readable(expression: str) -> str:
    return re.sub(r"#\d+L?|-T\d+ms|\((Some\()?-?\d+\)?\)(?= AS)", "", expression).strip()


def _ask_spark(frame: DataFrame, root: Any, mode: str) -> None:
    jvm: Any = frame.sparkSession._jvm
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    chosen = {"append": modes.Append, "upsert": modes.Update, "replace": modes.Complete}[mode]()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(root, chosen)
    except AnalysisException as error:
        raise ConfigError(f"Spark cannot run this as a stream: {reason(error)}") from None
