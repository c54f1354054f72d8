"""A target's rows and ledger at one moment, for an audit.

Whatever the target, an audit needs the same two things of it, and needs them to belong together:
the ranges of records that the ledger says are in the target, and the rows that are there. Each
target has its own way to see both at one moment while the pipeline goes on (its `snapshot`), and
says here what differs between targets and matters to an audit.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from tallygate.core.ledger_snapshot import LedgerSnapshot
from tallygate.core.letters import Coordinates
from tallygate.core.offsets import Range
from tallygate.quoting import backticked

Step = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class Readings(NamedTuple):
    """A target read twice, which shows what single rows do not."""

    committed: DataFrame
    everything: DataFrame
    """With the rows that were written and aborted."""


@dataclass(frozen=True, kw_only=True)
class Snapshot(ABC):
    name: str
    """What the target is called in messages."""
    ledger: LedgerSnapshot
    key: tuple[str, ...] = ()
    """The columns of which the target keeps one row for each value; none if all rows are kept."""
    keeps_newest: bool = False
    """Whether the row of a key is its last record's, by the order of their offsets."""
    refuses: bool = False
    """Whether the target may refuse a row, whose record then becomes a dead letter."""
    shared: bool = False
    """Whether others write there too, whose rows are not looked at."""
    is_text: bool = False
    """Whether numbers are digits of a text."""
    removed: int = 0
    """How many rows retention may have removed."""
    lists_letters: str = "`tallygate.dead_letters` in Python lists them"
    """How the dead letters are listed, for people."""

    @abstractmethod
    def rows(self, within: Sequence[Range] | None = None) -> DataFrame:
        """The rows of that moment; at least those of the ranges, if some are given and rows carry
        coordinates."""

    @abstractmethod
    def letter(self, at: Coordinates) -> str | None:
        """Why the record is a dead letter; None if it is none."""

    def through(
        self, step: Step, made: str, columns: Sequence[str], within: Sequence[Range] | None
    ) -> DataFrame:
        """What a step makes in the workers of the rows, or of these columns of them; it gives the
        columns `made`, as Spark writes them."""
        return self.rows(within).select(*map(backticked, columns)).mapInArrow(step, made)

    def shaped(self, frame: DataFrame, *, has_coordinates: bool, passed: bool) -> DataFrame:
        """Rows of the transform as the target keeps them; `passed` says that they are records that
        pass as they are."""
        return frame

    def that_count(self, rows: DataFrame) -> DataFrame:
        """Of the target's rows those that are not overtaken by others of their key."""
        return rows

    def still_due(self, expected: DataFrame, rows: DataFrame) -> DataFrame:
        """Of what should be there, what the target has not removed by itself."""
        return expected

    def readings(self) -> Readings | None:
        """None for a target that shows nothing of what was aborted."""
        return None


def newest_by_key(frame: DataFrame, key: Sequence[str]) -> DataFrame:
    """Of several rows of one key the last record's, as an upsert keeps them."""
    order = Window.partitionBy(*map(backticked, key)).orderBy(f.col("_offset").desc())
    ranked = frame.withColumn("_rank", f.row_number().over(order))
    return ranked.where("_rank = 1").drop("_rank")
