"""What a watermark keeps out of the sink: records that came too late, windows that are still open.

A recomputation in batch mode knows no watermark: late records are in it, and so are windows that
the stream has not given out yet. Spark's log of offsets says which watermark each of the last
hundred batches had. From that, and from the time of each record:

**Late.** A record is dropped if its window, or without windows its time, ends no later than the
watermark of the batch before its own. For batches that are older than the log, the oldest watermark
in it stands: watermarks only grow, so a record that is not late by that one was not late by an
earlier one either. Records that were noted as late are left out of the recomputation; if no other
one may have been late, the stream has seen what the recomputation sees.

**Open.** A window is given out once a batch's watermark has reached its end. The batch that the
ledger stands for is the last one that ends where the ledger is.

What cannot be worked out in this way (a watermark in a function, several of them) stays unknown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from tallygate.auditing.recompute import Noted, Source
from tallygate.core.decoding import COORDINATES
from tallygate.core.offsets import Range, TopicPartition
from tallygate.quoting import backticked
from tallygate.spark.checkpoint import Checkpoint
from tallygate.spark.plan import read_plan
from tallygate.spec import PipelineSpec, Step, Window

END = "window_end"


@dataclass(frozen=True)
class Watermarks:
    """The watermarks of the batches that led to what the ledger claims, by where they end."""

    ends: tuple[tuple[Mapping[TopicPartition, int], int], ...]
    """From the oldest on: up to where a batch goes, and its watermark."""
    done: int
    """The watermark of the last batch that is done."""
    begun: int
    """Of one that may be under way without any records, or the same."""

    def closed(self, rows: DataFrame) -> DataFrame:
        """The rows of windows that are closed for sure."""
        return rows.where(f.col(END) <= f.timestamp_millis(f.lit(self.done)))

    def settled(self, rows: DataFrame) -> DataFrame:
        """Without the rows of windows that are just being given out."""
        if self.begun == self.done:
            return rows
        ends = f.col(END)
        low, high = (f.timestamp_millis(f.lit(at)) for at in (self.done, self.begun))
        return rows.where(~((ends > low) & (ends <= high)))


def watermarks_at(
    checkpoint: Checkpoint, claimed: Mapping[TopicPartition, Range]
) -> Watermarks | None:
    """None if the log does not reach to where the ledger is."""
    positions = {partition: each.until for partition, each in claimed.items()}
    ends: list[tuple[Mapping[TopicPartition, int], int]] = []
    done = begun = None
    for batch in checkpoint.batches:
        end, at = checkpoint.end(batch), checkpoint.watermark(batch)
        if end is None or at is None or any(end[p] > positions.get(p, 0) for p in end):
            continue
        ends.append((end, at))
        if end == positions:
            begun = at
            if batch <= (checkpoint.committed if checkpoint.committed is not None else -1):
                done = at
            elif done is None:
                done = at  # its records are in the ledger, whatever Spark's log says
    if done is None or begun is None:
        return None
    return Watermarks(tuple(ends), done, begun)


def late_records(
    source: Source, ranges: Sequence[Range], noted: Noted, known: Watermarks
) -> int | None:
    """How many records may have come too late; None if that is unknown."""
    before = _before_watermark(source.pipeline)
    if before is None:
        return None
    spec, column, window = before
    plan = read_plan(source.recomputed(ranges, noted, spec))
    if not plan.has_coordinates:
        return None
    at = f.col(backticked(column)).cast("timestamp")
    topic, partition, offset = (f.col(name) for name in COORDINATES)
    limit = f.when(f.lit(False), f.lit(0))
    marks = [mark for _, mark in known.ends]
    for (end, _), mark in zip(known.ends, [marks[0], *marks], strict=False):
        for (name, number), until in end.items():
            here = (topic == name) & (partition == number) & (offset < until)
            limit = limit.when(here, f.lit(mark))
    limit = limit.otherwise(f.lit(known.ends[-1][1])).cast("long")
    late = plan.frame.where(at.isNull() | (_end_of(at, window) <= f.timestamp_millis(limit)))
    return int(late.count())


def _end_of(at: Column, window: Window | None) -> Column:
    """Where the last window of a time ends that is sure to be dropped with it."""
    if window is None or window.size is None or window.slide is not None:
        return at
    return f.window(at, window.size)["end"]


def _before_watermark(spec: PipelineSpec) -> tuple[PipelineSpec, str, Window | None] | None:
    """The pipeline up to its one watermark, the column of time, and the window right after it."""
    steps = spec.transform
    if not isinstance(steps, tuple) or len(spec.streams) != 1:
        return None
    marked = [number for number, step in enumerate(steps) if step.watermark is not None]
    if len(marked) != 1:
        return None
    step: Step = steps[marked[0]]
    if step.from_ not in (None, "source", *(each.name for each in steps[: marked[0]])):
        return None
    ((column, _),) = (step.watermark or {}).items()
    begin, rest = steps[: marked[0]], steps[marked[0] + 1 :]
    window = rest[0].window if rest and rest[0].window and rest[0].window.on == column else None
    # No steps are not the same as no transform, by which records pass without being decoded.
    return spec.model_copy(update={"transform": begin}), column, window
