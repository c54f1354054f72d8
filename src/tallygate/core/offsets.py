"""Ranges of offsets, and what is left to do of a batch by the ledger's word.

Offsets outrank batch ids. A batch is a set of ranges `[start, until)`; the ledger knows for each
partition the next offset that the target needs: its position. So a range is

    done        the position is at its end or beyond: nothing of it is written again
    whole       the position is at its start
    in part     the position is inside it: rows that have coordinates are trimmed to the rest,
                others cannot be told apart, and the batch is refused
    beyond      the position is before its start: to go on would leave a gap, and is refused

Nothing here touches a store, so that the rules can be tried by the thousand.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tallygate.errors import LedgerError, LostRangeError

TopicPartition = tuple[str, int]
"""A topic and the number of one of its partitions."""
Positions = Mapping[TopicPartition, int]
OTHER_SOURCE = "source:"
FORGOTTEN = "forgotten:"
_MOMENT = "%Y%m%dT%H%M%SZ"


class MovedError(LedgerError):
    """The ledger is not where it was when the batch was planned: another writer moved it, or
    a commit that went unanswered had arrived. Nothing was written; the batch is planned again."""


def is_topic(name: str) -> bool:
    """Whether a name is a topic's. Sources that are not Kafka count their positions too, and a
    topic that was forgotten keeps its own, under names that no topic can have."""
    return not name.startswith((OTHER_SOURCE, FORGOTTEN))


def is_forgotten(name: str) -> bool:
    return name.startswith(FORGOTTEN)


def forgotten_as(topic: str, at: datetime) -> str:
    """What the ledger calls a topic from the moment that it is forgotten. One that comes back, and
    is forgotten again, has another name then."""
    return f"{FORGOTTEN}{at.astimezone(UTC):{_MOMENT}}:{topic}"


def topic_of(name: str) -> str:
    """The topic that a name in the ledger stands for, also once it is forgotten."""
    return name.split(":", 2)[2] if is_forgotten(name) else name


def forgotten_at(name: str) -> datetime:
    return datetime.strptime(name.split(":", 2)[1], _MOMENT).replace(tzinfo=UTC)


@dataclass(frozen=True, order=True)
class Range:
    """The offsets `[start, until)` of a partition."""

    topic: str
    partition: int
    start: int
    until: int

    @property
    def topic_partition(self) -> TopicPartition:
        return self.topic, self.partition

    def holds(self, offset: int) -> bool:
        return self.start <= offset < self.until

    def __len__(self) -> int:
        return self.until - self.start

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition} [{self.start}, {self.until})"


def count(ranges: Iterable[Range]) -> int:
    """How many offsets the ranges hold: at most so many records."""
    return sum(len(each) for each in ranges)


def part(ranges: Iterable[Range], low: int, high: int) -> list[Range]:
    """Of the offsets of all ranges, one range after the other, those numbered `[low, high)`."""
    found, before = [], 0
    for each in ranges:
        start, until = max(low - before, 0), min(high - before, len(each))
        if start < until:
            found.append(replace(each, start=each.start + start, until=each.start + until))
        before += len(each)
    return found


def lies_in(ranges: Iterable[Range], topic: str, partition: int, offset: int) -> bool:
    """Whether one of the ranges holds the offset of that partition."""
    return any(each.topic_partition == (topic, partition) and each.holds(offset) for each in ranges)


def remaining(
    ranges: Sequence[Range], positions: Positions, *, divisible: bool
) -> tuple[Range, ...]:
    """The part of the ranges that the target does not hold yet.

    `divisible` says that a part of a batch can be written alone: rows have coordinates, and the
    target takes a part. A partition that the ledger does not know is in the answer even if it holds
    nothing: where it was begun must be written down, or "latest" would move on with every start.
    """
    topics = {topic for topic, _ in positions}
    left = []
    for each in ranges:
        if each.until < each.start:
            raise LostRangeError(
                f"the batch goes back from {each.start} to {each.until} in {each.topic}/"
                f"{each.partition}: the log was cut off, or the topic was recreated. Start again: "
                "the start says what is gone, and how to go on."
            )
        held = positions.get(each.topic_partition)
        at = held if held is not None else 0 if each.topic in topics else each.start
        if at < each.start:
            raise LedgerError(
                f"the batch begins at {each}, but the target holds {each.topic}/{each.partition} "
                f"only up to {at}: {each.start - at} offsets would be skipped. The checkpoint is "
                "ahead of the ledger; remove the checkpoint and start again, and a pipeline "
                "without state goes on from the ledger."
            )
        if at < each.until or held is None:
            left.append(Range(each.topic, each.partition, at, each.until))
    whole, needed = sorted(filter(len, ranges)), sorted(filter(len, left))
    if needed and not divisible and needed != whole:
        raise LedgerError(
            f"the target holds a part of this batch: of {_listed(whole)} it still needs "
            f"{_listed(needed)}. Its rows do not have coordinates (an aggregate, a join, or "
            "columns that were not selected), so the part cannot be told apart; rebuild the "
            "pipeline with `tallygate rebuild`."
        )
    return tuple(left)


def _listed(ranges: Iterable[Range]) -> str:
    return ", ".join(str(each) for each in sorted(ranges))
