"""How values are written on the page: text that cannot break it, counts, times, verdicts."""

import html
import re

from tallygate.auditing.verdict import Verdict
from tallygate.lab.drills.outcome import Control, Outcome

_SIGNS = {Verdict.VALID: "✓", Verdict.UNKNOWN: "?", Verdict.INVALID: "✗"}

# What XML forbids. Such characters come with what a dying process printed last.
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]")


def text(value: str) -> str:
    """Escaped, for content and for quoted attributes."""
    encodable = value.encode("utf-8", "replace").decode("utf-8")
    return html.escape(_CONTROLS.sub("\N{REPLACEMENT CHARACTER}", encodable))


def prose(value: str) -> str:
    """Escaped, with what stands in backticks set as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text(value))


def count(number: int) -> str:
    return f"{number:,}"


def seconds(value: float) -> str:
    """One digit after the point is as good as the samples are."""
    return f"{value:,.1f} s"


def plural(number: int, noun: str) -> str:
    return f"{count(number)} {noun}" + ("" if number == 1 else "s")


def time(value: float | None) -> str:
    if value is None:
        return '<span aria-hidden="true">&ndash;</span><span class="unseen">not measured</span>'
    return seconds(value)


def sign(verdict: Verdict) -> str:
    return f'<span class="sign" aria-hidden="true">{_SIGNS[verdict]}</span>'


def badge(verdict: Verdict) -> str:
    return f'<span class="badge {verdict.value}">{sign(verdict)} {verdict.value}</span>'


def failing(control: Control) -> str:
    if control.failed:
        return f'<span class="failing valid">{sign(Verdict.VALID)} failed as it must</span>'
    return f'<span class="failing unknown">{sign(Verdict.UNKNOWN)} did NOT fail</span>'


def harm(outcome: Outcome, number: int) -> str:
    """How many were lost or duplicated; a zero that no audit stands behind is not known."""
    if outcome.audit is Verdict.UNKNOWN and not number:
        return '<span class="muted">not known</span>'
    return f'<b class="harm">{count(number)}</b>' if number else count(number)
