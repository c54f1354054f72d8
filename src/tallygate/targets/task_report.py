"""What the tasks of every sink have in common: trimming what the ledger has, and reporting.

A task does not fail for what the driver can decide about: it says in its one row of output what
happened, so that the driver need not read it out of one of Spark's errors.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from tallygate.core.decoding import COORDINATES
from tallygate.core.offsets import Place, Range
from tallygate.errors import (
    FencedError,
    LostRangeError,
    TallygateError,
    TargetError,
    TopicError,
    UnreachableError,
)
from tallygate.gc_tuning import collect_seldom
from tallygate.spark.truncated_input import insist_on_whole_input
from tallygate.targets.sink import Retry, Written

__all__ = [
    "Report",
    "StepError",
    "raised_as",
    "run_tasks",
    "skipped",
    "slowest",
    "steps_heard",
    "telling",
    "trimmed",
    "unmoved",
    "within",
]

_SCHEMA = pa.schema(
    [
        ("places", pa.list_(pa.struct([("topic", pa.string()), ("partition", pa.int32())]))),
        ("attempt", pa.string()),
        ("rows", pa.int64()),
        ("letters", pa.int64()),
        ("read", pa.float64()),
        ("write", pa.float64()),
        ("commit", pa.float64()),
        ("problem", pa.string()),
        ("message", pa.string()),
    ]
)
_DDL = (
    "places array<struct<topic:string,partition:int>>, attempt string, rows long, letters long, "
    "read double, write double, commit double, problem string, message string"
)
_RAISED: Mapping[str, type[TallygateError]] = {
    "fenced": FencedError,
    "lost": LostRangeError,
    "topic": TopicError,
    "unreachable": UnreachableError,
    "denied": TargetError,
}


@dataclass
class Report:
    """What a task did."""

    places: set[Place] = field(default_factory=set)
    """Where its records came from."""
    attempt: str = ""
    rows: int = 0
    letters: int = 0
    read: float = 0.0
    write: float = 0.0
    commit: float = 0.0
    problem: str | None = None
    message: str | None = None

    def block(self) -> pa.RecordBatch:
        listed = [{"topic": topic, "partition": number} for topic, number in sorted(self.places)]
        return pa.RecordBatch.from_pylist([{**self.__dict__, "places": listed}], schema=_SCHEMA)

    @classmethod
    def of(cls, row: dict[str, Any]) -> "Report":
        return cls(**{**row, "places": {(at["topic"], at["partition"]) for at in row["places"]}})


def run_tasks(
    frame: DataFrame, task: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
) -> list[Report]:
    """Run a task on each of the frame's partitions, and hear what they say; a fence, an unknown
    outcome, a source that cannot be read and a target that will have none of it are raised,
    whatever else a task reports is its sink's to judge."""

    def run(blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        insist_on_whole_input()
        collect_seldom()  # the worker may be of another daemon than ours
        return task(blocks)

    with steps_heard():
        rows: list[dict[str, Any]] = frame.mapInArrow(run, _DDL).toArrow().to_pylist()
    reports = [Report.of(row) for row in rows]
    for problem, error in _RAISED.items():
        for report in reports:
            if report.problem == problem:
                raise error(report.message)
    for report in reports:
        if report.problem == "retry":
            raise Retry(report.message)
    return reports


class StepError(Exception):
    """Records could not be read, or dead letters not kept, in the step that decodes. It cannot
    report, since its rows go on to others: what happened is in the text of the error that Spark
    makes of it."""

    def __init__(self, problem: str, message: str) -> None:
        super().__init__(f"[{problem}] {message}")


_STEP = re.compile(r"StepError: \[(\w+)\] (.*)")


@contextmanager
def telling(passes: Callable[[Exception], bool]) -> Iterator[None]:
    """Tell the driver what happened in here, if it can decide about that; `passes` says what is
    worth trying again."""
    try:
        yield
    except Exception as error:
        problem = "retry" if passes(error) else raised_as(error)
        if problem is None:
            raise
        raise StepError(problem, str(error)) from error


@contextmanager
def steps_heard() -> Iterator[None]:
    """Raise what a step meant, and not what Spark says of it."""
    try:
        yield
    except Exception as error:
        found = _STEP.search(str(error))
        if found is None:
            raise
        raise _RAISED.get(found[1], Retry)(found[2]) from error


def raised_as(error: BaseException) -> str | None:
    """The problem under which the driver raises such an error, if it is one that it does."""
    return next((name for name, kind in _RAISED.items() if isinstance(error, kind)), None)


def unmoved(left: Iterable[Range], reports: Iterable[Report]) -> list[Range]:
    """What no task has moved the ledger for: it gave no rows, and the driver moves it."""
    done = {place for report in reports for place in report.places}
    return [each for each in left if each.place not in done]


def skipped(frame: DataFrame, *, stateful: bool) -> Written:
    """Nothing is left of the batch. Its rows are in the store, but Spark's state may not be: the
    frame is computed for that alone."""
    if stateful:
        frame.write.format("noop").mode("append").save()
    return Written("skipped")


def within(ranges: Iterable[Range]) -> Column:
    """Whether a row's record lies in one of the ranges, by its coordinates."""
    topic, partition, offset = (f.col(name) for name in COORDINATES)
    found = f.lit(False)
    for each in ranges:
        place = (topic == each.topic) & (partition == each.partition)
        found = found | (place & (offset >= each.start) & (offset < each.until))
    return found


def slowest(reports: Iterable[Report]) -> dict[str, float]:
    """Where the tasks' time went; the slowest counts, since they run side by side."""
    found = list(reports)
    return {
        part: round(max((getattr(report, part) for report in found), default=0.0), 4)
        for part in ("read", "write", "commit")
    }


def trimmed(
    block: pa.RecordBatch, ranges: Mapping[Place, Range], names: tuple[str, str, str]
) -> pa.RecordBatch:
    """The rows that lie in what is left to do; `names` are the columns of their coordinates."""
    kept = []
    for topic, partition, offset in zip(
        *(block.column(name).to_pylist() for name in names), strict=True
    ):
        wanted = ranges.get((topic, partition))
        kept.append(wanted is not None and wanted.start <= offset < wanted.until)
    return block.filter(pa.array(kept, pa.bool_()))
