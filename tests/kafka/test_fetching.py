"""Exact ranges of offsets: what Spark would read, no more and no less, or an error."""

import os
import threading
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import Message
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from fixtures.locked import credentials
from fixtures.retention import retire
from tallygate import Stack, Topics
from tallygate.core.offsets import Range, count
from tallygate.errors import LostRangeError, TallygateError, TopicError, UnreachableError
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.kafka.fetch import (
    BLOCK,
    BLOCK_BYTES,
    LENGTHS,
    RECORD,
    RECORDS,
    _block,
    _consumer,
    _length,
    _Reading,
    close_idle,
    fetch,
)
from tallygate.kafka.read import Reading, read
from tallygate.kafka.topic_ids import ids_now
from tallygate.settings import Settings
from tallygate.targets.batch_input import shared_out
from tallygate.units import FIRST_RECORD_MS, LAST_MS
from tallygate.waiting import wait_until


@pytest.fixture
def connection(stack: Stack) -> Connection:
    return stack.cluster.connection


def _send(connection: Connection, topic: str, count: int, partition: int = 0) -> None:
    producer = clients.producer(connection)
    for number in range(count):
        key = None if number % 3 else f"key {number}".encode()
        value = None if number % 7 == 6 else f"value {number}".encode()
        producer.produce(topic, value, key, partition=partition, timestamp=1_700_000_000_000)
        producer.poll(0)
    assert producer.flush(10) == 0


def _transaction(connection: Connection, topic: str, count: int, *, commit: bool) -> None:
    producer = clients.producer(connection, transactional_id=f"{topic}-writer")
    producer.init_transactions(10)
    producer.begin_transaction()
    for number in range(count):
        producer.produce(topic, f"{'kept' if commit else 'dropped'} {number}", partition=0)
    producer.flush(10)
    if commit:
        producer.commit_transaction(10)
    else:
        producer.abort_transaction(10)


def _table(ranges: list[Range], connection: Connection, patience: float = 10) -> pa.Table:
    return pa.Table.from_batches(fetch(ranges, connection, patience), RECORDS)


def _offsets(ranges: list[Range], connection: Connection) -> list[int]:
    return list(_table(ranges, connection).column("offset").to_pylist())


def test_the_records_are_those_of_spark(
    connection: Connection, new_topic: Callable[..., str], spark: SparkSession
) -> None:
    first, second = new_topic(partitions=2), new_topic(partitions=1)
    for topic, partition in ((first, 0), (first, 1), (second, 0)):
        _send(connection, topic, 500, partition)
    ranges = [Range(first, 0, 17, 400), Range(first, 1, 0, 500), Range(second, 0, 499, 500)]
    source = spark.read.format("kafka").options(**connection.spark())
    records = source.option("subscribe", f"{first},{second}").load().select(*RECORDS.names)
    wanted = records.filter(
        f"topic = '{first}' AND partition = 1 "
        f"OR topic = '{first}' AND partition = 0 AND offset BETWEEN 17 AND 399 "
        f"OR topic = '{second}' AND offset = 499"
    )
    order = [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
    expected = wanted.toArrow().cast(RECORDS).sort_by(order)
    assert _table(ranges, connection).sort_by(order).equals(expected)


def test_more_than_a_block_comes_in_order(
    connection: Connection, new_topic: Callable[..., str]
) -> None:
    topic, many = new_topic(partitions=2), 2 * BLOCK + 3
    for partition in (0, 1):
        _send(connection, topic, many, partition)
    found: dict[int, list[int]] = {0: [], 1: []}
    ranges = [Range(topic, n, 5, many - 5) for n in (0, 1)]
    for block in fetch(ranges, connection, apart=True):
        (partition,) = set(block.column("partition").to_pylist())
        found[partition] += block.column("offset").to_pylist()
    wanted = {number: list(range(5, many - 5)) for number in (0, 1)}
    assert found == wanted
    mixed = _table(ranges, connection)
    of = [mixed.filter(pc.field("partition") == number).column("offset") for number in (0, 1)]
    assert {number: of[number].to_pylist() for number in (0, 1)} == wanted


def test_small_ranges_of_many_partitions_come_as_one_block(
    connection: Connection, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(partitions=8)
    for partition in range(8):
        _send(connection, topic, 100, partition)
    ranges = [Range(topic, partition, 10, 90) for partition in range(8)]
    assert [block.num_rows for block in fetch(ranges, connection)] == [8 * 80]
    assert len(list(fetch(ranges, connection, apart=True))) >= 8


def test_blocks_of_large_records_hold_fewer(
    connection: Connection, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(partitions=1)
    producer = clients.producer(connection)
    many, size = 240, 500_000
    for _ in range(many):
        producer.produce(topic, bytes(size), partition=0)
        assert producer.flush(10) == 0
    blocks = list(fetch([Range(topic, 0, 0, many)], connection))
    assert sum(block.num_rows for block in blocks) == many
    # Full blocks are not split, so that one may be as large again.
    assert max(block.nbytes for block in blocks) <= 2 * BLOCK_BYTES < many * size / 2


def test_batches_that_are_larger_than_a_fetch_come_from_every_partition(
    connection: Connection, new_topic: Callable[..., str]
) -> None:
    """Kafka gives them one partition at a time."""
    topic, many = new_topic(partitions=4), 1500
    producer = clients.producer(connection, linger_ms=500)
    for number in range(4 * many):
        producer.produce(topic, os.urandom(600), partition=number % 4)
        producer.poll(0)
    assert producer.flush(30) == 0
    ranges = [Range(topic, partition, 10, many) for partition in range(4)]
    assert _length(ranges) * RECORD < 600 * many / 2, "or a fetch would hold them"
    table = _table(ranges, connection)
    assert table.num_rows == 4 * (many - 10)
    assert table.group_by("partition").aggregate([("offset", "min"), ("offset", "max")]).select(
        ["offset_min", "offset_max"]
    ).to_pylist() == 4 * [{"offset_min": 10, "offset_max": many - 1}]


def test_how_much_is_fetched_goes_by_the_usual_range() -> None:
    def fetched(*lengths: int) -> int:
        return _length([Range("t", number, 0, length) for number, length in enumerate(lengths)])

    assert [fetched(1), fetched(*LENGTHS[:2])] == [LENGTHS[0], LENGTHS[1]]
    assert fetched(LENGTHS[1]) == LENGTHS[1]
    assert fetched(LENGTHS[1] + 1) == fetched(10**9) == LENGTHS[2]


def test_who_has_chosen_how_much_is_fetched_gets_that(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, object]] = []
    monkeypatch.setattr(clients, "consumer", lambda _, **properties: given.append(properties))
    own = {"fetch.message.max.bytes": "10000000"}
    chosen = replace(connection, librdkafka_properties=own)
    for each in (connection, chosen):
        _consumer(each, LENGTHS[0])
    assert ["max_partition_fetch_bytes" in properties for properties in given] == [True, False]


def test_markers_and_aborted_records_are_passed_over(
    connection: Connection, new_topic: Callable[..., str]
) -> None:
    """0 to 9 kept, 10 a marker, 11 to 20 dropped, 21 a marker: any range over them has an end."""
    topic = new_topic(partitions=1)
    _transaction(connection, topic, 10, commit=True)
    _transaction(connection, topic, 10, commit=False)
    assert _offsets([Range(topic, 0, 0, 22)], connection) == list(range(10))
    assert _offsets([Range(topic, 0, 0, 15)], connection) == list(range(10))
    assert _offsets([Range(topic, 0, 10, 22)], connection) == []
    assert _offsets([Range(topic, 0, 12, 14)], connection) == []
    _transaction(connection, topic, 2, commit=True)
    assert _offsets([Range(topic, 0, 12, 22)], connection) == []
    assert _offsets([Range(topic, 0, 9, 23)], connection) == [9, 22]


def test_ranges_that_hold_nothing_are_not_asked_for(connection: Connection) -> None:
    assert list(fetch([Range("no such topic", 0, 5, 5)], connection)) == []


def test_offsets_that_are_gone_are_an_error(
    connection: Connection, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(partitions=1)
    _send(connection, topic, 100)
    retire(connection, topic, 0, 40)
    with pytest.raises(LostRangeError, match=rf"3 records of {topic}/0 \[37, 100\) are gone"):
        _table([Range(topic, 0, 37, 100)], connection)
    assert _offsets([Range(topic, 0, 40, 100)], connection) == list(range(40, 100))


def test_a_topic_that_took_the_place_of_another_is_not_read_to_the_end(
    connection: Connection, new_topic: Callable[..., str]
) -> None:
    """It has as many records, and only its id tells."""
    topic = new_topic(partitions=1)
    _send(connection, topic, 20)
    ids, wanted = ids_now([topic], connection), [Range(topic, 0, 5, 20)]
    assert sum(map(len, fetch(wanted, connection, ids=ids))) == 15
    Topics(connection).delete([topic])
    Topics(connection).create(topic, partitions=1)
    _send(connection, topic, 20)
    close_idle()
    blocks = fetch(wanted, connection, ids=ids)
    with pytest.raises(LostRangeError, match=f"{topic!r} was deleted and recreated while it was"):
        list(blocks)
    assert sum(map(len, fetch(wanted, connection, ids=ids_now([topic], connection)))) == 15
    assert ids_now([topic, "no such topic"], connection).keys() == {topic}


def test_offsets_that_go_while_they_are_read_are_an_error(
    connection: Connection, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(partitions=1)
    _send(connection, topic, 10 * BLOCK)
    blocks = fetch([Range(topic, 0, 0, 10 * BLOCK)], connection)
    next(blocks)
    retire(connection, topic, 0, 10 * BLOCK - 1)
    with pytest.raises(LostRangeError, match=f"are gone; the earliest there is {10 * BLOCK - 1}"):
        list(blocks)


def test_a_log_that_ends_before_what_was_planned_was_cut_off(
    connection: Connection, new_topic: Callable[..., str]
) -> None:
    """To wait until it has grown there would be to take other records for the planned ones."""
    topic = new_topic(partitions=1)
    _send(connection, topic, 10)
    with pytest.raises(LostRangeError, match=rf"{topic}/0 ends at 10, and {topic}/0 \[15, 20\)"):
        _table([Range(topic, 0, 15, 20)], connection)


def test_a_record_from_before_the_range_is_none_of_it(
    connection: Connection, new_topic: Callable[..., str]
) -> None:
    """Clients do not show any; if one did, its log would have been cut off and written anew."""
    topic = new_topic(partitions=1)
    _send(connection, topic, 10)
    (messages,) = filter(None, read(Reading([topic], exit_at_end=True), connection))
    reading = _Reading({(topic, 0): Range(topic, 0, 5, 10)}, connection, headers=False)
    with pytest.raises(LostRangeError, match=rf"{topic}/0 went back to 0, and {topic}/0 \[5, 10\)"):
        list(reading.blocks(messages))


def test_an_end_before_the_range_s_end_is_no_end(
    connection: Connection, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(partitions=1)
    _send(connection, topic, 10)
    assert _offsets([Range(topic, 0, 0, 10)], connection) == list(range(10))  # now it is connected
    with pytest.raises(UnreachableError, match=rf"nothing of {topic}/0 \[10, 20\) for 2 s"):
        _table([Range(topic, 0, 0, 20)], connection, patience=2)
    late = threading.Timer(1, _send, (connection, topic, 10))
    late.start()
    assert _offsets([Range(topic, 0, 0, 20)], connection) == list(range(20))
    late.join()


def test_records_that_were_damaged_on_disk_are_an_error(
    stack: Stack, connection: Connection, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(partitions=1, replication=1)
    _send(connection, topic, 10)
    (log,) = (
        path
        for node in stack.cluster.nodes
        for path in node.data.glob(f"{topic}-0/00000000000000000000.log")
    )
    with log.open("r+b") as file:
        written = file.read()
        file.seek(written.index(b"value 5"))
        file.write(b"VALUE")
    with pytest.raises(TallygateError, match="failed CRC32C check"):
        _table([Range(topic, 0, 0, 10)], connection)


def test_no_right_to_any_group_is_needed(locked: str, settings: Settings) -> None:
    admin = Connection.to(locked, **credentials("admin", "right"))
    guest = Connection.to(locked, **credentials("guest", "guest"))
    Topics(admin, settings).create("shelf", partitions=1)
    granted = AclBinding(
        ResourceType.TOPIC,
        "shelf",
        ResourcePatternType.LITERAL,
        "User:guest",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    client = clients.admin(admin)
    for future in client.create_acls([granted]).values():
        future.result()
    _send(admin, "shelf", 50)
    wanted = [Range("shelf", 0, 0, 50)]
    wait_until(lambda: _permitted(wanted, guest), 10, "the right is not there")
    assert _offsets(wanted, guest) == list(range(50))
    shown = read(Reading(["shelf"], exit_at_end=True), guest)
    assert sum(map(len, shown)) == 50


def _permitted(ranges: list[Range], connection: Connection) -> bool:
    try:
        return bool(_offsets(ranges, connection))
    except TopicError as error:
        assert "authorization" in str(error)
        return False


def test_one_connection_serves_many_ranges(
    connection: Connection, new_topic: Callable[..., str]
) -> None:
    close_idle()
    topic = new_topic(partitions=3)
    for partition in range(3):
        _send(connection, topic, 50, partition)
    made = clients.consumer
    consumers = 0

    def counted(*given: object, **named: object) -> object:
        nonlocal consumers
        consumers += 1
        return made(*given, **named)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clients, "consumer", counted)
        for start in range(0, 50, 10):
            assert len(_offsets([Range(topic, n, start, 50) for n in range(3)], connection)) == (
                3 * (50 - start)
            )
    assert consumers == 1


def test_what_was_read_ahead_is_forgotten(
    connection: Connection, new_topic: Callable[..., str]
) -> None:
    first, second = new_topic(partitions=1), new_topic(partitions=1)
    for topic in (first, second):
        _send(connection, topic, 1000)
    for topic in (first, second, first):
        for start, until in ((0, 10), (3, 12), (500, 501), (12, 1000), (0, 1000)):
            found = _table([Range(topic, 0, start, until)], connection)
            assert found.column("offset").to_pylist() == list(range(start, until))
            assert set(found.column("topic").to_pylist()) == {topic}


@given(st.lists(st.integers(1, 1000), max_size=80), st.integers(1, 8))
def test_every_range_is_in_one_share(sizes: list[int], shares: int) -> None:
    ranges = [Range("t", number, 0, size) for number, size in enumerate(sizes)]
    made = shared_out(ranges, shares)
    assert sorted(each for share in made for each in share) == ranges
    assert len(made) == min(shares, len(ranges))
    if len(made) > 1:
        assert max(map(count, made)) - min(map(count, made)) <= max(sizes)


@pytest.mark.parametrize(
    "odd", [FIRST_RECORD_MS - 1, LAST_MS + 1, 9_223_372_036_854_776, 2**63 - 1, -(2**63)]
)
def test_a_time_beyond_all_dates_is_null_and_its_record_is_there(odd: int) -> None:
    """Kafka takes any number: nanoseconds in the place of milliseconds, for one."""
    times = [FIRST_RECORD_MS, odd, 0, LAST_MS]
    run = [
        Message(topic="t", partition=0, offset=at, value=b"v", timestamp=(1, ms))
        for at, ms in enumerate(times)
    ]
    block = _block(("t", 0), run, [0, 1, 2, 3], RECORDS)
    assert block.column("offset").to_pylist() == [0, 1, 2, 3]
    found = block.column("timestamp").cast(pa.int64()).to_pylist()
    assert found == [FIRST_RECORD_MS * 1000, None, 0, LAST_MS * 1000]


def test_a_record_of_any_time_is_read(
    connection: Connection, new_topic: Callable[..., str], topics: Topics
) -> None:
    """Of a year that no table can hold the time is unknown, and the record is there."""
    topic, producer = new_topic(partitions=1), clients.producer(connection)
    topics.alter(topic, configs={"message.timestamp.after.max.ms": str(2**63 - 1)})
    times = (1_700_000_000_000, 9_300_000_000_000_000, 253_402_300_800_000)
    for ms in times:
        producer.produce(topic, b"v", partition=0, timestamp=ms)
    assert producer.flush(10) == 0
    found = _table([Range(topic, 0, 0, len(times))], connection).column("timestamp")
    assert [each.is_valid for each in found] == [True, False, False]
