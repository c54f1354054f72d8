"""What a pipeline's ledger claims, and what its sink holds, at one moment.

Whatever the sink, an audit needs the same two things of it, and needs them to belong together: the
ranges of records that the ledger says are in the sink, and the rows that are there. Each sink has
its own way to see both at one moment while the pipeline goes on (`postgres`, `delta`, `parquet`,
`kafka`), and gives them as `Evidence`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from pyspark.sql import DataFrame

from tallygate.auditing.verdict import Anomaly
from tallygate.core.letters import Coordinates
from tallygate.core.offsets import Range, TopicPartition


@dataclass(frozen=True)
class Commit:
    """One move of the ledger, as its history has it."""

    number: int
    run: int
    batch: int | None
    ranges: tuple[Range, ...]
    rows: int | None = None
    at: str = ""

    def covers(self, partition: TopicPartition, offset: int) -> bool:
        return any(
            r.topic_partition == partition and r.start <= offset < r.until for r in self.ranges
        )


@dataclass(frozen=True)
class Claims:
    ranges: Mapping[TopicPartition, Range]
    """For each partition, from the pipeline's start up to the ledger's offset."""
    lost: tuple[Range, ...] = ()
    letters: frozenset[Coordinates] = frozenset()
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    later: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Where the ledger was when the rows had been read, if that may be further: rows of records in
    between may be there or not."""
    history: tuple[Commit, ...] = ()
    unfinished: tuple[Range, ...] = ()
    """What may have moved although the history has no commit of it: of batches that were written
    down before, and were interrupted."""
    unknown: tuple[str, ...] = ()
    forgotten: int = 0
    """How many dead letters retention may have removed."""

    @property
    def reached(self) -> dict[TopicPartition, Range]:
        """The ranges, up to where the ledger was when the rows had been read."""
        return {
            partition: replace(each, until=max(each.until, self.later.get(partition, each.until)))
            for partition, each in self.ranges.items()
        }

    @property
    def moved(self) -> bool:
        """Whether the ledger moved while the rows were read."""
        return self.reached != dict(self.ranges)


class Evidence(Protocol):
    @property
    def target(self) -> str:
        """What the sink is called in messages."""

    @property
    def claims(self) -> Claims: ...

    @property
    def refuses(self) -> bool:
        """Whether the sink may refuse a row, whose record then becomes a dead letter."""

    def rows(self, within: Sequence[Range] | None = None) -> DataFrame:
        """The sink's rows of that moment; at least those of the ranges, if some are given and rows
        carry coordinates."""

    def shaped(self, frame: DataFrame, *, has_coordinates: bool) -> DataFrame:
        """Rows of the transform as the sink keeps them."""

    def letter(self, at: Coordinates) -> str | None:
        """Why the record is a dead letter; None if it is none."""

    def own(self, expected: DataFrame, checked: Sequence[Range]) -> list[Anomaly]:
        """What is wrong in ways that only this kind of sink knows, if these are the rows that
        should be there of the ranges that could be read again."""
