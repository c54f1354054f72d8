"""What a drill is: a name, what must hold, and how it is played."""

from collections.abc import Callable
from dataclasses import dataclass

from tallygate.lab.drills.drill_run import Scene
from tallygate.lab.drills.outcome import Control


@dataclass(frozen=True)
class Drill:
    name: str
    must_hold: str
    """In prose, for the user who runs it: what may happen, and what never."""
    play: Callable[[Scene], tuple[Control, ...]]
    """Starts the pipeline and the load, brings the fault, heals it, and waits until the pipeline
    has caught up. Returns what became of the controls."""
    seed: int | None = None
    """Where its faults come from, if they come by chance."""


class Drills(dict[str, Drill]):
    """Drills by name, each declared above the function that plays it."""

    def add(
        self, name: str, must_hold: str
    ) -> Callable[[Callable[[Scene], tuple[Control, ...]]], Drill]:
        def declare(play: Callable[[Scene], tuple[Control, ...]]) -> Drill:
            self[name] = Drill(name, " ".join(must_hold.split()), play)
            return self[name]

        return declare
