"""Where ledger, checkpoint and source stand to each other when a pipeline starts: the arithmetic of
offsets by which `core.start` decides."""

from collections.abc import Mapping
from dataclasses import replace

from tallygate.core.forgetting import (
    topics_of,
    where_forgotten,
)
from tallygate.core.ledger import LedgerState
from tallygate.core.offsets import Range, TopicPartition
from tallygate.core.start_facts import (
    CheckpointState,
    SourceState,
)


def lost_ranges(ledger: LedgerState, source: SourceState | None) -> tuple[Range, ...]:
    """What is gone before it was read, also of partitions that were added to a topic that is read
    already: they begin at 0. Rows in lanes cannot be told apart, so where some lanes have a batch
    and others have not, all of it is given up."""
    if source is None:
        return ()
    furthest, known = ledger.furthest or {}, topics_of(ledger)
    headless = tuple(
        Range(*partition, 0, first)
        for partition, first in sorted(added_partitions(ledger, source).items())
        if partition[0] in known
    )
    overtaken = tuple(
        Range(*partition, at, max(source.earliest[partition], furthest.get(partition, at)))
        for partition, at in sorted(ledger.positions.items())
        if source.earliest.get(partition, 0) > at
    )
    return overtaken + headless


def after_losses(ledger: LedgerState, lost: tuple[Range, ...]) -> LedgerState:
    """The ledger when these ranges are given up."""
    moved = ledger.moved(lost)
    if ledger.furthest is None:
        return moved
    furthest = {**ledger.furthest, **{each.topic_partition: each.until for each in lost}}
    return replace(moved, furthest=None if furthest == moved.positions else furthest)


def added_partitions(ledger: LedgerState, source: SourceState | None) -> dict[TopicPartition, int]:
    """Partitions that are read and that the ledger does not know, if their first records are gone
    or were read before their topic was forgotten: where they begin now. Spark begins every
    partition that it has not met at 0."""
    if source is None:
        return {}
    before = where_forgotten(ledger, source)
    begins = {
        (topic, number): max(first, before.get((topic, number), 0))
        for (topic, number), first in source.earliest.items()
        if topic in source.read and (topic, number) not in ledger.positions
    }
    return {partition: at for partition, at in begins.items() if at}


def positions_in(ledger: LedgerState, checkpoint: CheckpointState) -> dict[TopicPartition, int]:
    """The ledger's positions, and 0 for partitions of its topics that it does not know yet."""
    known = {topic for topic, _ in ledger.positions}
    met = {*checkpoint.start, *(checkpoint.end or ())}
    return {**{partition: 0 for partition in met if partition[0] in known}, **ledger.positions}


def leaves_gap(ledger: LedgerState, checkpoint: CheckpointState) -> bool:
    reached = positions_in(ledger, checkpoint)
    return any(at < checkpoint.start.get(partition, 0) for partition, at in reached.items())


def has_lost_past(checkpoint: CheckpointState, source: SourceState | None) -> bool:
    """Whether records are gone that the next batch begins with."""
    earliest = {} if source is None else source.earliest
    return any(checkpoint.start.get(partition, 0) < first for partition, first in earliest.items())


def begins_within_reach(
    ledger: LedgerState, checkpoint: CheckpointState, *, divisible: bool
) -> bool:
    """Whether the checkpoint's next batch can be done, skipped or, if divisible, trimmed."""
    if checkpoint.planned is None:
        return False
    reached = positions_in(ledger, checkpoint)
    begins = {partition: checkpoint.start.get(partition, 0) for partition in reached}
    ends = {
        partition: (checkpoint.end or {}).get(partition, at) for partition, at in begins.items()
    }
    if ledger.furthest is not None:
        return (begins, ends) == (reached, {**reached, **ledger.furthest})
    if divisible:
        return all(begins[partition] <= at <= ends[partition] for partition, at in reached.items())
    return reached in (begins, ends)


def is_readable(
    ledger: LedgerState,
    checkpoint: CheckpointState,
    source: SourceState | None,
    added: Mapping[TopicPartition, int],
) -> bool:
    """Whether the source still has what Spark reads for the next batch: the whole of it, also
    where only a part is left to write, and nothing if the target has all of it."""
    start, end = checkpoint.start, checkpoint.end or checkpoint.start
    if any(start.get(partition, 0) < at for partition, at in added.items()):
        return False
    ends = {} if source is None else source.ends
    if any(at > ends.get(partition, at) for partition, at in end.items()):
        return False
    if any(at < start.get(partition, 0) for partition, at in end.items()):
        return False
    if source is None or all(
        end.get(partition, 0) == at for partition, at in ledger.positions.items()
    ):
        return True
    return all(
        start.get(partition, 0) >= min(first, end.get(partition, 0))
        for partition, first in source.earliest.items()
    )
