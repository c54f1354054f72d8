"""What to do at a start: go on, seed a new checkpoint from the ledger, or refuse.

The ledger is the truth and the checkpoint a cache of it. A pipeline that does not need its
checkpoint goes on from the ledger if the checkpoint is gone, older or ahead: the old one is set
aside, and a new one begins where the ledger is. A pipeline that is anchored to its checkpoint (by
its state, or since the checkpoint alone knows what was read) goes on with it, or is refused.

Everything is decided from facts that others gather. `decide_start` is asked twice: before the run
takes over, so that a refusal fences no other run, and once more when the ledger is final.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tallygate.core.ledger import LedgerState
from tallygate.core.offsets import Range, TopicPartition, is_topic
from tallygate.core.start_facts import (
    CheckpointState,
    Decision,
    Refuse,
    Resume,
    RowsNature,
    Seed,
    SourceState,
    StartPolicy,
)
from tallygate.errors import ConfigError, LedgerError, LostRangeError, TopicError

ADOPTED = "tallygate.adopted"
"""The file of an adopted checkpoint with the number of its last batch by then."""
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


def decide_start(
    ledger: LedgerState | None,
    checkpoint: CheckpointState,
    source: SourceState | None,
    nature: RowsNature,
    policy: StartPolicy,
) -> Decision:
    """The rules in their order. `source` is None if no source is Kafka."""
    if ledger is None or not ledger.positions:
        return (
            _refuse_other_shuffle(checkpoint, nature, policy)
            or _refuse_unknown_past(checkpoint, policy)
            or Resume(adopt=_adopted(checkpoint, policy, past=checkpoint.committed))
        )
    refusal = (
        refuse_other_target(ledger, nature, policy)
        or refuse_forgotten(ledger, policy)
        or refuse_source(ledger, source, nature, policy)
        or _refuse_without_anchor(ledger, checkpoint, source, nature, policy)
        or _refuse_other_shuffle(checkpoint, nature, policy)
        or _refuse_unknown_partition(ledger, checkpoint, policy)
    )
    if refusal is not None:
        return refusal
    lost, added = _lost(ledger, source), _added(ledger, source)
    ledger = _after(ledger, lost)
    if nature.anchored or (
        _begins_within_reach(ledger, checkpoint, divisible=nature.divisible)
        and _is_readable(ledger, checkpoint, source, added)
    ):
        return Resume(lost, _adopted(checkpoint, policy), _retarget(ledger, policy))
    unrepeatable = _refuse_other_rows(ledger, checkpoint, nature, policy)
    if unrepeatable is not None:
        return unrepeatable
    return Seed(
        positions={**added, **ledger.positions},
        furthest=None if ledger.furthest is None else {**added, **ledger.furthest},
        lost=lost,
        set_aside=checkpoint.is_begun,
        adopt=-1 if policy.adopts else None,
        retarget=_retarget(ledger, policy),
    )


def refuse_other_target(
    ledger: LedgerState, nature: RowsNature, policy: StartPolicy
) -> Refuse | None:
    """A ledger belongs to one target. In another one, or in one that was made again, the rows from
    before are missing."""
    if _retarget(ledger, policy) is None:
        return None
    if policy.accept_new_target and not nature.anchored:
        return None
    return other_target(nature, policy)


def other_target(nature: RowsNature, policy: StartPolicy) -> Refuse:
    """What can be done about a target that the ledger is not of."""
    cure = policy.cure
    if not nature.anchored:
        cure += (
            ", or start with --accept-new-target (in Python: accept_new_target=True): it then "
            "holds what comes next, and the ledger keeps that what came before is not in it"
        )
    return Refuse(
        LedgerError,
        f"the ledger of pipeline {policy.pipeline!r} is of another {policy.target}, or of one that "
        "was dropped and made again: the rows from before are not in this one. Set the sink back, "
        f"or {cure}.",
    )


def refuse_forgotten(ledger: LedgerState, policy: StartPolicy) -> Refuse | None:
    """A partition that the ledger had and has no more is none that was added: read from its
    beginning, its rows would come twice."""
    if not ledger.forgotten:
        return None
    names = ", ".join(f"{topic}/{number}" for topic, number in ledger.forgotten)
    return Refuse(
        LedgerError,
        f"the ledger of pipeline {policy.pipeline!r} has lost where it is in {names}: Kafka drops "
        "an offset that was not committed for too long (offsets.retention.minutes), or it was "
        f"deleted or reset. {policy.target} holds rows of it, and how many is not known, so no run "
        f"goes on from there: {policy.cure}.",
    )


def _retarget(ledger: LedgerState, policy: StartPolicy) -> str | None:
    """The target, if the ledger is of another one. Numbers that were given where the ledger had
    another one itself cannot be compared: it was restored together with its tables."""
    held, here = ledger.target, policy.target_id
    if held is None or here is None or held == here:
        return None
    return here if held.rpartition(":")[0] == here.rpartition(":")[0] else None


def refuse_source(
    ledger: LedgerState, source: SourceState | None, nature: RowsNature, policy: StartPolicy
) -> Refuse | None:
    """Nothing of the source is skipped in silence: topics that are gone or that are others now,
    records that retention removed before they were read."""
    if source is None:
        return None
    return (
        _refuse_missing_topic(ledger, source, policy)
        or refuse_other_topic(ledger.topic_ids, source.topic_ids, policy.pipeline)
        or _refuse_missing_partition(ledger, source, policy)
        or _refuse_loss(_lost(ledger, source), nature, policy)
        or _refuse_headless_partition(ledger, source, nature, policy)
    )


def _refuse_missing_topic(
    ledger: LedgerState, source: SourceState, policy: StartPolicy
) -> Refuse | None:
    for topic in _topics(ledger):
        if topic not in source.topic_ids:
            return Refuse(
                TopicError,
                f"topic {topic!r} of pipeline {policy.pipeline!r} is gone. If it was renamed or "
                "deleted on purpose, start a pipeline of another name.",
            )
    return None


def refuse_other_topic(
    seen: Mapping[str, str], now: Mapping[str, str], pipeline: str
) -> Refuse | None:
    """Refuse if a topic has another id now than when the pipeline saw it."""
    for topic, topic_id in sorted(now.items()):
        if seen.get(topic, topic_id) != topic_id:
            return _another_topic(topic, pipeline)
    return None


def _refuse_missing_partition(
    ledger: LedgerState, source: SourceState, policy: StartPolicy
) -> Refuse | None:
    """Kafka never takes partitions away from a topic, so one with fewer is another topic."""
    for topic, number in sorted(ledger.positions):
        if is_topic(topic) and (topic, number) not in source.earliest:
            return _another_topic(topic, policy.pipeline)
    return None


def _another_topic(topic: str, pipeline: str) -> Refuse:
    return Refuse(
        LostRangeError,
        f"topic {topic!r} was deleted and recreated since pipeline {pipeline!r} read it: its "
        "offsets mean other records now. Start a pipeline of another name for the new topic.",
    )


def _refuse_loss(lost: Iterable[Range], nature: RowsNature, policy: StartPolicy) -> Refuse | None:
    """A loss is refused unless it is accepted, and can be."""
    listed = ", ".join(f"{each} ({len(each)} records)" for each in lost)
    if not listed or (policy.accept_loss and not nature.anchored):
        return None
    cure = (
        f"{policy.cure}: its checkpoint cannot go on without them, so they cannot be given up"
        if nature.anchored
        else "start with --accept-loss (in Python: accept_loss=True): the range is then kept in "
        "the ledger as lost"
    )
    return Refuse(
        LostRangeError,
        f"retention removed records that pipeline {policy.pipeline!r} had not read: {listed}. "
        f"Restore them, or {cure}.",
    )


def _refuse_headless_partition(
    ledger: LedgerState, source: SourceState, nature: RowsNature, policy: StartPolicy
) -> Refuse | None:
    """A topic that is new to the pipeline begins with what it still has, as any source does; but an
    anchored pipeline goes on as Spark does, from 0."""
    known = _topics(ledger)
    for (topic, number), at in sorted(_added(ledger, source).items()):
        if topic not in known and nature.anchored:
            return Refuse(
                LostRangeError,
                f"partition {topic}/{number} is new to pipeline {policy.pipeline!r}, and retention "
                f"has removed its records before {at}, which were to be read first. Restore them, "
                f"or {policy.cure}.",
            )
    return None


def _refuse_without_anchor(
    ledger: LedgerState,
    checkpoint: CheckpointState,
    source: SourceState | None,
    nature: RowsNature,
    policy: StartPolicy,
) -> Refuse | None:
    """State is in the checkpoint that the ledger goes with, and only this checkpoint knows what a
    position of a source stands for that is not Kafka."""
    if not nature.anchored:
        return None
    kind = "state" if nature.stateful else "several sources, or one that is not Kafka,"
    held = "The state is" if nature.stateful else "What was read is known only"
    path, wrong = checkpoint.path, None
    if checkpoint.planned is None:
        wrong = f"the checkpoint {path} of a pipeline with {kind} is gone."
    elif ledger.checkpoint_id is not None and checkpoint.id != ledger.checkpoint_id:
        wrong = f"{path} is the checkpoint of another query."
    elif (nature.exact or ledger.furthest is not None) and not _begins_within_reach(
        ledger, checkpoint, divisible=False
    ):
        wrong = (
            f"the checkpoint {path} is not the one that the ledger goes with: its next batch "
            "begins elsewhere, and what it would hold is not what was written."
        )
    elif _leaves_gap(ledger, checkpoint):
        wrong = f"the checkpoint {path} is ahead of the ledger: its next batch would leave a gap."
    elif nature.stateful and _has_lost_past(checkpoint, source):
        wrong = (
            f"the checkpoint {path} is behind the ledger, and retention has removed what it would "
            "read once more to catch up."
        )
    if wrong is None:
        return None
    return Refuse(
        LedgerError,
        f"{wrong} {held} in the checkpoint, so it cannot be made from the ledger: bring the "
        f"checkpoint back, or {policy.cure}.",
    )


def _refuse_other_shuffle(
    checkpoint: CheckpointState, nature: RowsNature, policy: StartPolicy
) -> Refuse | None:
    """State is kept by shuffle partition. Spark goes on with as many as the checkpoint says; a
    user who asks for another number hears that, and does not get the old one in silence."""
    held, asked = checkpoint.shuffle_partitions, policy.shuffle_partitions
    if not nature.stateful or held is None or asked in (None, held):
        return None
    return Refuse(
        ConfigError,
        f"the state of pipeline {policy.pipeline!r} is kept in {held} shuffle partitions and "
        f"{SHUFFLE_PARTITIONS} says {asked}. Set it back, or {policy.cure}.",
    )


def _refuse_unknown_past(checkpoint: CheckpointState, policy: StartPolicy) -> Refuse | None:
    """An empty ledger cannot stand behind a checkpoint that has batches: what those batches read
    went elsewhere, and to go on would skip it. The batches of an adopted job are its past; only
    those since then should be in the ledger."""
    done, path = checkpoint.committed, checkpoint.path
    if done is None or not policy.keeps_ledger:
        return None
    cure = "Remove the checkpoint to read from the start, or choose another name."
    if policy.adopts:
        if checkpoint.adopted is None or done <= checkpoint.adopted:
            return None
        cure = (
            f"Bring the ledger back, or {policy.cure}. If the rest went elsewhere on purpose, "
            f"remove {path}/{ADOPTED}."
        )
    return Refuse(
        LedgerError,
        f"the ledger of {policy.pipeline!r} is empty, but its checkpoint {path} has done "
        f"{done + 1} batches: what came before would be missing from {policy.target}. {cure}",
    )


def _refuse_unknown_partition(
    ledger: LedgerState, checkpoint: CheckpointState, policy: StartPolicy
) -> Refuse | None:
    """A ledger that knows a topic, but not a partition of it that was read, has lost something:
    it is an older one, or Kafka has forgotten the offset. Which, it cannot tell."""
    known = _topics(ledger)
    for (topic, number), read in sorted(checkpoint.start.items()):
        if read and topic in known and (topic, number) not in ledger.positions:
            name = f"{topic}/{number}"
            return Refuse(
                LedgerError,
                f"the checkpoint {checkpoint.path} has read {name} up to {read}, and the ledger "
                f"of {policy.pipeline!r} does not know this partition. Bring the ledger back; or, "
                f"if {policy.target} holds nothing of {name}, remove the checkpoint: reading then "
                "goes on from the ledger.",
            )
    return None


def _refuse_other_rows(
    ledger: LedgerState, checkpoint: CheckpointState, nature: RowsNature, policy: StartPolicy
) -> Refuse | None:
    """Some lanes have a batch and others have not: computed again it must give the same rows. What
    a batch saw besides its records, only its own checkpoint knows."""
    if ledger.furthest is None or nature.sees is None:
        return None
    return Refuse(
        LedgerError,
        f"{policy.target} holds a part of a batch of pipeline {policy.pipeline!r}, and the "
        f"checkpoint {checkpoint.path} is not the one that the batch belongs to. Computed again "
        f"the batch would see another {nature.sees} than before, so rows could be missing or come "
        f"twice. Bring the checkpoint back, or {policy.cure}.",
    )


def _adopted(
    checkpoint: CheckpointState, policy: StartPolicy, past: int | None = None
) -> int | None:
    """The mark that an adopted checkpoint still lacks."""
    if not policy.adopts or checkpoint.adopted is not None:
        return None
    return -1 if past is None else past


def _topics(ledger: LedgerState) -> list[str]:
    return sorted({topic for topic, _ in ledger.positions if is_topic(topic)})


def _lost(ledger: LedgerState, source: SourceState | None) -> tuple[Range, ...]:
    """What is gone before it was read, also of partitions that were added to a topic that is read
    already: they begin at 0. Rows in lanes cannot be told apart, so where some lanes have a batch
    and others have not, all of it is given up."""
    if source is None:
        return ()
    furthest, known = ledger.furthest or {}, _topics(ledger)
    headless = tuple(
        Range(*partition, 0, first)
        for partition, first in sorted(_added(ledger, source).items())
        if partition[0] in known
    )
    overtaken = tuple(
        Range(*partition, at, max(source.earliest[partition], furthest.get(partition, at)))
        for partition, at in sorted(ledger.positions.items())
        if source.earliest.get(partition, 0) > at
    )
    return overtaken + headless


def _after(ledger: LedgerState, lost: tuple[Range, ...]) -> LedgerState:
    """The ledger when these ranges are given up."""
    moved = ledger.moved(lost)
    if ledger.furthest is None:
        return moved
    furthest = {**ledger.furthest, **{each.topic_partition: each.until for each in lost}}
    return replace(moved, furthest=None if furthest == moved.positions else furthest)


def _added(ledger: LedgerState, source: SourceState | None) -> dict[TopicPartition, int]:
    """Partitions that are read and that the ledger does not know, if their first records are gone:
    where they begin now. Spark begins every partition that it has not met at 0."""
    if source is None:
        return {}
    return {
        (topic, number): at
        for (topic, number), at in source.earliest.items()
        if at and topic in source.read and (topic, number) not in ledger.positions
    }


def _reached(ledger: LedgerState, checkpoint: CheckpointState) -> dict[TopicPartition, int]:
    """The ledger's positions, and 0 for partitions of its topics that it does not know yet."""
    known = {topic for topic, _ in ledger.positions}
    met = {*checkpoint.start, *(checkpoint.end or ())}
    return {**{partition: 0 for partition in met if partition[0] in known}, **ledger.positions}


def _leaves_gap(ledger: LedgerState, checkpoint: CheckpointState) -> bool:
    reached = _reached(ledger, checkpoint)
    return any(at < checkpoint.start.get(partition, 0) for partition, at in reached.items())


def _has_lost_past(checkpoint: CheckpointState, source: SourceState | None) -> bool:
    """Whether records are gone that the next batch begins with."""
    earliest = {} if source is None else source.earliest
    return any(checkpoint.start.get(partition, 0) < first for partition, first in earliest.items())


def _begins_within_reach(
    ledger: LedgerState, checkpoint: CheckpointState, *, divisible: bool
) -> bool:
    """Whether the checkpoint's next batch can be done, skipped or, if divisible, trimmed."""
    if checkpoint.planned is None:
        return False
    reached = _reached(ledger, checkpoint)
    begins = {partition: checkpoint.start.get(partition, 0) for partition in reached}
    ends = {
        partition: (checkpoint.end or {}).get(partition, at) for partition, at in begins.items()
    }
    if ledger.furthest is not None:
        return (begins, ends) == (reached, {**reached, **ledger.furthest})
    if divisible:
        return all(begins[partition] <= at <= ends[partition] for partition, at in reached.items())
    return reached in (begins, ends)


def _is_readable(
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
    if source is None or all(
        end.get(partition, 0) == at for partition, at in ledger.positions.items()
    ):
        return True
    return all(
        start.get(partition, 0) >= min(first, end.get(partition, 0))
        for partition, first in source.earliest.items()
    )
