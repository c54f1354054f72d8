"""The source as Kafka shows it: the facts that a start is decided from, and the ids of topics,
which must stay as they are while a query runs."""

from collections.abc import Mapping, Sequence

from confluent_kafka import IsolationLevel
from confluent_kafka.admin import OffsetSpec

from tallygate.core.cut_logs import reached
from tallygate.core.ledger import LedgerState
from tallygate.core.offsets import Range, TopicPartition, is_topic
from tallygate.core.start import refuse_other_topic
from tallygate.core.start_facts import SourceState
from tallygate.engine.run_request import RunRequest
from tallygate.errors import LostRangeError, TallygateError, UnreachableError
from tallygate.kafka.connection import Connection
from tallygate.kafka.groups import topic_ids
from tallygate.kafka.log_ends import LogEnd, cut_points, log_ends, look_again
from tallygate.kafka.read import list_offsets
from tallygate.kafka.topic_ids import ids_now
from tallygate.kafka.topics import Topics
from tallygate.spark.plan import Plan, partitions_assigned, topics_read


class TopicIds:
    """The ids that Kafka gave the topics when they were made, which must stay as they were."""

    def __init__(self, request: RunRequest, ledger: LedgerState | None) -> None:
        self._pipeline, self._connection = request.name, request.connection
        begun = ledger is not None and ledger.positions
        self._seen = dict(ledger.topic_ids) if ledger is not None and begun else {}

    def __call__(self, topics: Sequence[str]) -> Mapping[str, str]:
        """The ids as they are now, for the ledger to remember; raise if one has changed."""
        now = {} if self._connection is None else ids_now(topics, self._connection)
        refusal = refuse_other_topic(self._seen, now, self._pipeline)
        if refusal is not None:
            raise refusal.exception()
        self._seen |= now
        return now


class LeaderEpochs:
    """Under which leaders the logs hold what a batch is going to read, for the ledger to keep.

    They are asked for once the batch is planned, and before it is read: what is planned is there
    then, so a log that has less of such an epoch later was cut off, whatever the batch has seen."""

    def __init__(self, connection: Connection | None) -> None:
        self._connection = connection

    def __call__(self, left: Sequence[Range], ledger: LedgerState) -> dict[TopicPartition, int]:
        """Raise if a log was cut off below its position, or does not reach as far as is planned."""
        wanted = {each.topic_partition: each.until for each in left if is_topic(each.topic)}
        if self._connection is None or not wanted:
            return {}
        ends = log_ends(wanted, self._connection)
        if _short(ends, wanted):  # or the one that was asked is no leader any more
            look_again(wanted, self._connection)
            ends = log_ends(wanted, self._connection)
        cut = _cut(ledger, ends, self._connection)
        if cut:
            (topic, number), at = min(cut.items())
            raise LostRangeError(
                f"the log of {topic}/{number} was cut off at {at}, and had been read up to "
                f"{reached(ledger)[topic, number]}. Start again: the start says what is gone, and "
                "how to go on."
            )
        for (topic, number), end in sorted(_short(ends, wanted).items()):
            raise UnreachableError(
                f"{topic}/{number} ends at {end}, and was planned up to {wanted[topic, number]}: "
                "its log was cut off"
            )
        return {at: end.epoch for at, end in ends.items()}


def _short(
    ends: Mapping[TopicPartition, LogEnd], wanted: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    return {at: end.offset for at, end in ends.items() if end.offset < wanted[at]}


def _cut(
    ledger: LedgerState, ends: Mapping[TopicPartition, LogEnd], connection: Connection
) -> dict[TopicPartition, int]:
    """Where logs were cut off below what the ledger knows of them. Under the same leader as then
    none was."""
    known = {
        at: LogEnd(offset, ledger.leader_epochs[at])
        for at, offset in reached(ledger).items()
        if at in ends and ledger.leader_epochs.get(at, ends[at].epoch) != ends[at].epoch
    }
    short = {at: end.offset for at, end in ends.items() if end.offset < ledger.positions.get(at, 0)}
    return {**short, **cut_points(known, connection)}


def source_state(request: RunRequest, ledger: LedgerState, plan: Plan) -> SourceState | None:
    """The topics that the plan reads or that the ledger knows, as they are now; None if no source
    is Kafka, or if the ledger holds nothing to compare them with."""
    connection = request.connection
    if connection is None or not (ledger.positions or ledger.topic_ids):
        return None
    counts = Topics(connection).partition_counts()
    read = topics_read(plan.frame, counts)
    known = {topic for topic, _ in ledger.positions if is_topic(topic)}
    ids = topic_ids(sorted(counts.keys() & (read | known)), connection)
    assigned = partitions_assigned(plan.frame)
    in_part = {topic for topic, _ in assigned}
    partitions = [
        (topic, number)
        for topic in ids
        for number in range(counts[topic])
        if topic not in in_part or (topic, number) in assigned | ledger.positions.keys()
    ]
    first = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
    same = {topic for topic in ids if ledger.topic_ids.get(topic, ids[topic]) == ids[topic]}
    ends = log_ends((at for at in partitions if at in ledger.positions), connection)
    return SourceState(
        topic_ids=ids,
        earliest=list_offsets(partitions, first, connection),
        read=frozenset(read),
        ends={at: end.offset for at, end in ends.items()},
        cut=_cut(ledger, {at: end for at, end in ends.items() if at[0] in same}, connection),
    )


def lag_of(
    positions: Mapping[TopicPartition, int], connection: Connection | None
) -> dict[TopicPartition, int]:
    """How far positions are behind the ends of their partitions, of those that are there; empty if
    Kafka cannot say: no run depends on it."""
    if connection is None or not positions:
        return {}
    try:
        counts = Topics(connection).partition_counts()
        there = [at for at in positions if at[1] < counts.get(at[0], 0)]
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        ends = list_offsets(there, latest, connection, IsolationLevel.READ_COMMITTED)
    except TallygateError:
        return {}
    return {at: max(0, end - positions[at]) for at, end in ends.items()}
