"""What every example needs: a local stack, its records in Kafka, its result on the screen."""

import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import psycopg

from tallygate import Pipeline, Postgres, Producer, Settings, Stack, Topics, session

__all__ = ["Example", "Records", "fill", "play", "serve", "shown"]

SHOWN = 6

Records = Iterable[tuple[str, str]]
"""Keys and values."""


@dataclass(frozen=True)
class Example:
    """A pipeline with whatever sink, and what it must give."""

    name: str
    fields: Mapping[str, Any]
    """The pipeline's sources, static sides and transform."""
    expected: Callable[[], list[tuple[Any, ...]]]
    """The same by plain Python, from the same records."""
    columns: tuple[str, ...]
    key: tuple[str, ...] = ()
    """With a key rows are upserted, without one they are appended."""
    replace: bool = False
    """Whether each batch writes the whole result anew."""
    topics: Mapping[str, Callable[[], Records]] = field(default_factory=dict)

    @property
    def mode(self) -> dict[str, Any]:
        """How the sink takes the rows."""
        if self.replace:
            return {"mode": "replace"}
        return {"mode": "upsert", "key": list(self.key)} if self.key else {}


def fill(stack: Stack, settings: Settings, topics: Mapping[str, Callable[[], Records]]) -> None:
    """Make the topics that are not there yet, and send their records."""
    admin = Topics(stack.cluster.connection, settings)
    known = {topic.name for topic in admin.all()}
    for topic, records in topics.items():
        if topic in known:
            continue
        admin.create(topic, partitions=3, replication=1)
        with Producer(stack.cluster.connection) as producer:
            for key, value in records():
                producer.send(topic, value, key=key)


def serve(lines: Iterable[str]) -> int:
    """Send the lines to whoever connects first; returns the port. It stays open after that."""
    listener = socket.create_server(("127.0.0.1", 0))

    def send() -> None:
        client, _ = listener.accept()
        client.sendall("".join(f"{line}\n" for line in lines).encode())
        threading.Event().wait()

    threading.Thread(target=send, daemon=True).start()
    return int(listener.getsockname()[1])


def play(examples: Iterable[Example]) -> None:
    """Run examples into PostgreSQL on a stack of their own, and show what they gave."""
    settings = Settings.load({"stack": "examples"})
    with Stack("examples", brokers=1, purge=True, settings=settings) as stack:
        spark = session("examples", settings=settings)
        for example in examples:
            fill(stack, settings, example.topics)
            sink = Postgres(example.name, **example.mode)
            Pipeline(name=example.name, sink=sink, **example.fields).run(
                until="available", settings=settings, spark=spark
            )
            with psycopg.connect(stack.dsn) as connection:
                query = f"SELECT {', '.join(example.columns)} FROM {example.name}"
                print(shown(example, connection.execute(query.encode()).fetchall()))
        spark.stop()


def shown(example: Example, rows: Iterable[tuple[Any, ...]]) -> str:
    """The first rows as text."""
    listed = sorted(rows)
    lines = [f"{example.name}: {len(listed)} rows", " | ".join(example.columns)]
    for row in listed[:SHOWN]:
        lines.append(" | ".join(_text(value) for value in row))
    return "\n".join([*lines, "…"] if len(listed) > SHOWN else lines) + "\n"


def _text(value: Any) -> str:
    return f"{value:%Y-%m-%d %H:%M}" if isinstance(value, datetime) else str(value)
