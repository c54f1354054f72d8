"""Quix Streams: a topic into PostgreSQL by its sink, or into another topic exactly once.

It runs in an environment of its own, so nothing of Tallygate is imported. Settings are those that
come with it, but for the guarantee; it ends when nothing has come for a while.
"""

import json
import sys
from typing import Any

from quixstreams import Application

IDLE = 8.0


def main(server: str, topic: str, group: str, folder: str, sink: Any) -> None:
    into_topic = isinstance(sink, str)
    application = Application(
        broker_address=server,
        consumer_group=group,
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once" if into_topic else "at-least-once",
        state_dir=folder,
        loglevel="WARNING",
        auto_create_topics=False,
        consumer_extra_config={"isolation.level": "read_committed"},
    )
    form = "bytes" if into_topic else "json"
    rows = application.dataframe(application.topic(topic, value_deserializer=form))
    if into_topic:
        rows.to_topic(application.topic(sink, value_serializer=form))
    else:
        from quixstreams.sinks.community.postgresql import PostgreSQLSink

        rows.sink(PostgreSQLSink(**sink))
    application.run(timeout=IDLE)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
