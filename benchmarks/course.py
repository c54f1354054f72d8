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
from itertools import accumulate, pairwise

__all__ = ["WARM_UP", "Course", "Stretch"]

WARM_UP, EARLY = 0.2, 0.99


@dataclass(frozen=True)
class Stretch:
    """A part of a course: rows that came after one moment, up to another."""

    begin: float
    end: float
    rows: int

    @property
    def rate(self) -> float:
        """Rows a second; all of them at once cannot be measured, and are none."""
        return self.rows / (self.end - self.begin) if self.end > self.begin else 0.0


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
    def measured(self) -> Stretch:
        """What came after the warm-up."""
        return self._after(self._reached(WARM_UP), len(self.commits) - 1)

    @property
    def rate(self) -> float:
        return self.measured.rate

    def parts(self, number: int) -> list[Stretch]:
        """So many parts of about as many rows; the first one's time begins with its first rows."""
        inner = (self._reached((part + 1) / number) for part in range(number - 1))
        ends = [0, *inner, len(self.commits) - 1]
        return [self._after(*pair) for pair in pairwise(ends)]

    def _after(self, first: int, last: int) -> Stretch:
        """From one commit, whose rows do not count, to another."""
        rows = sum(count for _, count in self.commits[first + 1 : last + 1])
        return Stretch(self.commits[first][0], self.commits[last][0], rows)

    def _reached(self, share: float) -> int:
        """The commit with which a share of the rows was in."""
        sums = accumulate(count for _, count in self.commits)
        enough = share * EARLY * self.rows
        return next(at for at, done in enumerate(sums) if done >= enough)
