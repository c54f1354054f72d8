"""Topics that a pipeline has read and reads no more: refused until they are forgotten.

A ledger holds a position for every topic that was read, and Spark's checkpoint names them all: it
cannot go on if one is gone, or is not among those that it reads. To forget a topic is to keep its
positions under a name that no topic can have (`core.offsets.forgotten_as`), as the record of what
the target holds of it, and to begin a new checkpoint without it. A topic of that name that comes
later is a new one; if it is the very one that was forgotten, it goes on from where it was.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from tallygate.core.ledger import Forget, LedgerState, Lose
from tallygate.core.offsets import (
    Range,
    TopicPartition,
    forgotten_as,
    is_forgotten,
    is_topic,
    topic_of,
)
from tallygate.core.start_facts import (
    CheckpointState,
    Refuse,
    RowsNature,
    SourceState,
    StartPolicy,
)
from tallygate.errors import ConfigError, LedgerError, LostRangeError, TopicError

WAY = (
    "`tallygate forget-topic` (in Python: tallygate.forget_topic, or forget_topics of write_stream)"
)


def followed(ledger: LedgerState) -> LedgerState:
    """The ledger without the topics that were forgotten."""

    def kept(positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {each: at for each, at in positions.items() if not is_forgotten(each[0])}

    positions = kept(ledger.positions)
    furthest = None if ledger.furthest is None else kept(ledger.furthest)
    furthest = None if furthest == positions else furthest
    return replace(ledger, positions=positions, furthest=furthest)


def where_forgotten(ledger: LedgerState, source: SourceState) -> dict[TopicPartition, int]:
    """Where topics were when they were forgotten, if they are the very ones that are there now."""
    return {
        (topic_of(name), number): at
        for (name, number), at in sorted(ledger.positions.items())
        if is_forgotten(name)
        and ledger.topic_ids.get(name) == source.topic_ids.get(topic_of(name), "")
    }


def _forgotten(ledger: LedgerState) -> set[str]:
    return {topic_of(name) for name, _ in ledger.positions if is_forgotten(name)}


def topics_of(ledger: LedgerState) -> list[str]:
    return sorted({topic for topic, _ in ledger.positions if is_topic(topic)})


def refuse_unread_topic(
    ledger: LedgerState, source: SourceState, nature: RowsNature, policy: StartPolicy
) -> Refuse | None:
    """A topic that was read is gone, or the source does not name it any more."""
    for topic in topics_of(ledger):
        if topic not in source.topic_ids:
            said = "is gone. If it was renamed or deleted on purpose"
            return _refusal(topic, said, nature, policy)
        if topic not in source.read:
            said = "was read so far, and is not read any more. If that is on purpose"
            return _refusal(topic, said, nature, policy)
    return None


def refuse_unknown_topic(
    ledger: LedgerState,
    checkpoint: CheckpointState,
    source: SourceState | None,
    begins: Mapping[TopicPartition, int],
    nature: RowsNature,
    policy: StartPolicy,
) -> Refuse | None:
    """The checkpoint has read a topic that the ledger does not know: where the ledger is offsets of
    groups, Kafka drops it with the topic. `begins` is where partitions begin that are new."""
    if source is None:
        return None
    forgotten = _forgotten(ledger)
    for partition, read in sorted(_unknown(ledger, checkpoint, begins).items()):
        if partition[0] not in forgotten or nature.anchored:
            said = (
                f"was read up to {read} in partition {partition[1]} by the checkpoint "
                f"{checkpoint.path}, and the ledger does not know it. If it was deleted on purpose"
            )
            return _refusal(partition[0], said, nature, policy)
    return None


def _unknown(
    ledger: LedgerState, checkpoint: CheckpointState, begins: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """What the checkpoint has read of topics that the ledger does not follow. One that has done no
    batch has read nothing: it only says where it begins."""
    known = topics_of(ledger)
    if checkpoint.committed is None:
        return {}
    return {
        (topic, number): read
        for (topic, number), read in checkpoint.start.items()
        if is_topic(topic) and topic not in known and read > begins.get((topic, number), 0)
    }


def names_other_topics(
    ledger: LedgerState,
    checkpoint: CheckpointState,
    source: SourceState | None,
    begins: Mapping[TopicPartition, int],
) -> bool:
    """Whether the checkpoint names topics that are not read, or positions of one that was there
    before the one of that name which is read now."""
    if source is None:
        return False
    named = {topic for topic, _ in (*checkpoint.start, *(checkpoint.end or ()))}
    unread = {topic for topic in named if is_topic(topic)} - source.read
    return bool(unread or _unknown(ledger, checkpoint, begins))


def _refusal(topic: str, said: str, nature: RowsNature, policy: StartPolicy) -> Refuse:
    way = (
        f"take it out of the source, if it is named there, and forget it with {WAY}: the ledger "
        "keeps how far it was read, and the pipeline goes on with its other topics"
    )
    if nature.anchored:
        way = f"{policy.cure}: its checkpoint names the topic, so it cannot be forgotten"
    text = f"topic {topic!r} of pipeline {policy.pipeline!r} {said}, {way}."
    return Refuse(TopicError, text)


def refuse_without_ledger(
    checkpoint: CheckpointState, source: SourceState | None, policy: StartPolicy
) -> Refuse | None:
    """Where the ledger knows no position, or there is none, the checkpoint alone says what was
    read. If Spark cannot go on with it, to begin again loses nothing that is kept."""
    if source is None or checkpoint.planned is None:
        return None
    begins = {at: offset for at, offset in checkpoint.start.items() if is_topic(at[0])}
    unread = sorted({topic for topic, _ in begins if topic not in source.read})
    gone = [
        Range(*partition, at, source.earliest[partition])
        for partition, at in sorted(begins.items())
        if source.earliest.get(partition, 0) > at
    ]
    if not unread and not gone:
        return None
    listed = ", ".join(f"{each} ({len(each)} records)" for each in gone)
    said = (
        f"reads topic {unread[0]!r} no more, which its checkpoint names. Bring the topic back"
        if unread
        else f"had not read {listed} when retention removed them. Restore them"
    )
    return Refuse(
        TopicError if unread else LostRangeError,
        f"pipeline {policy.pipeline!r} {said}, or remove the checkpoint {checkpoint.path}: reading "
        f"then begins where source.start says. No ledger of {policy.target} holds a position that "
        "would be lost by it.",
    )


def changes_to_forget(
    topic: str,
    *,
    at: datetime,
    ledger: LedgerState | None,
    checkpoint: CheckpointState,
    source: SourceState | None,
    nature: RowsNature,
    policy: StartPolicy,
) -> tuple[Lose | Forget, ...] | Refuse:
    """The changes of the ledger by which a topic is forgotten. What some lanes of a target have of
    a batch, and others have not, is given up with it."""
    read = _read_of(topic, ledger or LedgerState(), checkpoint)
    ledger = followed(ledger or LedgerState())
    if not read:
        held = ", ".join(topics_of(ledger)) or "none"
        return Refuse(
            ConfigError,
            f"pipeline {policy.pipeline!r} has no topic {topic!r} to forget; it has read: {held}.",
        )
    if nature.anchored:
        return Refuse(
            LedgerError,
            f"pipeline {policy.pipeline!r} needs its checkpoint {checkpoint.path}, which names the "
            f"topic, so {topic!r} cannot be forgotten. To go on without the topic, {policy.cure}.",
        )
    if topic in topics_of(ledger) and _is_read_still(topic, ledger, source):
        return Refuse(
            ConfigError,
            f"pipeline {policy.pipeline!r} still reads topic {topic!r}: take it out of the source "
            "first, or the next start would go on with it.",
        )
    furthest = ledger.furthest or {}
    halfway = tuple(
        replace(each, start=each.until, until=furthest[each.topic_partition])
        for each in read
        if furthest.get(each.topic_partition, each.until) > each.until
    )
    lost = (Lose(halfway, "forgotten with its topic"),) if halfway else ()
    until = {each.topic_partition: each.until for each in halfway}
    done = tuple(replace(each, until=until.get(each.topic_partition, each.until)) for each in read)
    return *lost, Forget(forgotten_as(topic, at), done)


def _is_read_still(topic: str, ledger: LedgerState, source: SourceState | None) -> bool:
    """Whether the very topic is read, and not another one of its name."""
    if source is None or topic not in source.read:
        return False
    now = source.topic_ids[topic]
    held = [partition for partition in ledger.positions if partition[0] == topic]
    return ledger.topic_ids.get(topic, now) == now and all(
        partition in source.earliest for partition in held
    )


def _read_of(topic: str, ledger: LedgerState, checkpoint: CheckpointState) -> tuple[Range, ...]:
    """What was read of a topic: as the ledger says, or the checkpoint if that does not know it."""
    held = ledger.positions
    if topic not in {*topics_of(ledger), *_forgotten(ledger)}:
        held = checkpoint.start
    return tuple(
        Range(*partition, min(at, ledger.begun.get(partition, 0)), at)
        for partition, at in sorted(held.items())
        if partition[0] == topic
    )
