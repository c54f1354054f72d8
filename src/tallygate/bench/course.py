"""How rows came into a sink, commit by commit, and what is concluded from it.

Whoever writes, the sink itself tells when rows became visible: PostgreSQL keeps the time of each
transaction's commit, a topic the time at which each record was appended. So all contenders are
measured alike, whatever they are, and none by what it says of itself. Start and warm-up are left
out: the clock runs from the moment at which a fifth of the rows were in.

That must be the end of a batch, for those who write in batches. Within one, some of its rows are
worked on before the clock runs and come in right after: with two batches of two tasks each the rate
would be half as much again as it is. So work is cut into five batches or a multiple of it, and the
fifth is reached a little early, lest the end of a batch misses it by a record.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

__all__ = ["WARM_UP", "Course"]

WARM_UP, EARLY = 0.2, 0.99


@dataclass(frozen=True)
class Course:
    commits: tuple[tuple[float, int], ...]
    """When, in seconds since 1970, and how many rows became visible then."""

    @classmethod
    def of_batches(cls, ends: Sequence[float], size: int, rows: int) -> "Course":
        """Of batches of one size, but for the last."""
        counts = [size] * (len(ends) - 1)
        return cls(tuple(zip(ends, [*counts, rows - sum(counts)], strict=True)))

    @property
    def rows(self) -> int:
        return sum(count for _, count in self.commits)

    @property
    def begin(self) -> float:
        """When the warm-up was over."""
        return self.commits[self._warm()][0]

    @property
    def end(self) -> float:
        return self.commits[-1][0]

    @property
    def measured(self) -> int:
        """The rows that came after the warm-up."""
        return sum(count for _, count in self.commits[self._warm() + 1 :])

    @property
    def rate(self) -> float:
        """Rows a second; all of them at once cannot be measured, and are none."""
        return self.measured / (self.end - self.begin) if self.end > self.begin else 0.0

    def _warm(self) -> int:
        sums = accumulate(count for _, count in self.commits)
        warm = WARM_UP * EARLY * self.rows
        return next(at for at, done in enumerate(sums) if done >= warm)
