"""Stores that are away, slow, or written by somebody else: nothing is lost and nothing repeated."""

import threading
import time
from collections import Counter
from collections.abc import Callable

import psycopg
import pytest

from fixtures.consuming import StartConsumer, create_table, numbers_in
from tallygate import Connection, Record, Retry, Stack, consume
from tallygate.kafka import clients
from tallygate.waiting import wait_until

Fill = Callable[..., str]


def test_two_consumers_of_one_partition_do_not_overlap(
    small_stack: Stack, connection: Connection, fill: Fill
) -> None:
    """A zombie: it holds records, loses the partition without noticing, and writes. The offset was
    moved by its successor meanwhile, so its transaction is refused and nothing is there twice."""
    topic = fill(100, partitions=1)
    create_table(small_stack, "zombie")
    overtaken = threading.Event()

    def insert(record: Record, database: psycopg.Connection) -> None:
        database.execute("INSERT INTO zombie VALUES (%s)", (int(record.text),))

    def slow(record: Record, database: psycopg.Connection) -> None:
        insert(record, database)
        if record.offset == 50 and not overtaken.is_set():
            overtaken.set()
            with psycopg.connect(small_stack.dsn) as other:  # as another consumer would have
                other.execute("INSERT INTO zombie SELECT generate_series(0, 79)")
                other.execute(
                    "UPDATE tallygate.consumer_offsets SET next_offset = 80 WHERE topic = %s",
                    (topic,),
                )

    summary = consume(
        topic,
        slow,
        group="zombie",
        delivery="exactly-once",
        dsn=small_stack.dsn,
        connection=connection,
        until="available",
    )
    assert summary.outages == 1
    assert Counter(numbers_in(small_stack, "zombie")) == Counter(range(100))


def test_a_store_that_only_reads_counts_against_no_record(
    small_stack: Stack, connection: Connection, fill: Fill
) -> None:
    """As a server that has become a standby does."""
    topic = fill(20, partitions=1)
    create_table(small_stack, "standby")
    refused = threading.Event()

    def insert(record: Record, database: psycopg.Connection) -> None:
        if record.offset == 10 and not refused.is_set():
            refused.set()
            database.execute("SET TRANSACTION READ ONLY")
        database.execute("INSERT INTO standby VALUES (%s)", (int(record.text),))

    summary = consume(
        topic,
        insert,
        group="standby",
        delivery="exactly-once",
        dsn=small_stack.dsn,
        retry=Retry(tries=1),
        connection=connection,
        until="available",
    )
    assert summary.outages == 1
    assert numbers_in(small_stack, "standby") == list(range(20))


@pytest.mark.parametrize("seconds", [15, pytest.param(60, marks=pytest.mark.system)])
def test_a_time_without_postgres_costs_no_rebalance_and_no_record(
    seconds: int, small_stack: Stack, fill: Fill, start_consumer: StartConsumer
) -> None:
    """Longer than the group waits for a member that does not poll."""
    topic = fill(2000)
    outage = f"outage_{seconds}"
    create_table(small_stack, outage)
    consumer = start_consumer(
        f"""
        stop = threading.Event()
        def handler(record, database):
            database.execute("INSERT INTO {outage} VALUES (%s)", (int(record.text),))
            time.sleep(0.002)
        def watch():
            sys.stdin.read()
            stop.set()
        threading.Thread(target=watch, daemon=True).start()
        summary = consume("{topic}", handler, group="{outage}", delivery="exactly-once", dsn=dsn,
            connection=connection, batch_size=100, stop=stop,
            properties={{"max_poll_interval_ms": 10000, "session_timeout_ms": 6000}})
        print(summary.rebalances, summary.outages > 0, flush=True)
        """
    )
    wait_until(lambda: len(numbers_in(small_stack, outage)) > 100, 30, "never began")
    small_stack.postgres.stop()
    members = set()
    for _ in range(seconds // 5):
        time.sleep(5)
        members.add(tuple(_members(small_stack.cluster.connection, outage)))
    small_stack.postgres.start()
    wait_until(lambda: len(numbers_in(small_stack, outage)) == 2000, 60, "did not go on")
    said, _ = consumer.communicate(timeout=60)
    assert said == "1 True\n", "one assignment, at the start"
    assert len(members) == 1
    assert Counter(numbers_in(small_stack, outage)) == Counter(range(2000))


def _members(connection: Connection, group: str) -> list[str]:
    admin = clients.admin(connection)  # kept: a client that is collected never answers
    described = admin.describe_consumer_groups([group])[group].result(30)
    return sorted(member.member_id for member in described.members)


def test_a_constraint_checked_at_commit_costs_only_the_row_that_breaks_it(
    small_stack: Stack, connection: Connection, fill: Fill
) -> None:
    topic = fill(20, partitions=1)
    with psycopg.connect(small_stack.dsn) as database:
        database.execute("CREATE TABLE deferred (n int, UNIQUE (n) DEFERRABLE INITIALLY DEFERRED)")
        database.execute("INSERT INTO deferred VALUES (7)")

    def insert(record: Record, database: psycopg.Connection) -> None:
        database.execute("INSERT INTO deferred VALUES (%s)", (int(record.text),))

    summary = consume(
        topic,
        insert,
        group="deferred",
        delivery="exactly-once",
        dsn=small_stack.dsn,
        connection=connection,
        until="available",
        retry=Retry(tries=2, first=0.01),
    )
    assert summary.diverted == 1
    assert Counter(numbers_in(small_stack, "deferred")) == Counter(range(20))


def test_a_store_that_has_no_time_for_many_records_is_given_fewer(
    small_stack: Stack, connection: Connection, fill: Fill
) -> None:
    """To try the same ones again would never end."""
    topic, stop = fill(16, partitions=1), threading.Event()
    create_table(small_stack, "hurried")

    def insert(record: Record, database: psycopg.Connection) -> None:
        database.execute("INSERT INTO hurried VALUES (%s)", (int(record.text),))
        time.sleep(0.1)

    watch = threading.Timer(30, stop.set)
    watch.start()
    consume(
        topic,
        insert,
        group="hurried",
        delivery="exactly-once",
        dsn=f"{small_stack.dsn}?options=-c%20transaction_timeout%3D700ms",
        connection=connection,
        until="available",
        stop=stop,
    )
    watch.cancel()
    assert Counter(numbers_in(small_stack, "hurried")) == Counter(range(16))


def test_a_connection_after_an_outage_is_as_watchful_as_the_first(
    small_stack: Stack, connection: Connection, fill: Fill
) -> None:
    """Both sides notice when the other is gone without a word."""
    topic, seen = fill(2, partitions=1), list[tuple[str | None, str]]()

    def look(record: Record, database: psycopg.Connection) -> None:
        (asked,) = database.execute("SHOW tcp_keepalives_idle").fetchone() or ("",)
        seen.append((database.info.get_parameters().get("tcp_user_timeout"), asked))
        if len(seen) == 1:
            with psycopg.connect(small_stack.dsn) as other:
                other.execute("SELECT pg_terminate_backend(%s)", (database.info.backend_pid,))

    summary = consume(
        topic,
        look,
        group="watchful",
        delivery="exactly-once",
        dsn=small_stack.dsn,
        connection=connection,
        batch_size=1,
        until="available",
    )
    assert summary.outages == 1
    assert set(seen) == {("30000", "15")}
