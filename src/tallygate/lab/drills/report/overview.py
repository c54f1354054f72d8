"""The top of the page: the verdict over all drills in one line, and the table of them."""

from collections.abc import Mapping, Sequence

from tallygate.auditing.verdict import Verdict, worst
from tallygate.lab.drills.outcome import Control, Outcome
from tallygate.lab.drills.report.markup import (
    badge,
    count,
    failing,
    harm,
    plural,
    prose,
    seconds,
    sign,
    text,
    time,
)
from tallygate.lab.drills.report.section import reasons


def tally(outcomes: Sequence[Outcome]) -> str:
    if not outcomes:
        return "No drill ran"
    verdicts = [outcome.verdict for outcome in outcomes]
    order = (Verdict.VALID, Verdict.INVALID, Verdict.UNKNOWN)
    counts = [f"{verdicts.count(v)} {v.value}" for v in order if v in verdicts]
    return f"{plural(len(outcomes), 'drill')}: {', '.join(counts)}"


def page_header(drills: Sequence[tuple[Outcome, str]], title: str, facts: Mapping[str, str]) -> str:
    outcomes = [outcome for outcome, _ in drills]
    verdict = worst(outcome.verdict for outcome in outcomes)
    headline = tally(outcomes)
    listed = "".join(
        f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in facts.items()
    )
    return (
        f"<header>\n<h1>{text(title)}</h1>\n"
        f'<p class="headline {verdict.value}">{sign(verdict)} {headline}</p>\n'
        f'{_lead(drills)}\n<dl class="figures">{_figures(outcomes)}</dl>\n'
        + (f'<dl class="facts">{listed}</dl>\n' if listed else "")
        + "</header>"
    )


def _lead(drills: Sequence[tuple[Outcome, str]]) -> str:
    """What the tally means: that all held, or what did not."""
    bad = [(outcome, at) for outcome, at in drills if outcome.verdict is not Verdict.VALID]
    if bad:
        items = "".join(
            f'<li>{badge(outcome.verdict)} <a href="#{at}">{text(outcome.name)}</a>: '
            f"{prose(reasons(outcome)[0])}</li>"
            for outcome, at in bad
        )
        return f'<ul class="reasons">{items}</ul>'
    if not drills:
        return '<p class="lead">Nothing was shown.</p>'
    said = "Under every fault, each acknowledged record arrived exactly once."
    if any(outcome.controls for outcome, _ in drills):
        said += " Every control was put under the same fault and failed as it must."
    return f'<p class="lead">{said}</p>'


def _figures(outcomes: Sequence[Outcome]) -> str:
    controls = [control for outcome in outcomes for control in outcome.controls]
    failed = sum(control.failed for control in controls)
    drills = plural(len(outcomes), "drill")
    recoveries = [(o.pipeline_seconds, o.name) for o in outcomes if o.pipeline_seconds is not None]
    slowest, where = max(recoveries, default=(0.0, "not measured"))
    acknowledged = count(sum(outcome.acknowledged for outcome in outcomes))
    spared = "every one must fail" if controls else "there were none"
    return (
        _figure("records acknowledged", acknowledged, f"in {drills}, under load")
        + _harm_figure("lost", sum(outcome.lost for outcome in outcomes), outcomes)
        + _harm_figure("duplicated", sum(outcome.duplicated for outcome in outcomes), outcomes)
        + _figure(
            "controls failed",
            f"{failed} of {len(controls)}",
            "as they must" if controls and failed == len(controls) else spared,
            bad=failed < len(controls),
        )
        + _figure("slowest pipeline recovery", seconds(slowest) if recoveries else "?", where)
    )


def _harm_figure(name: str, number: int, outcomes: Sequence[Outcome]) -> str:
    """A zero stands only for what was audited."""
    blind = sum(outcome.audit is Verdict.UNKNOWN for outcome in outcomes)
    if blind == len(outcomes) and not number:
        return _figure(name, "?", "not known, nothing was audited")
    drills = plural(blind or len(outcomes), "drill")
    note = f"not known for {drills}" if blind else f"in {drills}"
    return _figure(name, count(number), note, bad=number > 0)


def _figure(name: str, value: str, note: str, *, bad: bool = False) -> str:
    return (
        f'<div class="figure{" bad" if bad else ""}"><dt>{name}</dt>'
        f"<dd><b>{value}</b> <span>{text(note)}</span></dd></div>"
    )


def verdict_table(drills: Sequence[tuple[Outcome, str]]) -> str:
    headings = (
        *("Acknowledged", "Lost", "Duplicated"),
        *("Producer recovery", "Pipeline recovery", "Longest wait"),
    )
    numbers = "".join(f'<th scope="col" class="number">{name}</th>' for name in headings)
    rows = "".join(_row(outcome, anchor) for outcome, anchor in drills)
    return (
        '<section aria-labelledby="verdicts">\n<h2 id="verdicts">Verdicts</h2>\n'
        '<div class="scroll" role="region" aria-labelledby="verdicts" tabindex="0">\n'
        '<table class="verdicts"><thead><tr><th scope="col">Drill</th>'
        f'<th scope="col">Verdict</th>{numbers}<th scope="col">Controls</th></tr></thead>\n'
        f"<tbody>{rows}</tbody></table></div>\n"
        '<p class="muted">Recovery, from the fault on: the longest that a record waited to be'
        " acknowledged (producer), and the longest time without a commit while there was something"
        " to commit (pipeline). The longest wait is that of a record from acknowledgement to"
        " commit.</p></section>"
    )


def _row(outcome: Outcome, anchor: str) -> str:
    numbers = (
        *(count(outcome.acknowledged), harm(outcome, outcome.lost)),
        *(harm(outcome, outcome.duplicated), time(outcome.producer_seconds)),
        *(time(outcome.pipeline_seconds), time(outcome.longest_wait)),
    )
    controls = "".join(
        f"<li><b>{text(control.name)}</b>: {_failure(control)}, {failing(control)}</li>"
        for control in outcome.controls
    )
    return (
        f'<tr><th scope="row"><a href="#{anchor}">{text(outcome.name)}</a></th>'
        f"<td>{badge(outcome.verdict)}</td>"
        + "".join(f'<td class="number">{number}</td>' for number in numbers)
        + f"<td>{f'<ul>{controls}</ul>' if controls else 'none'}</td></tr>\n"
    )


def _failure(control: Control) -> str:
    """What a control did wrong; both counts if it did nothing wrong."""
    counts = ((control.lost, "lost"), (control.duplicated, "duplicated"))
    clean = not (control.lost or control.duplicated)
    return ", ".join(f"{count(number)} {name}" for number, name in counts if number or clean)
