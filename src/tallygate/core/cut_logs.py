"""Logs that were cut off below what a pipeline has read of them.

An election of a replica that lacks records, or a broker that comes back without what it had not yet
written to its disk: the log ends earlier than before, and grows again. The topic is the same, and
the offsets from there on mean other records. The target has the effect of those that are gone, and
not of those that took their place. Nothing makes that right but to begin again; what can be given
up is the offsets themselves, as a range in the ledger, if the log has grown past them again.
"""

from tallygate.core.ledger import LedgerState
from tallygate.core.offsets import Range, TopicPartition
from tallygate.core.start_facts import Refuse, RowsNature, SourceState, StartPolicy
from tallygate.errors import LostRangeError

CUT_OFF = "cut off from the source's log after it was read"


def reached(ledger: LedgerState) -> dict[TopicPartition, int]:
    """How far any lane of the target has read."""
    return {**ledger.positions, **(ledger.furthest or {})}


def cut_ranges(ledger: LedgerState, source: SourceState | None) -> tuple[Range, ...]:
    """What the target has, and the source has no more."""
    if source is None:
        return ()
    found = []
    for partition, until in sorted(reached(ledger).items()):
        start = min(source.ends.get(partition, until), source.cut.get(partition, until))
        if start < until:
            begun = ledger.begun.get(partition, start)
            found.append(Range(*partition, begun if start < begun < until else start, until))
    return tuple(found)


def refuse_cut_log(
    ledger: LedgerState, source: SourceState, nature: RowsNature, policy: StartPolicy
) -> Refuse | None:
    """Such a loss is refused unless it is accepted, and can be."""
    cut = cut_ranges(ledger, source)
    stuck = nature.anchored or any(not _is_past(each, ledger, source) for each in cut)
    if not cut or (policy.accept_loss and not stuck):
        return None
    listed = ", ".join(_said(each, source) for each in cut)
    cure = (
        ""
        if stuck
        else "; or start with --accept-loss (in Python: accept_loss=True): the offsets are then "
        "kept in the ledger as lost, and reading goes on after them"
    )
    return Refuse(
        LostRangeError,
        f"a log was cut off below what pipeline {policy.pipeline!r} has read, as by an unclean "
        f"election: {listed}. The target has records that are gone, and not those that have their "
        f"offsets now. To have what the source has, {policy.cure}{cure}.",
    )


def _is_past(cut: Range, ledger: LedgerState, source: SourceState) -> bool:
    """Whether reading can go on after the range: the log is that long again, and no lane of the
    target lacks a part of it."""
    at = cut.topic_partition
    return source.ends.get(at, 0) >= cut.until and ledger.positions.get(at) == cut.until


def _said(cut: Range, source: SourceState) -> str:
    end = source.ends.get(cut.topic_partition, cut.start)
    ends = "" if end >= cut.until else f", and it ends at {end} now"
    return f"{cut} ({len(cut)} records{ends})"
