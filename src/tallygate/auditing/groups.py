"""What a pipeline's groups claim of a topic, and up to where the topic is to be read for it.

Rows and offsets are committed in one transaction, but Kafka does not show them at one moment: the
end of a transaction is written to each partition, and to the group's, one after the other. So
things are read in an order that makes up for it:

    1. the group's offsets, as far as they are committed: the **claim**
    2. the ends of the topic's partitions and of its dead letters', open transactions included
    3. wait until no transaction is open before those ends
    4. the group's offsets again, when no transaction holds them any more: the **later** claim

**All that is claimed is in what is read.** A transaction sends its rows before it commits its
offsets, so the rows and letters of the claim lie before the ends of step 2; after step 3 none of
them is hidden.

**All that is read is claimed later.** A row before those ends that is visible after step 3 is of
a transaction that was committed, and step 4 waits until its offsets count. So a row beyond the
later claim was put there by another program.

Rows of records between the claim and the later claim may be there or not: the pipeline was writing
them. If rows carry the coordinates of their records, these are passed over; if not, the two claims
must be the same, and the reading is repeated until the pipeline pauses for that long, or given up.

After a shuffle there is a group for each lane. The claim is what all lanes have done, the later
claim what any of them has.
"""

from collections.abc import Mapping, Sequence

from confluent_kafka.admin import OffsetSpec

from tallygate.auditing.ledger_snapshot import Claims
from tallygate.core.letters import Coordinates
from tallygate.core.offsets import Range, TopicPartition
from tallygate.errors import LedgerError
from tallygate.kafka.connection import Connection
from tallygate.kafka.read import is_settled, list_offsets
from tallygate.targets.kafka.groups import kept_lanes
from tallygate.targets.kafka.ledger import Names, Position, committed_in
from tallygate.waiting import wait_until


def groups_of(names: Names, connection: Connection, *, stand_in: bool) -> list[str]:
    """The groups that are the ledger: one, or one a lane."""
    lanes = kept_lanes(names, connection, stand_in=stand_in)
    if lanes is None:
        raise LedgerError(f"pipeline {names.pipeline!r} has never written to this cluster.")
    return [names.lane_group(lane) for lane in range(lanes)] if lanes else [names.group]


Lanes = Sequence[Mapping[TopicPartition, Position]]


def moment(
    groups: Sequence[str],
    partitions: list[TopicPartition],
    connection: Connection,
    *,
    stand_in: bool,
    timeout: float,
) -> tuple[Lanes, Lanes, dict[TopicPartition, int]]:
    """The four steps."""
    topics = " or ".join(dict.fromkeys(topic for topic, _ in partitions))
    first = committed_in(groups, connection, stand_in=stand_in)
    ends = list_offsets(partitions, OffsetSpec.latest(), connection)  # type: ignore[no-untyped-call]
    wait_until(
        lambda: is_settled(ends, connection),
        timeout,
        f"a transaction has been open in topic {topics} for longer than {timeout:g} s, so "
        "what is committed beyond it cannot be seen; try again when it has ended.",
        error=LedgerError,
    )
    later = committed_in(groups, connection, stand_in=stand_in, settled=True)
    return first, later, ends


def is_still(first: Lanes, later: Lanes) -> bool:
    """Whether the pipeline wrote nothing meanwhile, and all lanes are as far as each other."""
    return _furthest(later) == _claimed(first)


def _claimed(lanes: Lanes) -> dict[TopicPartition, int]:
    """What all lanes have done."""
    return {
        partition: min(held[partition].offset if partition in held else 0 for held in lanes)
        for partition in {partition for held in lanes for partition in held}
    }


def _furthest(lanes: Lanes) -> dict[TopicPartition, int]:
    return {
        partition: max(held[partition].offset for held in lanes if partition in held)
        for partition in {partition for held in lanes for partition in held}
    }


def claims_of(first: Lanes, later: Lanes, letters: Sequence[Coordinates]) -> Claims:
    marks = {partition: position.mark for held in later for partition, position in held.items()}
    claimed, furthest = _claimed(first), _furthest(later)
    begun = {partition: mark.first for partition, mark in marks.items()}
    ranges = {
        partition: Range(
            *partition, begun[partition] or 0, claimed.get(partition, begun[partition] or 0)
        )
        for partition in furthest
    }
    unsaid = [f"{topic}/{number}" for (topic, number), at in sorted(begun.items()) if at is None]
    return Claims(
        ranges,
        tuple(
            Range(*partition, *each)
            for partition, mark in sorted(marks.items())
            for each in mark.lost
        ),
        frozenset(each for each in letters if each[2] < claimed.get((each[0], each[1]), 0)),
        {topic: mark.topic_id for (topic, _), mark in marks.items() if mark.topic_id},
        later=furthest,
        unknown=tuple(
            f"where the pipeline began in {partition} is not in its ledger; 0 was taken for it"
            for partition in unsaid
        ),
    )
