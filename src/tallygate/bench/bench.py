"""`bench`: everything that is measured, in turns, on one stack.

Contenders take turns round by round, so that a slow minute of the machine hits all of them; what
is compared is medians. A contender whose rows do not come out as they went in does not count.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ParamSpec

from tallygate.bench import flink, growth, latency, ours, recovery
from tallygate.bench.contender import Contender
from tallygate.bench.contenders import CONTENDERS
from tallygate.bench.findings import Figure, Findings
from tallygate.bench.meter import Meter
from tallygate.bench.stage import Stage, Work
from tallygate.errors import ConfigError, TallygateError
from tallygate.progress import Progress, silent

__all__ = ["SIZES", "Size", "bench"]

P = ParamSpec("P")
OTHERS = ("latency", "recovery", "growth")
LONGER = 10_000_000


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
            rates = tuple(turn.rate for turn in turns[each.name])
            cpu = tuple(turn.cpu for turn in turns[each.name])
            held = tuple(turn.memory for turn in turns[each.name])
            given = each.settings_on(stage)
            figure = Figure(each.name, "rows/s", rates, each.promise, given, cpu, held)
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


def _take_turn(stage: Stage, contender: Contender, turns: list[_Turn]) -> None:
    with Meter(newcomers=not contender.on_spark) as meter:
        course = contender.run(stage)
    if not course.rate:
        raise TallygateError("all rows came at once, which cannot be measured.")
    spent = meter.between(course.begin, course.end)
    millions = course.measured / 1e6
    cpu = {kind: value / millions for kind, value in spent.items()}
    turns.append(_Turn(course.rate, cpu, meter.peak(course.begin, course.end)))


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
            found = latency.latency(stage, start, rate, size.paced)
            findings.note(f"{name} p50 {rate}", "s", found.p50)
            findings.note(f"{name} p99 {rate}", "s", found.p99)
            progress(f"{name} at {rate:,}/s: p50 {found.p50:.2f} s, p99 {found.p99:.2f} s")


def _recovery(stage: Stage, size: Size, findings: Findings, progress: Progress) -> None:
    for name, killed in (("spark", recovery.plain), ("tallygate", recovery.ours)):
        seconds = killed(stage, size.kills)
        findings.note(f"{name} killed", "s", *seconds)
        progress(f"{name} killed: commits again after {statistics.median(seconds):.1f} s")


def _growth(stage: Stage, size: Size, findings: Findings, progress: Progress) -> None:
    findings.note("long ledger", "rows/s", growth.by_history(stage))
    findings.note("64 partitions", "rows/s", growth.by_partitions(stage, 64))
    if size.most_rows:
        for rows in (1_000_000, 10_000_000, size.most_rows):
            findings.note(f"{rows:,} rows", "rows/s", growth.by_rows(stage, rows))
            progress(f"{rows:,} rows: {findings.figures[f'{rows:,} rows'].median:,.0f} rows/s")
        longer = {"tallygate longer": ours.append, "flink sql longer": flink.into_table}
        rates = growth.over_longer(stage, LONGER, list(longer.values()))
        for name, rate in zip(longer, rates, strict=True):
            findings.note(name, "rows/s", rate)
            progress(f"{name}, {LONGER:,} rows: {rate:,.0f} rows/s")
