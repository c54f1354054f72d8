"""Records that come too late for their window, found where they are decoded.

Spark drops them deep in its state and keeps no more than a count. Which ones they are is known
before: a batch drops a row when its window, or without windows its time, ends no later than the
watermark of the batch before. The driver knows that watermark from Spark's own log and hands it to
the tasks with the batch; the decoding step, which also finds what cannot be decoded, compares.

Late records are only noted here. They go on to Spark, which drops them by itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import SparkSession

from tallygate.core.letters import Letter, letter_of
from tallygate.errors import ConfigError
from tallygate.spark.expressions import interval_milliseconds
from tallygate.spec import Kafka, PipelineSpec, Step

WATERMARK = "tallygate.watermark"
"""The local property that brings the watermark to the tasks, in milliseconds."""
MICROS = 1000


@dataclass(frozen=True)
class Lateness:
    """When a record of a source is too late. All times are in milliseconds."""

    column: str
    length: int = 0
    """How long a window is, or how long a pause ends a session."""
    windows: bool = False
    """Whether windows begin at multiples of their length; sessions begin with a record."""

    def letters(self, raw: pa.RecordBatch, fit: pa.RecordBatch) -> list[Letter]:
        """Those of a block that the running batch is going to drop, with what they missed."""
        mark = int(_property() or 0)
        if not mark or not fit.num_rows:
            return []
        times = fit.column(self.column).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        late = pc.less_equal(self._ends(times), mark * MICROS)
        found = pc.indices_nonzero(pc.fill_null(late, False)).to_pylist()
        if not found:
            return []
        indices = {at: index for index, at in enumerate(_coordinates(raw, "topic", ""))}
        chosen = list(_coordinates(fit, "_topic", "_"))
        return [
            letter_of(raw, indices[chosen[index]], self._cause(times[index].as_py(), mark))
            for index in found
        ]

    def _ends(self, times: pa.Array) -> pa.Array:
        """Where the window of each time ends; the time itself without windows."""
        length = self.length * MICROS
        if not self.windows:
            return pc.add(times, length)
        return pc.add(pc.multiply(pc.divide(times, length), length), length)

    def _cause(self, time: int, mark: int) -> str:
        at, passed = (_text(ms) for ms in (time / MICROS, mark))
        return f"late: {self.column} is {at}, and the watermark was at {passed} already"


def lateness_of(spec: PipelineSpec, spark: SparkSession) -> Lateness | None:
    """How to find the late records, if they are asked for; refuse what cannot tell them."""
    if not spec.dead_letters.late:
        return None
    steps = spec.transform
    if not (isinstance(steps, tuple) and isinstance(spec.source, Kafka) and not spec.sources):
        raise ConfigError(
            "dead_letters.late needs one Kafka source, and a transform of steps whose first is the "
            "watermark."
        )
    first, *rest = steps
    fits = first.watermark is not None and first.from_ in (None, "source") and rest
    if not fits or not _drops(rest[0]) or any(step.watermark for step in rest):
        raise ConfigError(
            "dead_letters.late needs the watermark as the first step, and a window or a dedup "
            "right after it: otherwise it is unknown which records Spark drops."
        )
    ((column, _),) = (first.watermark or {}).items()
    window = rest[0].window
    if window is None:
        return Lateness(column)
    if window.on != column:
        raise ConfigError(f"the window is on {window.on!r}, but the watermark on {column!r}.")
    if window.slide is not None:
        raise ConfigError(
            "dead_letters.late is not possible for sliding windows: a record that is too late for "
            "one window may be in time for another."
        )
    length = _milliseconds(window.gap or window.size or "", spark)
    return Lateness(column, length, windows=window.gap is None)


def _milliseconds(interval: str, spark: SparkSession) -> int:
    """As Spark reads it."""
    found = interval_milliseconds(spark, interval)
    if found is None:
        raise ConfigError(f"{interval!r} is not an interval; write it as `15 minutes`.")
    return found


def _drops(step: Step) -> bool:
    return bool(step.window or step.dedup)


def _property() -> str | None:
    task = TaskContext.get()
    return None if task is None else task.getLocalProperty(WATERMARK)


def _coordinates(block: pa.RecordBatch, topic: str, prefix: str) -> Iterator[tuple[str, int, int]]:
    columns = (topic, f"{prefix}partition", f"{prefix}offset")
    yield from zip(*(block.column(name).to_pylist() for name in columns), strict=True)


def _text(ms: float) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S+00")
