"""The ids that Kafka gives topics when they are made: one that is made again has another."""

from collections.abc import Iterable, Mapping
from contextlib import suppress

from confluent_kafka import TopicCollection

from tallygate.errors import LostRangeError, TopicError
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection

ANSWER_TIMEOUT = 10.0


def ids_now(topics: Iterable[str], connection: Connection) -> dict[str, str]:
    """The ids as they are now. A topic that is gone has none: its reader finds out."""
    found: dict[str, str] = {}
    wanted = sorted(topics)
    if not wanted:
        return found
    asked = TopicCollection(wanted)
    doing = "asking for the topics"
    with clients.explain_errors(connection, doing):
        futures = clients.shared_admin(connection).describe_topics(
            asked, request_timeout=ANSWER_TIMEOUT
        )
    for topic, future in futures.items():
        with suppress(TopicError), clients.explain_errors(connection, doing):
            found[topic] = str(future.result().topic_id)
    return found


def check_ids(ids: Mapping[str, str], connection: Connection) -> None:
    """Raise if one of the topics is another one by now than these ids say."""
    for topic, topic_id in ids_now(ids, connection).items():
        if topic_id != ids[topic]:
            raise LostRangeError(
                f"topic {topic!r} was deleted and recreated while it was read: its offsets mean "
                "other records now, and nothing that was read is written."
            )
