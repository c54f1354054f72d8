"""The source compared with the ledger: nothing is skipped in silence.

A topic that was made anew, or records that retention removed before they were read, are an error
with the exact ranges. A loss can be accepted, and is then kept in the ledger; not by a pipeline
that needs its checkpoint, whose next batch begins with what is gone.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from confluent_kafka import TopicCollection
from confluent_kafka.admin import OffsetSpec

from tallygate.core.offsets import Known, Place, Range, is_topic
from tallygate.engine.run_request import Job
from tallygate.errors import LostRangeError, TopicError
from tallygate.kafka import clients
from tallygate.kafka.groups import topic_ids
from tallygate.kafka.read import list_offsets
from tallygate.kafka.topics import Topics
from tallygate.spark.plan import Plan, topics_read
from tallygate.targets.store import Shape

__all__ = ["TopicIds", "accept_losses", "added_partitions", "check_added", "check_source"]

ANSWER_TIMEOUT = 10.0


class TopicIds:
    """The ids that Kafka gave the topics when they were made, which must stay as they were.

    They are asked for while a batch waits, so one client is kept: to ask takes it a millisecond,
    and a new one sixty."""

    def __init__(self, job: Job, known: Known | None) -> None:
        self._job, self._seen = job, {} if known is None else dict(known.topic_ids)
        self._admin = None if job.connection is None else clients.admin(job.connection)

    def __call__(self, topics: Sequence[str]) -> Mapping[str, str]:
        """The ids as they are now, for the ledger to remember."""
        now = self._now(topics)
        _check_ids(self._seen, now, self._job)
        self._seen |= now
        return now

    def _now(self, topics: Sequence[str]) -> dict[str, str]:
        connection, found = self._job.connection, {}
        if connection is None or self._admin is None or not topics:
            return {}
        asked = TopicCollection(list(topics))
        futures = self._admin.describe_topics(asked, request_timeout=ANSWER_TIMEOUT)
        for topic, future in futures.items():
            # One that is gone has no id: whoever reads it finds out.
            with suppress(TopicError), clients.explained(connection, "asking for the topics"):
                found[topic] = str(future.result().topic_id)
        return found


def check_source(known: Known, job: Job, shape: Shape) -> None:
    if job.connection is None:
        return
    topics = sorted({topic for topic, _ in known.positions if is_topic(topic)})
    now = topic_ids(topics, job.connection)
    for topic in topics:
        if topic not in now:
            raise TopicError(
                f"topic {topic!r} of pipeline {job.name!r} is gone. If it was renamed or deleted "
                "on purpose, start a pipeline of another name."
            )
    _check_ids(known.topic_ids, now, job)
    _check_losses(_lost(known, job), job, shape)


def _check_ids(seen: Mapping[str, str], now: Mapping[str, str], job: Job) -> None:
    for topic, topic_id in now.items():
        if seen.get(topic, topic_id) != topic_id:
            raise LostRangeError(
                f"topic {topic!r} was deleted and made anew since pipeline {job.name!r} read it: "
                "its offsets mean other records now. Start a pipeline of another name for the new "
                "topic."
            )


def _lost(known: Known, job: Job) -> list[Range]:
    """What is gone before it was read. Rows in lanes cannot be told apart, so where some lanes
    have a batch and others have not, all of it is given up."""
    places = sorted(place for place in known.positions if is_topic(place[0]))
    earliest = _earliest(places, job)
    furthest = known.halfway or known.positions
    return [
        Range(*place, known.positions[place], max(at, furthest[place]))
        for place, at in earliest.items()
        if at > known.positions[place]
    ]


def _earliest(places: list[Place], job: Job) -> dict[Place, int]:
    """The first offsets that the source still has."""
    if job.connection is None or not places:
        return {}
    return list_offsets(places, OffsetSpec.earliest(), job.connection)  # type: ignore[no-untyped-call]


def _check_losses(lost: Sequence[Range], job: Job, shape: Shape) -> None:
    """An error unless the loss is accepted, and can be."""
    if not lost or (job.accept_loss and not shape.anchored):
        return
    listed = ", ".join(f"{each} ({len(each)} records)" for each in lost)
    cure = (
        f"{job.anew}: its checkpoint cannot go on without them, so they cannot be given up"
        if shape.anchored
        else "start with --accept-loss (in Python: accept_loss=True): the range is then kept in "
        "the ledger as lost"
    )
    raise LostRangeError(
        f"retention removed records that pipeline {job.name!r} had not read: {listed}. Restore "
        f"them, or {cure}."
    )


def accept_losses(known: Known, job: Job, shape: Shape) -> None:
    lost = _lost(known, job)
    _check_losses(lost, job, shape)
    if lost:
        job.store.lose(lost, "removed by retention before it was read")
        job.note(f"given up as lost: {', '.join(map(str, lost))}")


def added_partitions(known: Known, job: Job, plan: Plan) -> dict[Place, int]:
    """Partitions that are read and that the ledger does not know, if their first records are gone:
    where they begin now. Spark begins every partition that it has not met at 0."""
    if job.connection is None or not known.positions:
        return {}
    counts = Topics(job.connection).partition_counts()
    places = [
        (topic, number)
        for topic in sorted(topics_read(plan.frame, counts))
        for number in range(counts[topic])
        if (topic, number) not in known.positions
    ]
    return {place: at for place, at in _earliest(places, job).items() if at}


def check_added(added: Mapping[Place, int], known: Known, job: Job, shape: Shape) -> None:
    """A topic that is new to the pipeline begins with what it still has, as any source does. Of
    one that is read already nothing may be missing; and a checkpoint that cannot be made anew goes
    on as Spark does, from 0."""
    read = {topic for topic, _ in known.positions}
    for (topic, number), at in added.items():
        if topic in read or shape.anchored:
            raise LostRangeError(
                f"partition {topic}/{number} is new to pipeline {job.name!r}, and retention has "
                f"removed its records before {at}, which were to be read first. Restore them, or "
                f"{'start a pipeline of another name' if topic in read else job.anew}."
            )
