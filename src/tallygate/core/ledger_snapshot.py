"""What a ledger says at one moment, as an audit needs it: the records that the target stands for,
and how the ledger came there."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tallygate.core.ledger import LedgerState
from tallygate.core.letters import Coordinates
from tallygate.core.offsets import Range, TopicPartition, topic_of


@dataclass(frozen=True, kw_only=True)
class Commit:
    """One move of the ledger, as its history has it."""

    number: int
    run: int
    batch: int | None
    ranges: tuple[Range, ...]
    rows: int | None = None
    at: str = ""


@dataclass(frozen=True, kw_only=True)
class LedgerSnapshot:
    ranges: Mapping[TopicPartition, Range] = field(default_factory=dict)
    """For each partition, from the pipeline's start up to the ledger's position."""
    lost: tuple[Range, ...] = ()
    letters: frozenset[Coordinates] = frozenset()
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    specs: tuple[str, ...] = ()
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

    @classmethod
    def of(
        cls, state: LedgerState, letters: Iterable[Coordinates], **more: Any
    ) -> "LedgerSnapshot":
        """A ledger with the dead letters that were there at its moment, of which those count that
        it is past, and what `more` the target knows of it."""
        at: dict[TopicPartition, int] = {}
        for (name, number), until in state.positions.items():
            at[topic_of(name), number] = max(until, at.get((topic_of(name), number), 0))
        named = ((topic_of(name), number, offset) for name, number, offset in letters)
        return cls(
            ranges={
                partition: Range(*partition, state.begun.get(partition, until), until)
                for partition, until in state.positions.items()
            },
            lost=tuple(each.range for each in state.lost),
            letters=frozenset(each for each in named if each[2] < at.get(each[:2], 0)),
            topic_ids=state.topic_ids,
            specs=state.specs,
            **more,
        )

    @property
    def reached(self) -> dict[TopicPartition, Range]:
        """The ranges, up to where the ledger was when the rows had been read; by the names that the
        ledger has for topics, in the words of their rows."""
        return {
            partition: replace(
                each,
                topic=topic_of(each.topic),
                until=max(each.until, self.later.get(partition, each.until)),
            )
            for partition, each in self.ranges.items()
        }

    @property
    def moved(self) -> bool:
        """Whether the ledger moved while the rows were read."""
        return any(self.later.get(at, each.until) > each.until for at, each in self.ranges.items())
