"""The dead letters of a topic, by the coordinates of their records."""

from collections.abc import Iterator
from dataclasses import dataclass

from tallygate.audit.claims import Coordinates
from tallygate.kafka.connection import Connection
from tallygate.kafka.reader import Reading, read, to_record

__all__ = ["TopicLetter", "read_topic_letters"]


@dataclass(frozen=True)
class TopicLetter:
    at: Coordinates
    cause: str


def read_topic_letters(topic: str, connection: Connection) -> Iterator[TopicLetter]:
    """All letters that are there now."""
    for batch in read(Reading([topic], exit_at_end=True), connection):
        for message in batch:
            headers = {name: (value or b"").decode() for name, value in to_record(message).headers}
            try:
                place = headers["tallygate.topic"], int(headers["tallygate.partition"])
                at = (*place, int(headers["tallygate.offset"]))
            except (KeyError, ValueError):
                continue  # somebody else's
            yield TopicLetter(at, headers.get("tallygate.cause", ""))
