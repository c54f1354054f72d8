"""What every sink is given and gives back."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pyspark.sql import DataFrame

from tallygate.core.offsets import Range

__all__ = ["Batch", "Retry", "Sink", "Written"]


@dataclass(frozen=True)
class Batch:
    """One micro-batch: Spark's number for it, and the ranges of offsets that it stands for."""

    id: int
    ranges: tuple[Range, ...]

    @property
    def whole(self) -> set[Range]:
        """The ranges that hold anything."""
        return {each for each in self.ranges if len(each)}

    def is_in_part(self, left: Iterable[Range]) -> bool:
        """Whether only a part is left to do, so that rows have to be trimmed."""
        return set(filter(len, left)) != self.whole


@dataclass(frozen=True)
class Written:
    """What became of a batch."""

    way: str
    rows: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)


class Retry(Exception):  # noqa: N818 - not an error of the user's: the batch is planned anew
    """The outcome is unknown, or the store is away: ask the ledger again, then do what is left."""


class Sink(Protocol):
    def write(self, frame: DataFrame, batch: Batch) -> Written:
        """Write what the ledger says is left of the batch, and move the ledger with it."""
