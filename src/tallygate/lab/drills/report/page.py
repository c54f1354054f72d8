"""`report.html`: what a run of drills has shown, as one page that needs nothing but itself.

The verdicts come first, then each drill with its timeline and its controls. What was not checked
is never shown as a zero: where the audit could not decide, the page says that it is not known.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tallygate.lab.drills.outcome import Outcome
from tallygate.lab.drills.report.markup import text
from tallygate.lab.drills.report.overview import page_header, tally, verdict_table
from tallygate.lab.drills.report.section import drill_section

_STYLE = Path(__file__).with_name("report.css")


def write_report(
    outcomes: Sequence[Outcome],
    folder: Path,
    *,
    title: str = "Tallygate drills",
    facts: Mapping[str, str] = {},
) -> Path:
    """Write `report.html` into the folder; `facts` are versions, the machine, the date."""
    anchors = _anchors(outcomes)
    drills = list(zip(outcomes, anchors, strict=True))
    page = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{text(title)}: {tally(outcomes)}</title>\n"
        f"<style>\n{_STYLE.read_text(encoding='utf-8')}</style>\n</head>\n<body>\n"
        f"{page_header(drills, title, facts)}\n<main>\n{verdict_table(drills)}\n"
        f"{''.join(drill_section(outcome, anchor) for outcome, anchor in drills)}"
        "</main>\n</body>\n</html>\n"
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def _anchors(outcomes: Sequence[Outcome]) -> list[str]:
    """A name to link to for each drill; one that ran twice gets a number."""
    found: list[str] = []
    for outcome in outcomes:
        plain = re.sub(r"[^a-z0-9]+", "-", outcome.name.lower()).strip("-") or "unnamed"
        anchor, number = f"drill-{plain}", 2
        while anchor in found:
            anchor, number = f"drill-{plain}-{number}", number + 1
        found.append(anchor)
    return found
