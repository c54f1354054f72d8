"""A contender: what it is called, what it promises, and how it does the work."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from benchmarks.course import Course
from benchmarks.stage import Stage

__all__ = ["Contender", "Promise"]

Promise = Literal["exactly-once", "at-least-once", "nothing"]


@dataclass(frozen=True)
class Contender:
    name: str
    promise: Promise
    run: Callable[[Stage], Course]
    settings: str
    """What is set, beside what it brings; `{processes}` stands for how many there are."""
    on_spark: bool = True
    """Whether it runs in the stage's own Spark session."""

    def settings_on(self, stage: Stage) -> str:
        return self.settings.format(processes=stage.processes)
