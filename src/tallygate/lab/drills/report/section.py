"""One drill on the page: what must hold, what came of it, its timeline, its controls beside it."""

from collections.abc import Sequence

from tallygate.auditing.verdict import Verdict
from tallygate.lab.drills.outcome import Control, Event, Outcome
from tallygate.lab.drills.report.chart import timeline
from tallygate.lab.drills.report.markup import (
    badge,
    count,
    failing,
    harm,
    plural,
    prose,
    seconds,
    text,
    time,
)


def reasons(outcome: Outcome) -> list[str]:
    """Why a drill is not valid, one sentence each."""
    found = []
    if outcome.lost:
        found.append(f"Acknowledged records that were lost: {count(outcome.lost)}.")
    if outcome.duplicated:
        found.append(f"Records that were duplicated: {count(outcome.duplicated)}.")
    found += outcome.wrong
    unsaid = {Verdict.INVALID: not found, Verdict.UNKNOWN: not outcome.unknown}
    if unsaid.get(outcome.audit):
        found.append(f"The verdict of the audit is {outcome.audit.value}.")
    found += outcome.unknown
    found += [
        f"The control {control.name} did NOT fail, so nothing shows that the fault did any harm."
        for control in outcome.controls
        if not control.failed
    ]
    return found


def drill_section(outcome: Outcome, anchor: str) -> str:
    why = "".join(f"<li>{prose(reason)}</li>" for reason in reasons(outcome))
    measures = (
        ("acknowledged", count(outcome.acknowledged)),
        ("lost", harm(outcome, outcome.lost)),
        ("duplicated", harm(outcome, outcome.duplicated)),
        ("producer recovery", time(outcome.producer_seconds)),
        ("pipeline recovery", time(outcome.pipeline_seconds)),
        ("longest wait", time(outcome.longest_wait)),
        ("whole drill", seconds(outcome.seconds)),
        *([("seed", str(outcome.seed))] if outcome.seed is not None else []),
    )
    listed = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in measures)
    chart = '<p class="empty">No sample was taken, so there is no timeline.</p>'
    if outcome.samples:
        chart = timeline(outcome.name, outcome.samples, outcome.events, anchor)
    cards = "".join(_card(control) for control in outcome.controls)
    controls = cards or '<p class="empty">This drill has none.</p>'
    return (
        f'<article id="{anchor}" aria-labelledby="{anchor}-name">\n'
        f'<h2 id="{anchor}-name">{text(outcome.name)}</h2> {badge(outcome.verdict)}'
        f' <a class="back" href="#verdicts">all verdicts</a>\n'
        f'<p class="holds"><b>What must hold.</b> {prose(outcome.must_hold)}</p>\n'
        + (f'<ul class="reasons">{why}</ul>\n' if why else "")
        + f'<dl class="measures">{listed}</dl>\n<div class="beside">\n'
        f'<figure class="scroll" tabindex="0">{chart}</figure>\n'
        f"<aside><h3>Controls</h3>{controls}</aside>\n</div>\n{_events(outcome.events)}</article>\n"
    )


def _card(control: Control) -> str:
    return (
        f'<div class="card"><h4>{text(control.name)}</h4><p>{prose(control.what)}</p>'
        f"<dl><div><dt>lost</dt><dd>{count(control.lost)}</dd></div>"
        f"<div><dt>duplicated</dt><dd>{count(control.duplicated)}</dd></div>"
        f"<div><dt>acknowledged</dt><dd>{count(control.acknowledged)}</dd></div></dl>"
        f'<p class="muted">It must {text(control.must)}.</p>{failing(control)}</div>'
    )


def _events(events: Sequence[Event]) -> str:
    if not events:
        return ""
    rows = "".join(
        f'<tr><td class="number">{seconds(event.at)}</td><td>{text(event.kind)}</td>'
        f"<td>{prose(event.text)}</td></tr>"
        for event in sorted(events, key=lambda event: event.at)
    )
    return (
        f"<details><summary>{plural(len(events), 'event')}</summary>"
        '<table class="events"><thead><tr><th scope="col" class="number">Time</th>'
        '<th scope="col">Kind</th><th scope="col">What happened</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></details>\n"
    )
