"""What was found: figures by contender, and what they come to beside each other."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.targets import TARGETS, Comparison

__all__ = ["Figure", "Findings"]


@dataclass(frozen=True)
class Figure:
    """What one contender gave, round by round."""

    name: str
    unit: str
    values: tuple[float, ...]
    promise: str = ""
    settings: str = ""
    cpu: tuple[Mapping[str, float], ...] = ()
    """Seconds of all cores for a million rows, by kind of process."""
    memory: tuple[float, ...] = ()
    """The most that its processes held, in MiB."""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def held(self) -> float:
        return statistics.median(self.memory)

    def spent(self, kind: str) -> float:
        return statistics.median(each[kind] for each in self.cpu)


@dataclass
class Findings:
    figures: dict[str, Figure] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    """Those that do not count, and why."""
    growth: list[str] = field(default_factory=list)
    """The figures that tell how the rate grows, as they are to be read."""

    @property
    def comparisons(self) -> list[Comparison]:
        return [
            target.compared(self.figures[target.ours].median, self.figures[target.peer].median)
            for target in TARGETS
            if target.ours in self.figures and target.peer in self.figures
        ]

    def note(self, name: str, unit: str, *values: float) -> None:
        self.figures[name] = Figure(name, unit, values)
