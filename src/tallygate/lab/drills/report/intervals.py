"""When a drill's fault was there: from each fault to the next heal."""

from collections.abc import Sequence
from dataclasses import dataclass

from tallygate.lab.drills.outcome import Event

__all__ = ["Interval", "fault_intervals"]


@dataclass(frozen=True)
class Interval:
    """In seconds since the drill began."""

    since: float
    until: float
    healed: bool
    """Whether a heal ended it; else it lasted until the end."""


def fault_intervals(events: Sequence[Event], end: float) -> list[Interval]:
    """The intervals in order; a fault within a fault begins no other one."""
    found: list[Interval] = []
    since: float | None = None
    for event in sorted(events, key=lambda event: event.at):
        if event.kind == "fault" and since is None:
            since = event.at
        elif event.kind == "heal" and since is not None:
            found.append(Interval(since, event.at, healed=True))
            since = None
    if since is not None:
        found.append(Interval(since, max(end, since), healed=False))
    return found
