"""Whether the ledger's history leads to what the ledger says: no gap, no overlap.

Each commit moved some partitions from where they were to where they are. Put one after the other,
the moves of a partition must lead from its start, or from the oldest commit that is kept, to what
the ledger claims now, but for ranges that were given up as lost, and for those of batches that
were interrupted: some of their partitions had moved, and some had not.
"""

from collections.abc import Mapping
from dataclasses import replace

from tallygate.auditing.verdict import Anomaly
from tallygate.core.ledger_snapshot import LedgerSnapshot
from tallygate.core.offsets import Range, TopicPartition, is_forgotten, topic_of

EXAMPLES = 5


def wrong_moves(ledger: LedgerSnapshot) -> list[Anomaly]:
    """The gaps and overlaps of the history, with the offsets that they hold."""
    gaps: list[Range] = []
    overlaps: list[Range] = []
    at: dict[TopicPartition, int] = {}
    told = (
        *(replace(each, topic=topic_of(each.topic)) for each in ledger.lost),
        *ledger.unfinished,
    )
    ends = _ends_of_forgotten(ledger)
    for commit in ledger.history:
        for each in commit.ranges:
            here = at.setdefault(each.topic_partition, each.start)
            if _is_over(each.topic_partition, here, ends, told):
                here = each.start  # of another topic of that name, or of this one again
            if each.start > here:
                gaps += _without(Range(*each.topic_partition, here, each.start), told)
            elif each.start < here:
                overlaps.append(Range(*each.topic_partition, each.start, here))
            at[each.topic_partition] = max(here, each.until)
    for partition, here in at.items():
        if partition not in ledger.ranges and _is_over(partition, here, ends, told):
            continue
        claimed = ledger.ranges.get(partition, Range(*partition, 0, 0)).until
        if here < claimed:
            gaps += _without(Range(*partition, here, claimed), told)
        elif here > ledger.later.get(partition, claimed):
            overlaps.append(Range(*partition, claimed, here))
    found = {"gap": gaps, "overlap": overlaps}
    return [
        Anomaly(kind, sum(map(len, ranges)), tuple(str(each) for each in ranges[:EXAMPLES]))
        for kind, ranges in found.items()
        if ranges
    ]


def _ends_of_forgotten(ledger: LedgerSnapshot) -> dict[TopicPartition, set[int]]:
    """Where partitions of topics were when they were forgotten."""
    ends: dict[TopicPartition, set[int]] = {}
    for (name, number), each in ledger.ranges.items():
        if is_forgotten(name):
            ends.setdefault((topic_of(name), number), set()).add(each.until)
    return ends


def _is_over(
    partition: TopicPartition,
    here: int,
    ends: Mapping[TopicPartition, set[int]],
    told: tuple[Range, ...],
) -> bool:
    """Whether the topic was forgotten here, or past what was given up from here on."""
    return any(
        here == end or (here < end and not _without(Range(*partition, here, end), told))
        for end in ends.get(partition, ())
    )


def _without(gap: Range, told: tuple[Range, ...]) -> list[Range]:
    """What is left of a gap when ranges are taken out that explain it."""
    left = [gap]
    for gone in (each for each in told if each.topic_partition == gap.topic_partition):
        left = [
            part
            for each in left
            for part in (
                Range(*each.topic_partition, each.start, min(each.until, gone.start)),
                Range(*each.topic_partition, max(each.start, gone.until), each.until),
            )
            if part.start < part.until
        ]
    return left
