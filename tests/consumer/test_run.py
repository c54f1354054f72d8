"""Deliveries against real brokers and PostgreSQL, with consumers killed where it hurts."""

import random
import time
from collections import Counter
from collections.abc import Callable

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from fixtures.consuming import StartConsumer, create_table, numbers_in
from fixtures.retention import retire
from tallygate import Connection, Output, Producer, Record, Retry, Stack, Topics, consume
from tallygate.consumer.run import DeliveryName
from tallygate.errors import ConfigError, HandlerError, LostRangeError
from tallygate.kafka import clients
from tallygate.kafka.read import records_in
from tallygate.settings import Settings
from tallygate.waiting import wait_until

Fill = Callable[..., str]


def _values(connection: Connection, topic: str) -> list[int]:
    return [int(record.text) for record in records_in(topic, connection)]


@pytest.mark.parametrize("delivery", ["at-most-once", "at-least-once", "auto-commit"])
def test_everything_is_handled_when_nothing_goes_wrong(
    connection: Connection, fill: Fill, delivery: DeliveryName
) -> None:
    topic, seen = fill(1000), list[int]()
    group = f"calm-{delivery}"

    def take() -> None:
        consume(
            topic,
            lambda record: seen.append(int(record.text)),
            group=group,
            delivery=delivery,
            connection=connection,
            until="available",
        )

    take()
    assert sorted(seen) == list(range(1000))
    take()
    assert len(seen) == 1000, "the group's offsets were committed"


def test_records_carry_their_coordinates_in_order(connection: Connection, fill: Fill) -> None:
    topic, seen = fill(30), list[Record]()
    consume(topic, seen.append, group="order", connection=connection, until="available")
    assert {record.topic for record in seen} == {topic}
    for partition in range(3):
        offsets = [record.offset for record in seen if record.partition == partition]
        assert offsets == list(range(10))


DYING = """
handled = 0
def handler(record):
    global handled
    handled += 1
    print(record.text, flush=True)
    if handled == 150:
        os.kill(os.getpid(), 9)
consume("{topic}", handler, group="dying-{topic}", delivery="{delivery}", connection=connection,
        batch_size=100, until="available", properties={{"session_timeout_ms": 6000}})
"""


def _die_then_finish(
    start_consumer: StartConsumer, connection: Connection, topic: str, delivery: DeliveryName
) -> Counter[int]:
    """Handle 150 records in batches of up to 100, die, and let a successor do the rest."""
    dying = start_consumer(DYING.format(topic=topic, delivery=delivery))
    said, _ = dying.communicate(timeout=60)
    assert dying.returncode == -9
    seen = Counter(int(line) for line in said.splitlines())
    consume(
        topic,
        lambda record: seen.update([int(record.text)]),
        group=f"dying-{topic}",
        delivery=delivery,
        connection=connection,
        until="available",
        properties={"session_timeout_ms": 6000},
    )
    return seen


def test_at_most_once_loses_and_never_repeats(
    connection: Connection, fill: Fill, start_consumer: StartConsumer
) -> None:
    seen = _die_then_finish(start_consumer, connection, fill(1000), "at-most-once")
    assert set(seen.values()) == {1}
    assert 900 <= len(seen) < 1000


def test_at_least_once_repeats_and_never_loses(
    connection: Connection, fill: Fill, start_consumer: StartConsumer
) -> None:
    seen = _die_then_finish(start_consumer, connection, fill(1000), "at-least-once")
    assert len(seen) == 1000
    assert max(seen.values()) == 2


POSTGRES = """
def handler(record, database):
    database.execute("INSERT INTO {table} VALUES (%s, %s, %s, %s)",
                     (int(record.text), record.topic, record.partition, record.offset))
    time.sleep(0.0005)
print("up", flush=True)
consume("{topic}", handler, group="{table}", delivery="exactly-once", dsn=dsn,
        connection=connection, batch_size=200, until="{until}",
        properties={{"session_timeout_ms": 6000}})
print("done", flush=True)
"""


def test_exactly_once_into_postgres_survives_kills_of_both(
    small_stack: Stack, fill: Fill, start_consumer: StartConsumer
) -> None:
    count, chance = 6000, random.Random(5)
    topic = fill(count)
    create_table(small_stack, "once")
    program = POSTGRES.format(topic=topic, table="once", until="available")
    for round_ in range(4):
        consumer = start_consumer(program)
        assert consumer.stdout is not None
        assert consumer.stdout.readline() == "up\n"
        time.sleep(chance.uniform(0.5, 2.0))
        if round_ % 2:
            small_stack.postgres.process.kill()
            time.sleep(0.5)
            small_stack.postgres.start()
            time.sleep(0.5)
        consumer.kill()
        consumer.wait()
    finisher = start_consumer(program)
    said, _ = finisher.communicate(timeout=120)
    assert said == "up\ndone\n"
    assert Counter(numbers_in(small_stack, "once")) == Counter(range(count))


def test_exactly_once_into_kafka_survives_kills(
    small_stack: Stack, connection: Connection, fill: Fill, start_consumer: StartConsumer
) -> None:
    topic, target = fill(4000), fill(0)
    program = f"""
        def handler(record):
            time.sleep(0.0003)
            return Output("{target}", record.value, partition=record.partition)
        print("up", flush=True)
        consume("{topic}", handler, group="copy", delivery="exactly-once", connection=connection,
                batch_size=200, until="available", instance="one",
                properties={{"session_timeout_ms": 6000}})
        """
    chance = random.Random(3)
    for _ in range(3):
        consumer = start_consumer(program)
        assert consumer.stdout is not None
        assert consumer.stdout.readline() == "up\n"
        time.sleep(chance.uniform(0.6, 1.5))
        consumer.kill()
        consumer.wait()
    start_consumer(program).communicate(timeout=120)
    assert Counter(_values(connection, target)) == Counter(range(4000))


def test_a_rebalance_hands_over_without_loss_or_repeat(
    small_stack: Stack, connection: Connection, fill: Fill, start_consumer: StartConsumer
) -> None:
    """Consumers come and go, cleanly and not; the group shares the work exactly once."""
    topic = fill(6000, partitions=4)
    create_table(small_stack, "shared")
    program = POSTGRES.format(topic=topic, table="shared", until="stopped")
    first, second = start_consumer(program), start_consumer(program)
    wait_until(lambda: len(numbers_in(small_stack, "shared")) > 500, 30, "never began")
    third = start_consumer(program)
    wait_until(lambda: len(numbers_in(small_stack, "shared")) > 2500, 60, "stuck")
    first.kill()
    second.kill()
    wait_until(lambda: len(numbers_in(small_stack, "shared")) >= 6000, 60, "did not finish")
    third.kill()
    assert Counter(numbers_in(small_stack, "shared")) == Counter(range(6000))


def test_a_handler_that_fails_now_and_then_is_tried_again_in_order(
    connection: Connection, fill: Fill
) -> None:
    topic, seen, failures = fill(60, partitions=1), list[int](), Counter[int]()

    def moody(record: Record) -> None:
        number = int(record.text)
        if number % 20 == 7 and failures[number] < 2:
            failures[number] += 1
            raise ConnectionError("downstream is away")
        seen.append(number)

    summary = consume(
        topic,
        moody,
        group="moody",
        connection=connection,
        until="available",
        retry=Retry(tries=5, first=0.01),
    )
    assert seen == list(range(60)), "nothing overtook the failing ones"
    assert (summary.retries, summary.diverted) == (6, 0)


def test_without_dead_letters_a_record_that_fails_for_good_stops_the_consumer(
    connection: Connection, fill: Fill
) -> None:
    topic = fill(10, partitions=1)

    def never(record: Record) -> None:
        if record.offset == 4:
            raise ValueError("cannot")

    with pytest.raises(HandlerError, match=f"{topic}/0@4 failed 2 times: ValueError: cannot"):
        consume(
            topic,
            never,
            group="strict",
            connection=connection,
            until="available",
            retry=Retry(tries=2, first=0.01, dead_letters=False),
        )


def test_records_lost_to_retention_are_an_error_with_their_count(
    connection: Connection, fill: Fill
) -> None:
    topic = fill(50, partitions=1)
    admin = clients.admin(connection)
    stand = ConsumerGroupTopicPartitions("late", [TopicPartition(topic, 0, 10)])
    admin.alter_consumer_group_offsets([stand])["late"].result()
    retire(connection, topic, 0, 25)
    with pytest.raises(LostRangeError, match=f"15 records of {topic}/0 that group 'late'"):
        consume(topic, print, group="late", connection=connection, until="available")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"delivery": "twice"}, "'twice' is not a delivery; choose one of at-most-once"),
        ({"dsn": "x"}, "a dsn goes with delivery exactly-once"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        consume("t", print, group="g", connection=Connection.to("x:1"), **options)  # type: ignore[arg-type]


def test_what_a_handler_returns_must_be_records(
    connection: Connection, fill: Fill, settings: Settings
) -> None:
    topic = fill(1, partitions=1)
    with pytest.raises(HandlerError, match="returns records to write"):
        consume(
            topic,
            lambda record: "text",
            group="confused",
            delivery="exactly-once",
            connection=connection,
            until="available",
            retry=Retry(tries=1, dead_letters=False),
        )


def test_latest_means_the_end_at_the_first_start_not_at_every_start(
    connection: Connection, fill: Fill
) -> None:
    topic = fill(10, partitions=1)

    def run(handler: Callable[[Record], object]) -> None:
        consume(
            topic,
            handler,
            group="latecomer",
            connection=connection,
            start="latest",
            until="available",
        )

    run(lambda record: pytest.fail("nothing is new yet"))
    with Producer(connection) as producer:
        producer.send(topic, "10")
    seen: list[str] = []
    run(lambda record: seen.append(record.text))
    assert seen == ["10"]


def test_an_output_that_kafka_cannot_take_is_its_records_fault(
    connection: Connection, fill: Fill
) -> None:
    """Too large for the topic, for no topic, or for no partition; the records beside it are not to
    blame."""
    topic, target = fill(20, partitions=1), fill(0, partitions=1)

    def swell(record: Record) -> Output:
        if record.offset == 5:
            return Output(target, b"x" * 3_000_000)
        if record.offset == 17:
            return Output("no such topic", record.value)
        return Output(target, record.value, partition=9 if record.offset == 12 else None)

    summary = consume(
        topic,
        swell,
        group="swollen",
        delivery="exactly-once",
        connection=connection,
        until="available",
        retry=Retry(tries=2, first=0.01),
    )
    assert (summary.handled, summary.diverted) == (17, 3)
    assert sorted(_values(connection, target)) == [n for n in range(20) if n not in (5, 12, 17)]


def test_records_that_are_too_large_only_together_are_nobodys_fault(
    connection: Connection, fill: Fill
) -> None:
    """Those of several records, or of one that makes several."""
    topic, target = fill(20, partitions=1), fill(0, partitions=1)
    Topics(connection).alter(target, configs={"max.message.bytes": "1000"})
    padding = (("padding", b"x" * 400),)
    summary = consume(
        topic,
        lambda record: [Output(target, record.value, headers=padding)] * 3,
        group="together",
        delivery="exactly-once",
        connection=connection,
        until="available",
        retry=Retry(tries=1),
    )
    assert (summary.handled, summary.diverted) == (20, 0)
    assert Counter(_values(connection, target)) == Counter(3 * list(range(20)))
