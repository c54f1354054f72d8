"""What an audit says.

A verdict is valid, invalid or unknown, and of several the worst wins. **A check that crashed has
not passed**, and neither has one that could not see everything: unknown is never valid.

What can be wrong with a row of the sink, or with a record that has none:

    missing       the ledger claims the record, the transform gives a row, the sink has none
    duplicate     the sink has the row more often than the transform gives it
    unexpected    the transform gives no such row from any record that the ledger claims
    different     the row is there, with other content
    misplaced     the row's record lies outside of what the ledger claims
    undead        the record cannot be decoded, and is not among the dead letters
    aborted       the row is of a record whose transaction was aborted: of the source, or, in
                  a topic, the row is one too many and an aborted write of it is there as well
    disordered    two rows of one key are in a topic in another order than their records

What can be wrong with the ledger itself:

    gap           its history leaves out offsets that it claims, and does not call them lost
    overlap       its history has offsets twice, or goes further than it claims
    overclaimed   it claims offsets that the source does not have yet

And with a topic that is read twice, once with what was committed and once with everything:

    skipped       the second reading passes over a record that the first one has
    inconsistent  both readings have the offset, with different records

These are the anomalies that Jepsen's workload for Kafka names, as far as they leave a trace for
an audit that comes afterwards. Its lost write is `missing`, its duplicate `duplicate`, its aborted
read (G1a) `aborted`, its inconsistent offsets `inconsistent`. The pipeline itself is a reader, and
its polls are the ledger's history: a skipped poll is a `gap` (and `skipped` for the audit's own
reading), a nonmonotonic poll an `overlap`. A nonmonotonic send is `disordered`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from tallygate.printable import printable

KINDS = (
    "missing",
    "duplicate",
    "unexpected",
    "different",
    "misplaced",
    "undead",
    "aborted",
    "disordered",
    "gap",
    "overlap",
    "overclaimed",
    "skipped",
    "inconsistent",
)


class Verdict(Enum):
    """In the order of their weight."""

    VALID = "valid"
    UNKNOWN = "unknown"
    INVALID = "invalid"

    @property
    def exit_code(self) -> int:
        return {Verdict.VALID: 0, Verdict.INVALID: 1, Verdict.UNKNOWN: 2}[self]


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    order = list(Verdict)
    return max(verdicts, key=order.index, default=Verdict.UNKNOWN)


@dataclass(frozen=True)
class Anomaly:
    kind: str
    count: int
    examples: tuple[str, ...]
    """The first ones, with where they are."""


@dataclass(frozen=True, kw_only=True, repr=False)
class AuditResult:
    """True only if the verdict is valid: `assert tallygate.audit("payments.yaml")`."""

    pipeline: str
    target: str
    records: int
    """Records of the source that the ledger claims and that could be read again."""
    rows: int
    letters: int = 0
    """Dead letters."""
    lost: int = 0
    """Records that were given up as lost."""
    anomalies: tuple[Anomaly, ...] = ()
    unknown: tuple[str, ...] = ()
    """What could not be checked, and why."""
    seconds: float = 0.0
    checked: dict[str, list[list[int]]] = field(default_factory=dict)
    """For each partition the offsets from which and up to which it was checked."""
    filtered: int | None = None
    """Records of which the transform makes no row; None where rows are not of one record each."""
    not_compared: tuple[str, ...] = ()
    """Columns of types that cannot be compared; the verdict is about the others."""
    notes: tuple[str, ...] = ()
    """What is no fault and yet worth a look, such as a target without rows."""
    scope: str = ""
    """What was asked for, if it was not everything, and how sure the verdict is of the rest."""

    @property
    def verdict(self) -> Verdict:
        found = [Verdict.VALID]
        if self.unknown:
            found.append(Verdict.UNKNOWN)
        if any(each.count for each in self.anomalies):
            found.append(Verdict.INVALID)
        return worst(found)

    @property
    def counts(self) -> dict[str, int]:
        """How many there are of each kind of anomaly, zeros included."""
        found = dict.fromkeys(KINDS, 0)
        for each in self.anomalies:
            found[each.kind] += each.count
        return found

    def as_dict(self) -> dict[str, Any]:
        return {"verdict": self.verdict.value, **asdict(self), "counts": self.counts}

    def __bool__(self) -> bool:
        return self.verdict is Verdict.VALID

    def __str__(self) -> str:
        return "\n".join(map(printable, self._lines()))

    def __repr__(self) -> str:
        """One line with what is wrong, for the messages of failed assertions."""
        wrong = [f"{each.count:,} {each.kind}{_first(each)}" for each in self.anomalies]
        unknown = [f"unknown: {text}" for text in self.unknown]
        said = "; ".join([*wrong, *unknown]) or f"{self.records:,} records, {self.rows:,} rows"
        return printable(f"<AuditResult {self.pipeline}: {self.verdict.value}; {said}>")

    def _lines(self) -> Iterator[str]:
        yield f"{self.pipeline}: {self.verdict.value}"
        filtered = "" if self.filtered is None else f"{self.filtered:,} filtered, "
        yield (
            f"  {self.records:,} records, {self.rows:,} rows, {filtered}"
            f"{self.letters:,} dead letters, {self.lost:,} lost; {self.seconds:.1f} s"
        )
        if self.scope:
            yield f"  only {self.scope}"
        for each in self.anomalies:
            yield f"  {each.kind}: {each.count:,}"
            yield from (f"    {example}" for example in each.examples)
        if self.not_compared:
            yield f"  not compared: {', '.join(self.not_compared)}"
        yield from (f"  unknown: {text}" for text in self.unknown)
        yield from (f"  note: {text}" for text in self.notes)


def _first(anomaly: Anomaly) -> str:
    return f" ({anomaly.examples[0]})" if anomaly.examples else ""
