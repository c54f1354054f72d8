"""The source as Kafka shows it: the facts that a start is decided from, and the ids of topics,
which must stay as they are while a query runs."""

from collections.abc import Mapping, Sequence

from confluent_kafka import IsolationLevel
from confluent_kafka.admin import OffsetSpec

from tallygate.core.ledger import LedgerState
from tallygate.core.offsets import TopicPartition, is_topic
from tallygate.core.start import refuse_other_topic
from tallygate.core.start_facts import SourceState
from tallygate.engine.run_request import RunRequest
from tallygate.errors import TallygateError
from tallygate.kafka.connection import Connection
from tallygate.kafka.groups import topic_ids
from tallygate.kafka.read import list_offsets
from tallygate.kafka.topic_ids import ids_now
from tallygate.kafka.topics import Topics
from tallygate.spark.plan import Plan, topics_read


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


def source_state(request: RunRequest, ledger: LedgerState | None, plan: Plan) -> SourceState | None:
    """The topics that the plan reads or that the ledger knows, as they are now; None if no source
    is Kafka, or if the ledger holds nothing to compare them with."""
    connection = request.connection
    if connection is None or ledger is None or not (ledger.positions or ledger.topic_ids):
        return None
    counts = Topics(connection).partition_counts()
    read = topics_read(plan.frame, counts)
    known = {topic for topic, _ in ledger.positions if is_topic(topic)}
    ids = topic_ids(sorted(counts.keys() & (read | known)), connection)
    partitions = [(topic, number) for topic in ids for number in range(counts[topic])]
    first = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
    return SourceState(
        topic_ids=ids,
        earliest=list_offsets(partitions, first, connection),
        read=frozenset(read),
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
