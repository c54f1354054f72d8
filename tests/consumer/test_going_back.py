"""A store that goes back, and a Kafka that takes its word back: nothing is skipped in silence."""

import threading
from collections import Counter
from collections.abc import Callable

import psycopg
import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from tallygate import Connection, Producer, Record, Retry, Stack, consume
from tallygate.consumer.letter_limits import LetterLimits
from tallygate.consumer.loop import ConsumeSummary, Loop
from tallygate.errors import LostRangeError
from tallygate.kafka import clients
from tallygate.kafka.topics import Topics
from tallygate.waiting import wait_until

Fill = Callable[..., str]


class _Store:
    """A table beside the positions, both of which can be set back as a failover would."""

    def __init__(self, stack: Stack, table: str) -> None:
        self.stack, self.table, self.went_back = stack, table, False
        self._execute(f"CREATE TABLE {table} (n int)")

    def insert(self, record: Record, database: psycopg.Connection) -> None:
        database.execute(f"INSERT INTO {self.table} VALUES (%s)".encode(), (int(record.text),))

    def go_back(self, topic: str, to: int) -> None:
        """To a time when the records of partition 0 were done up to this one; but only once."""
        if not self.went_back:
            self.went_back = True
            self._execute(
                f"UPDATE tallygate.consumer_offsets SET next_offset = {to} "
                f"WHERE topic = '{topic}' AND partition = 0",
                f"DELETE FROM {self.table} WHERE n % 2 = 0 AND n >= {2 * to}",
            )

    def consume(self, topic: str, handler: Callable[..., None]) -> ConsumeSummary:
        """In batches, so that some are saved when the store goes back."""
        stop = threading.Event()
        threading.Timer(60, stop.set).start()
        return consume(
            topic,
            handler,
            group=self.table,
            delivery="exactly-once",
            dsn=self.stack.dsn,
            connection=self.stack.cluster.connection,
            batch_size=40,
            until="available",
            stop=stop,
            retry=Retry(tries=2, first=0.01),
        )

    def rows(self) -> Counter[int]:
        with psycopg.connect(self.stack.dsn) as database:
            found = database.execute(f"SELECT n FROM {self.table}".encode()).fetchall()
        return Counter(row[0] for row in found)

    def _execute(self, *statements: str) -> None:
        with psycopg.connect(self.stack.dsn) as database:
            for statement in statements:
                database.execute(statement.encode())


@pytest.mark.parametrize("at", [150, 199])
def test_a_store_that_goes_back_is_followed_without_a_gap(
    small_stack: Stack, fill: Fill, at: int
) -> None:
    """In the middle of the records, and at their end, where all seemed to be read."""
    topic, store = fill(400, partitions=2), _Store(small_stack, f"standby_{at}")

    def handler(record: Record, database: psycopg.Connection) -> None:
        store.insert(record, database)
        if (record.partition, record.offset) == (0, at):
            store.go_back(topic, 100)

    store.consume(topic, handler)
    assert store.went_back
    assert store.rows() == Counter(range(400))


def test_a_store_that_goes_back_while_a_record_is_set_aside_is_followed_too(
    small_stack: Stack, fill: Fill
) -> None:
    """It goes back in the last try, when the records before are saved."""
    topic, store = fill(400, partitions=2), _Store(small_stack, "standby_aside")
    tries = 0

    def handler(record: Record, database: psycopg.Connection) -> None:
        nonlocal tries
        if (record.partition, record.offset) == (0, 150):
            tries += 1
            if tries == 2:
                store.go_back(topic, 100)
            raise ValueError("for good")
        store.insert(record, database)

    summary = store.consume(topic, handler)
    assert summary.diverted == 1
    assert store.rows() == Counter(n for n in range(400) if n != 300)


def test_a_position_that_is_gone_is_an_error(small_stack: Stack, fill: Fill) -> None:
    """A store from before the group began has none to go back to."""
    topic, store = fill(100, partitions=1), _Store(small_stack, "forgetful")

    def handler(record: Record, database: psycopg.Connection) -> None:
        if record.offset == 60:
            with psycopg.connect(small_stack.dsn) as other:
                other.execute("DELETE FROM tallygate.consumer_offsets WHERE topic = %s", (topic,))

    with pytest.raises(LostRangeError, match=f"no position of group 'forgetful' in {topic}/0 any"):
        store.consume(topic, handler)


def test_an_offset_that_is_there_after_all_is_read_on_from(
    connection: Connection, fill: Fill
) -> None:
    """As right after a failover, when a leader does not show yet all that it has. The refusal is
    waited for here, and the records come before it is looked at."""
    topic = fill(10, partitions=1)
    loop = Loop(
        [topic],
        connection,
        group="early",
        start="earliest",
        until="stopped",
        stop=threading.Event(),
        batch_size=5,
        retry=Retry(),
        limits=LetterLimits(Topics(connection)),
    )
    loop._consumer = clients.consumer(
        connection,
        group_id="early",
        partition_assignment_strategy="cooperative-sticky",
        auto_offset_reset="error",
    )

    def assigned(consumer: Consumer, _: list[TopicPartition]) -> None:
        consumer.incremental_assign([TopicPartition(topic, 0, 15)])
        loop._owned = {(topic, 0)}

    def next_message() -> Message | None:
        return loop._consumer.poll(0.1)

    loop._consumer.subscribe([topic], on_assign=assigned)
    refusal = wait_until(next_message, 30, "no refusal")
    assert refusal is not None
    assert refusal.error() is not None
    with Producer(connection) as producer:
        for number in range(10, 20):
            producer.send(topic, str(number), partition=0)
    assert not loop._is_record(refusal)
    read_on = wait_until(next_message, 30, "nothing was fetched any more")
    loop._consumer.close()
    assert read_on is not None
    assert (read_on.error(), read_on.offset()) == (None, 15)
