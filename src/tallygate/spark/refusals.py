"""What a stream cannot do, found in the plan before a query starts, with the reason and what to do
instead. What is allowed but grows without end is a warning (see `states`).

Our own words come first; Spark's own check, which it makes when a query starts, comes last, for
whatever is not known here.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from tallygate.errors import ConfigError
from tallygate.spark.error_text import reason
from tallygate.spark.plan import analyzed, list_of, name_of, text_of, walk
from tallygate.spark.state_report import is_bounded, readable, watermarked

OUTPUT_MODES = {"append": "append", "upsert": "update", "replace": "complete"}


def refuse(frame: DataFrame, mode: str, *, instead: str, repeats: str | None = None) -> None:
    """Raise if the frame cannot be streamed in this mode. `instead` says what to do where rows
    cannot be appended, and `repeats` why a batch that is computed again must give the same rows,
    if it must."""
    root = analyzed(frame)
    for node in walk(root):
        reason = _refusal(node, mode, instead)
        if reason is not None:
            raise ConfigError(reason)
    if mode == "replace" and not _aggregates(root):
        raise ConfigError(
            "mode replace writes the whole result with each batch, and a stream keeps its "
            "whole result only as an aggregate. Use mode append, or aggregate with GROUP BY."
        )
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


def _refusal(node: Any, mode: str, instead: str) -> str | None:
    name = name_of(node)
    if not node.isStreaming():
        return None
    whole = mode == "replace" and _aggregates(node)
    if name in ("GlobalLimit", "LocalLimit", "Offset", "Tail") and not whole:
        return (
            "LIMIT has no meaning for a stream: which rows are the first ones changes with every "
            "batch. Keep all rows, and limit when you query the result; only the result of an "
            "aggregate that replaces its whole table (mode replace) can be limited."
        )
    if name == "Sort" and not whole:
        return (
            "ORDER BY needs all rows, and a stream has no last one. Sort when you query the "
            "result; only the result of an aggregate that replaces its whole table (mode replace) "
            "can be sorted, and not what goes into the aggregate."
        )
    if name == "Distinct":
        return (
            "DISTINCT (and UNION without ALL) would have to remember every row for ever. Use a "
            f"dedup step with a watermark, UNION ALL, or GROUP BY; for that, {instead}."
        )
    if name in ("Except", "Intersect"):
        return (
            f"{name.upper()} compares whole rows and gives each one once, so it would have to "
            "remember every row for ever. Use LEFT ANTI JOIN or LEFT SEMI JOIN with a static side, "
            "which keep a record or leave it out, one by one."
        )
    if name == "Join":
        return _join(node)
    if name == "Aggregate" and mode == "append" and not is_bounded(node.groupingExpressions()):
        return (
            "an aggregate can only be appended once it is final, and without a watermark on one "
            "of its groups (a window of event time, say) it never is. Add a watermark step and "
            f"group by a window, or {instead}."
        )
    if name == "DeduplicateWithinWatermark" and not watermarked(node):
        return "dedup needs a watermark, which says how far apart duplicates can be: add that step."
    return None


def _aggregates(node: Any) -> bool:
    """Whether an aggregate is here or below."""
    return any(name_of(each) == "Aggregate" and each.isStreaming() for each in walk(node))


def _join(node: Any) -> str | None:
    left, right = list_of(node.children())
    kind = text_of(node.joinType())
    if left.isStreaming() and right.isStreaming():
        if kind in ("LeftOuter", "RightOuter", "FullOuter") and not (
            watermarked(left) and watermarked(right)
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


def _random(node: Any) -> Iterator[str]:
    for each in walk(node):
        for expression in list_of(each.expressions()):
            if not expression.deterministic():
                yield readable(text_of(expression))


def _ask_spark(frame: DataFrame, root: Any, mode: str) -> None:
    jvm: Any = frame.sparkSession._jvm
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    chosen = {"append": modes.Append, "upsert": modes.Update, "replace": modes.Complete}[mode]()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(root, chosen)
    except AnalysisException as error:
        raise ConfigError(f"Spark cannot run this as a stream: {reason(error)}") from None
