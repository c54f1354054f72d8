"""Consuming: check what is asked for, make the topics that it needs, and run the loop."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from tallygate.consumer.dedup import Dedup
from tallygate.consumer.delivery import Handler
from tallygate.consumer.letter_limits import LetterLimits
from tallygate.consumer.loop import ConsumeSummary, Loop
from tallygate.consumer.retry import Retry
from tallygate.endpoints import running_connection
from tallygate.errors import ConfigError
from tallygate.kafka.connection import Connection
from tallygate.kafka.topics import Topics
from tallygate.settings import Settings

__all__ = ["ConsumeSummary", "consume"]

DeliveryName = Literal["at-most-once", "at-least-once", "auto-commit", "exactly-once"]


def consume(
    topics: str | Sequence[str],
    handler: Handler,
    *,
    group: str,
    delivery: DeliveryName = "at-least-once",
    dsn: str | None = None,
    connection: Connection | None = None,
    start: Literal["earliest", "latest"] = "earliest",
    until: Literal["stopped", "available"] = "stopped",
    stop: threading.Event | None = None,
    batch_size: int = 500,
    retry: Retry | None = None,
    dedup: Dedup | None = None,
    instance: str | None = None,
    properties: Mapping[str, Any] | None = None,
    settings: Settings | None = None,
) -> ConsumeSummary:
    """Read topics as a group and hand each record to `handler`, with the delivery asked for.

    The handler is called with the record. For delivery exactly-once with a `dsn` it is called with
    the record and a psycopg connection, and what it writes there is committed together with the
    offset; without a `dsn` it returns the records to write (`tallygate.Output`).

    Runs until `stop` is set, or with until="available" until everything there is was read.
    """
    settings = settings or Settings.load()
    connection = connection or running_connection(settings)
    names = [topics] if isinstance(topics, str) else list(topics)
    _check(names, delivery, dsn, dedup, batch_size)
    retry = retry or Retry()
    admin = Topics(connection, settings)
    limits = LetterLimits(admin)
    _make_topics(names, group, retry, admin, limits)
    loop = Loop(
        names,
        connection,
        group=group,
        start=start,
        until=until,
        stop=stop or threading.Event(),
        batch_size=batch_size,
        retry=retry,
        limits=limits,
    )
    return loop.run(handler, delivery, dsn, dedup, instance, properties or {})


def _check(
    names: Sequence[str], delivery: str, dsn: str | None, dedup: Dedup | None, batch_size: int
) -> None:
    if not names:
        raise ConfigError("no topic was given to consume.")
    if delivery not in get_args(DeliveryName):
        known = ", ".join(get_args(DeliveryName))
        raise ConfigError(f"{delivery!r} is not a delivery; choose one of {known}.")
    if dsn is not None and delivery != "exactly-once":
        raise ConfigError(f"a dsn goes with delivery exactly-once, not {delivery}.")
    if dedup is not None and dsn is None:
        raise ConfigError("dedup keeps its ids in PostgreSQL: give delivery exactly-once a dsn.")
    if batch_size < 1:
        raise ConfigError("batch_size must be 1 or more.")


def _make_topics(
    names: Sequence[str], group: str, retry: Retry, admin: Topics, limits: LetterLimits
) -> None:
    """The topics to read must be there; those for retries and dead letters are made."""
    for name in names:
        admin.check_exists(name)
    known = set(admin.names())
    for topic in retry.topics(group):
        if topic in known:
            limits.check(topic)
        else:
            admin.create_for_letters(topic)
