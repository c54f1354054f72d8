"""What to do at a start: go on, seed a new checkpoint from the ledger, or refuse.

The ledger is the truth and the checkpoint a cache of it. A pipeline that does not need its
checkpoint goes on from the ledger if the checkpoint is gone, older or ahead: the old one is set
aside, and a new one begins where the ledger is. A pipeline that is anchored to its checkpoint (by
its state, or since the checkpoint alone knows what was read) goes on with it, or is refused.

Everything is decided from facts that others gather. `decide_start` is asked twice: before the run
takes over, so that a refusal fences no other run, and once more when the ledger is final.
"""

from collections.abc import Iterable, Mapping

from tallygate.core.cut_logs import cut_ranges, refuse_cut_log
from tallygate.core.forgetting import (
    WAY,
    followed,
    names_other_topics,
    refuse_unknown_topic,
    refuse_unread_topic,
    refuse_without_ledger,
    topics_of,
)
from tallygate.core.ledger import LedgerState
from tallygate.core.offsets import Range, is_topic
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
from tallygate.core.start_reach import (
    added_partitions,
    after_losses,
    begins_within_reach,
    has_lost_past,
    is_readable,
    leaves_gap,
    lost_ranges,
)
from tallygate.errors import ConfigError, LedgerError, LostRangeError

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
            _refuse_other_first(ledger, checkpoint, source, policy)
            or _refuse_other_shuffle(checkpoint, nature, policy)
            or _refuse_unknown_past(checkpoint, policy)
            or refuse_without_ledger(checkpoint, source, policy)
            or Resume(adopt=_adopted(checkpoint, policy, past=checkpoint.committed))
        )
    added = added_partitions(ledger, source)
    whole, ledger = ledger, followed(ledger)
    refusal = (
        refuse_other_target(whole, nature, policy)
        or (None if source is None else refuse_unread_topic(whole, source, nature, policy))
        or refuse_forgotten(whole, policy)
        or refuse_source(whole, source, nature, policy)
        or refuse_unknown_topic(whole, checkpoint, source, added, nature, policy)
        or _refuse_without_anchor(ledger, checkpoint, source, nature, policy)
        or _refuse_other_shuffle(checkpoint, nature, policy)
        or _refuse_unknown_partition(ledger, checkpoint, policy)
    )
    if refusal is not None:
        return refusal
    lost, cut = lost_ranges(ledger, source), cut_ranges(ledger, source)
    ledger = after_losses(ledger, lost)
    if nature.anchored or (
        begins_within_reach(ledger, checkpoint, divisible=nature.divisible)
        and is_readable(ledger, checkpoint, source, added)
        and not names_other_topics(ledger, checkpoint, source, added)
    ):
        return Resume(lost, _adopted(checkpoint, policy), _retarget(ledger, policy), cut)
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
        cut=cut,
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
        refuse_unread_topic(ledger, source, nature, policy)
        or refuse_other_topic(ledger.topic_ids, source.topic_ids, policy.pipeline)
        or _refuse_missing_partition(ledger, source, policy)
        or refuse_cut_log(ledger, source, nature, policy)
        or _refuse_loss(lost_ranges(ledger, source), nature, policy)
        or _refuse_headless_partition(ledger, source, nature, policy)
    )


def refuse_other_topic(
    seen: Mapping[str, str], now: Mapping[str, str], pipeline: str
) -> Refuse | None:
    """Refuse if a topic has another id now than when the pipeline saw it."""
    for topic, topic_id in sorted(now.items()):
        if seen.get(topic, topic_id) != topic_id:
            return _another_topic(topic, pipeline)
    return None


def _refuse_other_first(
    ledger: LedgerState | None,
    checkpoint: CheckpointState,
    source: SourceState | None,
    policy: StartPolicy,
) -> Refuse | None:
    """A first batch that is planned begins where it did in the topic that was there then."""
    if ledger is None or source is None or checkpoint.planned is None:
        return None
    return refuse_other_topic(ledger.topic_ids, source.topic_ids, policy.pipeline)


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
        f"offsets mean other records now. Forget the old one with {WAY}, and the new one is read "
        "from its beginning; or start a pipeline of another name for it.",
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
    known = topics_of(ledger)
    for (topic, number), at in sorted(added_partitions(ledger, source).items()):
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
    elif (nature.exact or ledger.furthest is not None) and not begins_within_reach(
        ledger, checkpoint, divisible=False
    ):
        wrong = (
            f"the checkpoint {path} is not the one that the ledger goes with: its next batch "
            "begins elsewhere, and what it would hold is not what was written."
        )
    elif leaves_gap(ledger, checkpoint):
        wrong = f"the checkpoint {path} is ahead of the ledger: its next batch would leave a gap."
    elif nature.stateful and has_lost_past(checkpoint, source):
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
    known = topics_of(ledger)
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
