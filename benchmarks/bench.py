"""`bench`: everything that is measured, in turns, on one stack.

Contenders take turns round by round, so that a slow minute of the machine hits all of them; what
is compared is medians. A contender whose rows do not come out as they went in does not count.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ParamSpec

from benchmarks import flink, growth, latency, ours, recovery
from benchmarks.contender import Contender
from benchmarks.contenders import CONTENDERS
from benchmarks.course import Stretch
from benchmarks.findings import Figure, Findings
from benchmarks.meter import Meter
from benchmarks.stage import Stage, Work
from benchmarks.targets import FEW_PARTITIONS, LONG_LEDGER, MANY_PARTITIONS
from tallygate.errors import ConfigError, TallygateError
from tallygate.progress import Progress, silent

__all__ = ["SIZES", "Size", "bench"]

P = ParamSpec("P")
OTHERS = ("latency", "recovery", "growth")
LONGER = 10_000_000
LEAST = 1_000_000
MANY = 64
FIFTHS = 5
APPEND = next(each for each in CONTENDERS["postgres"] if each.run is ours.append)


@dataclass(frozen=True)
class Size:
    rows: int
    rounds: int
    paced: int
    """Seconds of load for the latency."""
    kills: int
    most_rows: int
    """For the growth."""


SIZES = {
    "small": Size(500_000, 1, 12, 1, 0),
    "standard": Size(2_000_000, 3, 30, 3, 0),
    "large": Size(2_000_000, 3, 30, 3, 50_000_000),
}


def bench(size: Size, parts: Sequence[str] = (), progress: Progress = silent) -> Findings:
    """Measure everything, or only some parts."""
    known = (*CONTENDERS, *OTHERS)
    for part in parts:
        if part not in known:
            raise ConfigError(
                f"there is no part {part!r} to measure; there are {', '.join(known)}."
            )
    chosen = set(parts or known)
    findings = Findings()
    with Stage.opened(Work(size.rows), progress) as stage:
        entered = [each for part in CONTENDERS if part in chosen for each in CONTENDERS[part]]
        _rounds(stage, entered, size.rounds, findings, progress)
        others: dict[str, Callable[[Stage, Size, Findings, Progress], None]] = {
            "latency": _latency,
            "recovery": _recovery,
            "growth": _growth,
        }
        for part in OTHERS:
            if part in chosen:
                _tried(part, findings, others[part], stage, size, findings, progress)
    return findings


def _rounds(
    stage: Stage,
    entered: Sequence[Contender],
    rounds: int,
    findings: Findings,
    progress: Progress,
) -> None:
    _warm_up(stage, entered, findings, progress)
    turns: dict[str, list[_Turn]] = {each.name: [] for each in entered}
    for number in range(rounds):
        for each in entered:
            if each.name not in findings.failed:
                _tried(each.name, findings, _take_turn, stage, each, turns[each.name])
            said = findings.failed.get(each.name) or f"{turns[each.name][-1].rate:,.0f} rows/s"
            progress(f"round {number + 1}: {each.name}: {said}")
    for each in entered:
        if each.name not in findings.failed:
            given = each.settings_on(stage)
            figure = _figure(each.name, turns[each.name], each.promise, given)
            findings.figures[each.name] = figure


def _warm_up(
    stage: Stage, entered: Sequence[Contender], findings: Findings, progress: Progress
) -> None:
    """Those that share the Spark session go once over fewer rows: else whoever comes first would
    pay for its compiler, and the others not."""
    fewer = stage.filled(topic="warm-up", rows=stage.work.rows // 5)
    for each in entered:
        if each.on_spark:
            progress(f"warm-up: {each.name}")
            _tried(each.name, findings, _run, fewer, each)


def _run(stage: Stage, contender: Contender) -> None:
    contender.run(stage)


@dataclass(frozen=True)
class _Turn:
    rate: float
    cpu: Mapping[str, float]
    memory: float

    @classmethod
    def of(cls, part: Stretch, meter: Meter) -> "_Turn":
        if not part.rate:
            raise TallygateError("all rows came at once, which cannot be measured.")
        spent = meter.between(part.begin, part.end)
        cpu = {kind: value / part.rows * 1e6 for kind, value in spent.items()}
        return cls(part.rate, cpu, meter.peak(part.begin, part.end))


def _take_turn(stage: Stage, contender: Contender, turns: list[_Turn]) -> None:
    stage.settle()
    with Meter(newcomers=not contender.on_spark) as meter:
        course = contender.run(stage)
    turns.append(_Turn.of(course.measured, meter))


def _figure(name: str, turns: Sequence[_Turn], promise: str, settings: str) -> Figure:
    rates = tuple(turn.rate for turn in turns)
    cpu, held = tuple(turn.cpu for turn in turns), tuple(turn.memory for turn in turns)
    return Figure(name, "rows/s", rates, promise, settings, cpu, held)


def _tried(
    name: str, findings: Findings, what: Callable[P, object], *given: P.args, **named: P.kwargs
) -> None:
    """What fails, for whatever reason, does not stop the others, and is said in the end."""
    try:
        what(*given, **named)
    except Exception as error:
        findings.failed[name] = f"{type(error).__name__}: {error}"


def _latency(stage: Stage, size: Size, findings: Findings, progress: Progress) -> None:
    for rate in (2_000, 10_000):
        for name, start in (("spark jdbc", latency.plain), ("tallygate", latency.ours)):
            stage.settle()
            found = latency.latency(stage, start, rate, size.paced)
            findings.note(f"{name} p50 {rate}", "s", found.p50)
            findings.note(f"{name} p99 {rate}", "s", found.p99)
            progress(f"{name} at {rate:,}/s: p50 {found.p50:.2f} s, p99 {found.p99:.2f} s")


def _recovery(stage: Stage, size: Size, findings: Findings, progress: Progress) -> None:
    for name, killed in (("spark", recovery.plain), ("tallygate", recovery.ours)):
        stage.settle()
        seconds = killed(stage, size.kills)
        findings.note(f"{name} killed", "s", *seconds)
        progress(f"{name} killed: commits again after {statistics.median(seconds):.1f} s")


def _growth(stage: Stage, size: Size, findings: Findings, progress: Progress) -> None:
    def note(name: str, turns: Sequence[_Turn], settings: str) -> None:
        figure = _figure(name, turns, "exactly-once", settings)
        findings.figures[name] = figure
        findings.growth.append(name)
        progress(f"{name}: {figure.median:,.0f} rows/s")

    APPEND.run(stage)  # whoever comes first would pay for Spark's compiler
    if size.most_rows:
        _by_rows(stage, size, note)
    few: list[_Turn] = []
    many: list[_Turn] = []
    with growth.more(stage, "wide", partitions=MANY) as wide:
        for _ in range(size.rounds):
            _take_turn(stage, APPEND, few)
            _take_turn(wide, APPEND, many)
    usual = f"{stage.work.rows:,} rows in {stage.work.batches} batches"
    note(FEW_PARTITIONS, few, usual)
    note(MANY_PARTITIONS, many, usual)
    growth.lengthen_history(stage)
    late: list[_Turn] = []
    for _ in range(size.rounds):
        _take_turn(stage, APPEND, late)
    note(LONG_LEDGER, late, f"{growth.HISTORY:,} batches in the ledger")
    if size.most_rows:  # the last, since Flink may not be there
        _longer(stage, findings, progress)


def _by_rows(stage: Stage, size: Size, note: Callable[[str, Sequence[_Turn], str], None]) -> None:
    """Batches are as large, however many rows there are. Of the most rows also part by part: what
    costs more in the end than in the beginning is why the rate falls."""
    for rows in (LEAST, 10 * LEAST, size.most_rows):
        turns: list[_Turn] = []
        batches = f"batches of {growth.BATCH:,}"
        with growth.more(stage, f"rows-{rows}", rows=rows, batches=rows // growth.BATCH) as longer:
            for _ in range(size.rounds if rows == LEAST else 1):
                longer.settle()
                with Meter() as meter:
                    course = APPEND.run(longer)
                turns.append(_Turn.of(course.measured, meter))
        note(f"{rows:,} rows", turns, batches)
    for number, part in enumerate(course.parts(FIFTHS)):
        note(f"fifth {number + 1} of them", [_Turn.of(part, meter)], batches)


def _longer(stage: Stage, findings: Findings, progress: Progress) -> None:
    """Some contenders over more rows in batches as large as before: a program that starts a JVM of
    its own has warmed it up by then."""
    batches = stage.work.batches * LONGER // stage.work.rows
    with growth.more(stage, "longer", rows=LONGER, batches=batches) as longer:
        for name, run in (
            ("tallygate longer", ours.append),
            ("flink sql longer", flink.into_table),
        ):
            longer.settle()
            rate = run(longer).rate
            findings.note(name, "rows/s", rate)
            progress(f"{name}, {LONGER:,} rows: {rate:,.0f} rows/s")
