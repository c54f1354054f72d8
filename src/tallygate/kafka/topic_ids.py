"""The ids that Kafka gives topics when they are made: one that is made again has another."""

from collections.abc import Iterable, Mapping
from contextlib import suppress

from confluent_kafka import TopicCollection

from tallygate.errors import LostRangeError, TopicError, UnreachableError
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection

ANSWER_TIMEOUT = 10.0
DOING = "asking for the topics"


def ids_now(topics: Iterable[str], connection: Connection) -> dict[str, str]:
    """The ids as they are now. A topic that is gone has none: its reader finds out."""
    wanted = sorted(topics)
    if not wanted:
        return {}
    try:
        return _asked(wanted, connection)
    except UnreachableError:
        # The client waits for the controller that it knows, and does not look for another.
        with clients.explain_errors(connection, DOING):
            clients.shared_admin(connection).list_topics(wanted[0], timeout=ANSWER_TIMEOUT)
        return _asked(wanted, connection)


def _asked(topics: list[str], connection: Connection) -> dict[str, str]:
    found: dict[str, str] = {}
    with clients.explain_errors(connection, DOING):
        futures = clients.shared_admin(connection).describe_topics(
            TopicCollection(topics), request_timeout=ANSWER_TIMEOUT
        )
    for topic, future in futures.items():
        with suppress(TopicError), clients.explain_errors(connection, DOING):
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
