"""One audit: what its steps work on, and what they find."""

import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame

from tallygate.auditing.comparable import Sides, sides_of
from tallygate.auditing.kafka import TopicEvidence
from tallygate.auditing.ledger_snapshot import Claims, Evidence
from tallygate.auditing.recompute import Noted, Source, without
from tallygate.auditing.scope import Scope
from tallygate.auditing.verdict import Anomaly
from tallygate.core.letters import Coordinates
from tallygate.core.offsets import Range
from tallygate.engine.pipeline import Pipeline
from tallygate.spark.plan import Plan, analyzed, name_of, walk

_ADDS = re.compile("Aggregate|Groups|WithState")
_DOUBLE = re.compile("[:<](double|float)[,>]")


@dataclass(frozen=True)
class Found:
    rows: int
    anomalies: tuple[Anomaly, ...] = ()
    unknown: tuple[str, ...] = ()
    kept: int | None = None
    """How many records have rows; None if rows are not of one record each."""
    left_out: tuple[str, ...] = ()
    """Columns of types that cannot be compared."""

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


@dataclass(frozen=True)
class Case:
    source: Source
    evidence: Evidence
    scope: Scope
    noted: Noted
    stream: Plan
    """Of the pipeline as it runs: a batch has no watermarks."""
    within: tuple[Range, ...] | None = None
    """What the sink's rows are read of, if not all of them are."""

    @property
    def claims(self) -> Claims:
        return self.evidence.claims

    @property
    def mode(self) -> str:
        return self.source.pipeline.sink.mode

    @property
    def key(self) -> tuple[str, ...]:
        return kept_by(self.evidence, self.source.pipeline)

    def keeps_last(self, plan: Plan) -> bool:
        """Whether the row of a key is its last record's, by the order of their offsets. In lanes
        rows come in the order of a shuffle."""
        if isinstance(self.evidence, TopicEvidence):
            return plan.has_coordinates and self.evidence.compacted and self.evidence.narrow
        return plan.has_coordinates and self.mode == "upsert"

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
        return self.claims.letters if self.evidence.refuses else ()


def kept_by(evidence: Evidence, pipeline: Pipeline) -> tuple[str, ...]:
    """The columns of which the sink keeps one row for each value; none if all rows are kept."""
    if isinstance(evidence, TopicEvidence):
        return ("key",) if evidence.compacted else ()
    return tuple(getattr(pipeline.sink, "key", ()))


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
