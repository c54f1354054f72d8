"""Consumer groups of pipelines: what Kafka's own tools show as a query's lag.

The group's offsets are a courtesy, written after the ledger and never read back as truth.
"""

import contextlib
from collections.abc import Mapping, Sequence

from confluent_kafka import KafkaException, TopicCollection, TopicPartition

from tallygate.kafka import clients
from tallygate.kafka.connection import Connection

ANSWER_TIMEOUT = 10.0


class Mirror:
    """Commits positions to a group without waiting; what fails is made good by the next batch."""

    def __init__(self, group: str, connection: Connection) -> None:
        self._consumer = clients.consumer(connection, group_id=group)

    def __call__(self, positions: Mapping[tuple[str, int], int]) -> None:
        offsets = [TopicPartition(topic, number, at) for (topic, number), at in positions.items()]
        with contextlib.suppress(KafkaException):
            self._consumer.commit(offsets=offsets, asynchronous=True)

    def close(self) -> None:
        self._consumer.close()


def topic_ids(topics: Sequence[str], connection: Connection) -> dict[str, str]:
    """The ids that Kafka gave the topics when they were made; those that are gone are left out."""
    admin = clients.shared_admin(connection)
    with clients.explain_errors(connection, "asking for the topics"):
        known = admin.list_topics(timeout=ANSWER_TIMEOUT).topics
    there = [topic for topic in topics if topic in known]
    if not there:
        return {}
    futures = admin.describe_topics(TopicCollection(there), request_timeout=ANSWER_TIMEOUT)
    found = clients.answer(futures, connection, "asking for the topics")
    return {topic: str(description.topic_id) for topic, description in found.items()}
