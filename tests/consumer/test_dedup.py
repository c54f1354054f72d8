"""Operations that come twice, from a producer that cannot be idempotent."""

import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tallygate import Connection, Dedup, Producer, Record, Stack, Topics, consume
from tallygate.consumer.dedup import _times
from tallygate.errors import ConfigError
from tallygate.kafka.dead_letters import list_dead_letters

Fill = Callable[..., str]
START = 1_700_000_000_000


@pytest.fixture
def counted(small_stack: Stack) -> Callable[[], Counter[str]]:
    with psycopg.connect(small_stack.dsn) as database:
        database.execute("DROP TABLE IF EXISTS operations")
        database.execute("CREATE TABLE operations (id text)")

    def count() -> Counter[str]:
        with psycopg.connect(small_stack.dsn) as database:
            rows = database.execute("SELECT id FROM operations").fetchall()
        return Counter(row[0] for row in rows)

    return count


def _send(connection: Connection, topic: str, *operations: tuple[str, int]) -> None:
    """Operations with their time in seconds."""
    with Producer(connection) as producer:
        for operation, second in operations:
            producer.send(topic, operation, partition=0, timestamp=START + second * 1000)


def _run(stack: Stack, topic: str, dedup: Dedup | None, batch_size: int = 500) -> int:
    def insert(record: Record, database: psycopg.Connection) -> None:
        database.execute("INSERT INTO operations VALUES (%s)", (record.text,))

    return consume(
        topic,
        insert,
        group=f"dedup-{topic}",
        delivery="exactly-once",
        dsn=stack.dsn,
        connection=stack.cluster.connection,
        dedup=dedup,
        batch_size=batch_size,
        until="available",
    ).duplicates


@pytest.mark.parametrize("batch_size", [1, 3, 500])
def test_an_operation_counts_once_within_and_across_batches_and_restarts(
    small_stack: Stack,
    connection: Connection,
    fill: Fill,
    counted: Callable[[], Counter[str]],
    batch_size: int,
) -> None:
    topic, dedup = fill(0, partitions=1), Dedup(lambda record: record.text, ids=1000)
    _send(connection, topic, *((op, 1) for op in ["a", "b", "a", "c", "b", "a"]))
    assert _run(small_stack, topic, dedup, batch_size) == 3
    _send(connection, topic, ("a", 2), ("d", 2))
    assert _run(small_stack, topic, dedup, batch_size) == 1, "remembered over a restart"
    assert counted() == Counter("abcd")


def test_without_dedup_the_same_operations_count_twice(
    small_stack: Stack,
    connection: Connection,
    fill: Fill,
    counted: Callable[[], Counter[str]],
) -> None:
    """The twin: exactly-once delivery alone cannot know that two records are one operation."""
    topic = fill(0, partitions=1)
    _send(connection, topic, ("a", 1), ("a", 1))
    _run(small_stack, topic, None)
    assert counted() == Counter("aa")


def test_a_window_of_ids_forgets_what_is_older(
    small_stack: Stack,
    connection: Connection,
    fill: Fill,
    counted: Callable[[], Counter[str]],
) -> None:
    topic, dedup = fill(0, partitions=1), Dedup(lambda record: record.text, ids=3)
    _send(connection, topic, *((op, 1) for op in "abcc"))
    _run(small_stack, topic, dedup, 1)
    _send(connection, topic, *((op, 1) for op in "def" + "d" + "a"))
    _run(small_stack, topic, dedup, 1)
    assert counted() == Counter({"a": 2, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1})
    with psycopg.connect(small_stack.dsn) as database:
        kept = database.execute(
            "SELECT count(*) FROM tallygate.operation_ids WHERE scope = %s", (f"dedup-{topic}",)
        ).fetchone()
    assert kept is not None
    assert kept[0] <= 4, "memory is bounded"


def test_a_window_of_time_goes_by_the_records_own_clock(
    small_stack: Stack,
    connection: Connection,
    fill: Fill,
    counted: Callable[[], Counter[str]],
) -> None:
    topic, dedup = fill(0, partitions=1), Dedup(lambda record: record.text, seconds=60)
    _send(connection, topic, ("a", 0), ("a", 59), ("b", 30))
    _run(small_stack, topic, dedup)
    _send(connection, topic, ("b", 80), ("a", 200))
    _run(small_stack, topic, dedup, 1)
    assert counted() == Counter({"a": 2, "b": 1})


def test_an_id_that_cannot_be_kept_is_its_own_records_fault(
    small_stack: Stack,
    connection: Connection,
    fill: Fill,
    counted: Callable[[], Counter[str]],
) -> None:
    """PostgreSQL has no text with a NUL in it, and does not say which of many ids has one."""
    topic, dedup = fill(0, partitions=1), Dedup(lambda record: record.text, ids=1000)
    _send(connection, topic, *((op, 1) for op in ["a", "b", "c\0", "d", "a"]))
    assert _run(small_stack, topic, dedup) == 1
    assert counted() == Counter("abd")
    (letter,) = list_dead_letters(f"dedup-{topic}.dead-letters", connection)
    assert letter.coordinates == f"{topic}/0@2"


def test_a_dedup_needs_one_window() -> None:
    for wrong in ({}, {"ids": 1, "seconds": 1.0}, {"ids": 0}):
        with pytest.raises(ConfigError, match="window"):
            Dedup(lambda record: record.text, **wrong)


def test_a_time_that_lies_ahead_or_is_no_date_is_now() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    ms = int(now.timestamp() * 1000)
    times = [0, ms - 1, ms + 1, 2**63 - 1, -(2**63), 253_402_300_800_000]
    records = [Record("t", 0, 0, each, None, b"x") for each in times]
    before = [datetime(1970, 1, 1, tzinfo=UTC), now - timedelta(milliseconds=1)]
    assert _times(records, now) == [*before, *[now] * 4]


def test_a_record_from_years_ahead_makes_it_forget_nothing(
    small_stack: Stack,
    connection: Connection,
    fill: Fill,
    counted: Callable[[], Counter[str]],
) -> None:
    topic, dedup = fill(0, partitions=1), Dedup(lambda record: record.text, seconds=3600)
    Topics(connection).alter(topic, configs={"message.timestamp.after.max.ms": str(2**63 - 1)})
    now = int(time.time() * 1000)
    with Producer(connection) as producer:
        for operation, ms in (("a", now), ("b", now + 10**12), ("c", 2**63 - 1), ("a", now)):
            producer.send(topic, operation, partition=0, timestamp=ms)
    assert _run(small_stack, topic, dedup, batch_size=1) == 1
    assert counted() == Counter("abc")
