"""Whether the ledger's history leads to what the ledger says: no gap, no overlap.

Each commit moved some partitions from where they were to where they are. Put one after the other,
the moves of a partition must lead from its start, or from the oldest commit that is kept, to what
the ledger claims now, but for ranges that were given up as lost, and for those of batches that
were interrupted: some of their partitions had moved, and some had not.
"""

from tallygate.auditing.verdict import Anomaly
from tallygate.core.ledger_snapshot import LedgerSnapshot
from tallygate.core.offsets import Range, TopicPartition

EXAMPLES = 5


def wrong_moves(ledger: LedgerSnapshot) -> list[Anomaly]:
    """The gaps and overlaps of the history, with the offsets that they hold."""
    gaps: list[Range] = []
    overlaps: list[Range] = []
    at: dict[TopicPartition, int] = {}
    told = (*ledger.lost, *ledger.unfinished)
    for commit in ledger.history:
        for each in commit.ranges:
            here = at.setdefault(each.topic_partition, each.start)
            if each.start > here:
                gaps += _without(Range(*each.topic_partition, here, each.start), told)
            elif each.start < here:
                overlaps.append(Range(*each.topic_partition, each.start, here))
            at[each.topic_partition] = max(here, each.until)
    for partition, here in at.items():
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
