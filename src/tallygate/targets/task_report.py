"""How tasks report, and what the driver raises of it.

A task does not fail for what the driver can decide about: its one row of output says what happened,
so that the driver need not read it out of one of Spark's errors.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from tallygate.core.blocks import Blocks
from tallygate.core.ledger import OtherTargetError
from tallygate.core.offsets import MovedError, Range
from tallygate.errors import (
    FencedError,
    LostRangeError,
    TargetError,
    TopicError,
    UnreachableError,
)
from tallygate.gc_tuning import collect_seldom
from tallygate.spark.truncated_input import whole_input
from tallygate.targets.base import RefusedRowsError, Task, TaskReport, UnknownOutcomeError

_SCHEMA = pa.schema(
    [
        ("partitions", pa.list_(pa.struct([("topic", pa.string()), ("partition", pa.int32())]))),
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
    "partitions array<struct<topic:string,partition:int>>, attempt string, rows long, "
    "letters long, read double, write double, commit double, problem string, message string"
)
# By name, so that a report can say it in a text. The first that any task reports is raised.
_RAISED: Mapping[str, type[Exception]] = {
    "fenced": FencedError,
    "another": OtherTargetError,
    "lost": LostRangeError,
    "topic": TopicError,
    "retry": UnknownOutcomeError,
    "unreachable": UnreachableError,
    "refused": RefusedRowsError,
    "denied": TargetError,
}


def perform(task: Task, blocks: Blocks) -> TaskReport:
    """Perform a task, and put into its report what the driver can decide about."""
    report, started = TaskReport(), time.perf_counter()
    try:
        task(blocks, report)
    except Exception as error:
        # A library that pulled the blocks may have an error of its own for what went wrong there.
        cause = blocks.failure or error
        report.problem, report.message = _problem(cause), str(cause)
        if report.problem is None:
            raise cause from None
    report.partitions = blocks.partitions
    report.letters, report.read = len(blocks.letters), blocks.seconds
    report.write = time.perf_counter() - started - report.read - report.commit
    return report


def run_tasks(
    frame: DataFrame, run: Callable[[Iterable[pa.RecordBatch]], Iterator[TaskReport]]
) -> list[TaskReport]:
    """Run on each of the frame's partitions, and hear what the tasks report."""

    def in_worker(blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        collect_seldom()  # the worker may be of another daemon than ours
        yield from map(_block, run(whole_input(blocks)))

    with raise_step_errors():
        rows: list[dict[str, Any]] = frame.mapInArrow(in_worker, _DDL).toArrow().to_pylist()
    reports = list(map(_report, rows))
    raise_problems(reports)
    return reports


def raise_problems(reports: Iterable[TaskReport]) -> None:
    found = list(reports)
    for problem, error in _RAISED.items():
        for report in found:
            if report.problem == problem:
                raise error(report.message)


def _problem(error: BaseException) -> str | None:
    """The name under which the driver raises such an error; None is a defect, not to be retried."""
    if isinstance(error, MovedError):
        return "retry"
    return next((name for name, kind in _RAISED.items() if isinstance(error, kind)), None)


def _block(report: TaskReport) -> pa.RecordBatch:
    listed = [{"topic": topic, "partition": at} for topic, at in sorted(report.partitions)]
    return pa.RecordBatch.from_pylist([{**report.__dict__, "partitions": listed}], schema=_SCHEMA)


def _report(row: dict[str, Any]) -> TaskReport:
    partitions = {(each["topic"], each["partition"]) for each in row["partitions"]}
    return TaskReport(**{**row, "partitions": partitions})


class StepError(Exception):
    """Records could not be read, or dead letters not kept, in the step that decodes. It cannot
    report, since its rows go on to others: what happened is in the text of the error that Spark
    makes of it."""

    def __init__(self, problem: str, message: str) -> None:
        super().__init__(f"[{problem}] {message}")


_STEP = re.compile(r"StepError: \[(\w+)\] (.*)")


@contextmanager
def report_step_errors(passes: Callable[[Exception], bool]) -> Iterator[None]:
    """Tell the driver what happened in here, if it can decide about that; `passes` says what is
    worth trying again."""
    try:
        yield
    except Exception as error:
        problem = "retry" if passes(error) else _problem(error)
        if problem is None:
            raise
        raise StepError(problem, str(error)) from error


@contextmanager
def raise_step_errors() -> Iterator[None]:
    """Raise what a step meant, and not what Spark says of it."""
    try:
        yield
    except Exception as error:
        found = _STEP.search(str(error))
        if found is None:
            raise
        raise _RAISED.get(found[1], UnknownOutcomeError)(found[2]) from error


def unmoved(left: Iterable[Range], reports: Iterable[TaskReport]) -> list[Range]:
    """What no task has moved the ledger for: it gave no rows, and the driver moves it."""
    done = {partition for report in reports for partition in report.partitions}
    return [each for each in left if each.topic_partition not in done]


def slowest(reports: Iterable[TaskReport]) -> dict[str, float]:
    """Where the tasks' time went; the slowest counts, since they run side by side."""
    found = list(reports)
    return {
        part: round(max((getattr(report, part) for report in found), default=0.0), 4)
        for part in ("read", "write", "commit")
    }
