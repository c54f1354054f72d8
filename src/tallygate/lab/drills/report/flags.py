"""Where the labels of a timeline's events go, so that none covers another.

A label is a flag: its pole stands on the plot at the event's moment, its text runs to the right of
the pole. Of two flags of which the earlier would run into the later, the earlier one flies higher.
So no pole ever crosses a text. An event for which no row is left keeps its tick and loses its
label; faults are placed first, notes last.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tallygate.lab.drills.outcome import Event

ROWS = 4
LONGEST = 44
LETTER = 6.4
"""How wide a letter is at most on average, for fonts that we do not know."""
POLE = 7.0
"""From the pole to the first letter."""
MOST = 40
"""No chart has room for more labels than this, and placing them takes time."""

_ORDER = {"fault": 0, "heal": 1, "run": 2}


@dataclass(frozen=True)
class Flag:
    x: float
    event: Event
    label: str
    row: int | None
    """From the plot upwards; none if there is no room for the label."""


def place_flags(events: Sequence[Event], x: Callable[[float], float], end: float) -> list[Flag]:
    """One flag for each event, from left to right, none running beyond `end`."""
    ordered = sorted(events, key=lambda event: event.at)
    spots = [x(event.at) for event in ordered]
    labels = [_shortened(event.text, end - at) for event, at in zip(ordered, spots, strict=True)]
    spans = [
        (at, at + POLE + LETTER * len(label) + 8) for at, label in zip(spots, labels, strict=True)
    ]
    rows: dict[int, int] = {}
    by_weight = sorted(range(len(ordered)), key=lambda i: (_ORDER.get(ordered[i].kind, 3), i))
    for index in by_weight[:MOST]:
        tried = _rows(spans, sorted([*rows, index]))
        if max(tried.values()) < ROWS:
            rows = tried
    return [
        Flag(at, event, label, rows.get(index))
        for index, (at, event, label) in enumerate(zip(spots, ordered, labels, strict=True))
    ]


def _rows(spans: Sequence[tuple[float, float]], chosen: Sequence[int]) -> dict[int, int]:
    rows: dict[int, int] = {}
    for index in reversed(chosen):
        beneath = [row for other, row in rows.items() if spans[other][0] < spans[index][1]]
        rows[index] = max(beneath, default=-1) + 1
    return rows


def _shortened(label: str, room: float) -> str:
    line = " ".join(label.split())
    most = max(min(LONGEST, int((room - POLE) / LETTER)), 1)
    return line if len(line) <= most else line[: most - 1].rstrip(" ,.;:") + "…"
