"""One audit: what its steps work on, and what they find."""

import re
from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession

from tallygate.auditing.comparable import Sides, sides_of
from tallygate.auditing.recompute import Noted, Source, without
from tallygate.auditing.scope import Scope
from tallygate.auditing.verdict import Anomaly
from tallygate.core.ledger_snapshot import LedgerSnapshot
from tallygate.core.letters import Coordinates
from tallygate.core.offsets import Range
from tallygate.engine.run_request import RunRequest
from tallygate.engine.start import look
from tallygate.spark.plan import Plan, analyzed, name_of, walk
from tallygate.targets.snapshot import Snapshot

_ADDS = re.compile("Aggregate|Groups|WithState")
_DOUBLE = re.compile("[:<](double|float)[,>]")


@dataclass(frozen=True, kw_only=True)
class Found:
    rows: int
    anomalies: tuple[Anomaly, ...] = ()
    unknown: tuple[str, ...] = ()
    kept: int | None = None
    """How many records have rows; None if rows are not of one record each."""
    left_out: tuple[str, ...] = ()
    """Columns of types that cannot be compared."""
    notes: tuple[str, ...] = ()
    """What is no fault and yet worth a look."""

    def count(self, *kinds: str) -> int:
        return sum(each.count for each in self.anomalies if each.kind in kinds)

    def but(self, reason: str, *kinds: str) -> "Found":
        """The same, but that anomalies of these kinds may have another reason."""
        doubtful = sorted(
            (each for each in self.anomalies if each.kind in kinds), key=lambda each: each.kind
        )
        if not doubtful:
            return self
        counts = ", ".join(f"{each.count} {each.kind}" for each in doubtful)
        left = tuple(each for each in self.anomalies if each.kind not in kinds)
        return replace(self, anomalies=left, unknown=(*self.unknown, f"{counts}: {reason}"))


@dataclass(frozen=True, kw_only=True)
class Case:
    source: Source
    snapshot: Snapshot
    scope: Scope
    noted: Noted
    stream: Plan
    """Of the pipeline as it runs: a batch has no watermarks."""
    within: tuple[Range, ...] | None = None
    """What the sink's rows are read of, if not all of them are."""

    @property
    def ledger(self) -> LedgerSnapshot:
        return self.snapshot.ledger

    @property
    def mode(self) -> str:
        return self.source.pipeline.sink.mode

    @property
    def key(self) -> tuple[str, ...]:
        return self.snapshot.key

    def keeps_newest(self, plan: Plan) -> bool:
        """Whether it is known which row of a key is kept."""
        return plan.has_coordinates and self.snapshot.keeps_newest

    def shaped(self, plan: Plan, frame: DataFrame) -> DataFrame:
        """Rows of the transform as the target keeps them."""
        return self.snapshot.shaped(
            frame, has_coordinates=plan.has_coordinates, passed=self.source.passes
        )

    def sides(self, plan: Plan, shaped: DataFrame, rows: DataFrame) -> Sides:
        return sides_of(shaped, rows, summed=sums_doubles(plan))

    @property
    def watermarked(self) -> bool:
        return self.stream.stateful and "EventTimeWatermark" in operators(self.stream.frame)

    def kept(self, plan: Plan) -> DataFrame:
        """What should be in the sink: rows of records that are dead letters, because the target
        refused them, should not."""
        return (
            without(plan.frame, self.refused)
            if plan.has_coordinates and self.refused
            else plan.frame
        )

    def seen(self, plan: Plan, rows: DataFrame) -> DataFrame:
        """The same of what is in the sink: of several rows that a record gives, some may have been
        taken. If it gives one, that is not to be there."""
        if gives_one_each(plan.frame) or not self.refused:
            return rows
        return without(rows, self.refused)

    @property
    def refused(self) -> Collection[Coordinates]:
        """Records whose rows the sink may have refused."""
        return self.ledger.letters if self.snapshot.refuses else ()


def snapshot_of(request: RunRequest, spark: SparkSession) -> AbstractContextManager[Snapshot]:
    """What a pipeline's target holds and its ledger says, now."""
    return request.target.snapshot(spark, lambda: look(request)[1])


def gives_one_each(frame: DataFrame) -> bool:
    """Whether a record gives one row at the most."""
    return not operators(frame) & {"Generate", "Join"}


def sums_doubles(plan: Plan) -> bool:
    """Whether rows may hold numbers whose last bits depend on the order of the records."""
    return not plan.has_coordinates and any(
        _ADDS.search(name_of(node)) and _DOUBLE.search(node.schema().catalogString())
        for node in walk(analyzed(plan.frame))
    )


def operators(frame: DataFrame) -> set[str]:
    """The kinds of steps in a frame's plan."""
    return {name_of(node) for node in walk(analyzed(frame))}
