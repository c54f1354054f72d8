"""The source as Kafka shows it: the facts that a start is decided from, and the ids of topics,
which must stay as they are while a query runs."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from confluent_kafka import IsolationLevel, TopicCollection
from confluent_kafka.admin import OffsetSpec

from tallygate.core.ledger import LedgerState
from tallygate.core.offsets import TopicPartition, is_topic
from tallygate.core.start import refuse_other_topic
from tallygate.core.start_facts import SourceState
from tallygate.engine.run_request import RunRequest
from tallygate.errors import TallygateError, TopicError
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.kafka.groups import topic_ids
from tallygate.kafka.read import list_offsets
from tallygate.kafka.topics import Topics
from tallygate.spark.plan import Plan, topics_read

__all__ = ["TopicIds", "lag_of", "source_state"]

ANSWER_TIMEOUT = 10.0


class TopicIds:
    """The ids that Kafka gave the topics when they were made, which must stay as they were.

    They are asked for while a batch waits, so one client is kept: to ask takes it a millisecond,
    and a new one sixty."""

    def __init__(self, request: RunRequest, ledger: LedgerState | None) -> None:
        self._pipeline, self._connection = request.name, request.connection
        self._seen = {} if ledger is None else dict(ledger.topic_ids)
        self._admin = None if self._connection is None else clients.admin(self._connection)

    def __call__(self, topics: Sequence[str]) -> Mapping[str, str]:
        """The ids as they are now, for the ledger to remember; raise if one has changed."""
        now = self._now(topics)
        refusal = refuse_other_topic(self._seen, now, self._pipeline)
        if refusal is not None:
            raise refusal.exception()
        self._seen |= now
        return now

    def _now(self, topics: Sequence[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        if self._connection is None or self._admin is None or not topics:
            return found
        asked = TopicCollection(list(topics))
        futures = self._admin.describe_topics(asked, request_timeout=ANSWER_TIMEOUT)
        for topic, future in futures.items():
            # A topic that is gone has no id: its reader finds out.
            with (
                suppress(TopicError),
                clients.explain_errors(self._connection, "asking for the topics"),
            ):
                found[topic] = str(future.result().topic_id)
        return found


def source_state(request: RunRequest, ledger: LedgerState | None, plan: Plan) -> SourceState | None:
    """The topics that the plan reads or that the ledger knows, as they are now; None if no source
    is Kafka, or if the ledger holds nothing to compare them with."""
    connection = request.connection
    if connection is None or ledger is None or not ledger.positions:
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
