"""A dead letter says more than its record, and its topic may take less: no record ends a consumer
for good because the letter of it does not fit."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallygate import Connection, Producer, Record, Retry, Stack, consume
from tallygate.consumer.delivery import deliver
from tallygate.consumer.letter_limits import LetterLimits
from tallygate.consumer.replay import replay
from tallygate.consumer.retry import _size, dead_letter
from tallygate.core.letters import CUT
from tallygate.core.marks import origin, put_aside
from tallygate.core.record import Output
from tallygate.errors import ConfigError, TopicError
from tallygate.kafka import clients
from tallygate.kafka.dead_letters import list_dead_letters
from tallygate.kafka.producer import producer_properties
from tallygate.kafka.record_size import LEAST
from tallygate.kafka.topics import Topics
from tallygate.settings import Settings

Fill = Callable[..., str]
NAMED = st.text(max_size=9) | st.just("tallygate.x")


@pytest.fixture
def topics(connection: Connection, settings: Settings) -> Topics:
    return Topics(connection, settings)


def _failed(text: str) -> ValueError:
    try:
        raise ValueError(text)
    except ValueError as error:
        return error


@given(
    st.none() | st.binary(max_size=4000),
    st.none() | st.binary(max_size=4000),
    st.lists(st.tuples(NAMED, st.none() | st.binary(max_size=4000)), max_size=3),
    st.integers(LEAST, 20_000),
)
def test_every_letter_fits_into_its_topic(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]], most: int
) -> None:
    record = Record("t" * 249, 2, 17, 1000, key, value, put_aside(tuple(headers)))
    letter = dead_letter(record, "d", "g" * 200, _failed("\N{SNOWMAN}" * 5000), 5, most)
    assert _size(letter) <= most
    told = dict(letter.headers)
    assert origin(replace(record, headers=letter.headers)) == ("t" * 249, 2, 17)
    assert (told["tallygate.cause"] or b"").startswith(b"ValueError")
    if CUT not in told:
        assert (letter.key, letter.value) == (key, value)


def test_a_record_that_no_retry_topic_takes_whole_is_a_dead_letter_at_once() -> None:
    record = Record("orders", 2, 17, 1000, b"k", b"v" * 5000)
    retry = Retry(tries=1, tiers=("10s",))
    stop = retry.next_stop(record, "g", ValueError("no"), 0, lambda _: 4000)
    assert (stop.topic, dict(stop.headers)[CUT]) == ("g.dead-letters", b"5001")
    assert retry.next_stop(record, "g", ValueError("no"), 0).topic == "g.retry.10s"


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once", "postgres"])
def test_a_letter_that_its_topic_does_not_take_is_cut(
    small_stack: Stack, connection: Connection, fill: Fill, topics: Topics, delivery: Any
) -> None:
    """The topic is one that was made as the docs show it, and a producer compressed a record."""
    topic, group = fill(1, partitions=1), f"large-{delivery}"
    graveyard = f"{group}.dead-letters"
    topics.create(graveyard)
    with Producer(connection, compression="gzip", properties={"message_max_bytes": 9 << 20}) as out:
        out.send(topic, b"x" * 1_048_200, partition=0)
        out.send(topic, b"x" * 5_000_000, key=b"k", partition=0)
        out.send(topic, b"y", key=b"k" * 5_000_000, headers=(("own", b"h"),), partition=0)
        out.send(topic, b"last", partition=0)

    def fail(record: Record, *_: object) -> None:
        if 0 < record.offset < 4:
            raise ValueError("no")

    postgres = delivery == "postgres"
    summary = consume(
        topic,
        fail,
        group=group,
        delivery="exactly-once" if postgres else delivery,
        dsn=small_stack.dsn if postgres else None,
        connection=connection,
        until="available",
        retry=Retry(tries=1, first=0.01),
    )
    assert (summary.handled, summary.diverted) == (2, 3)
    found = list_dead_letters(graveyard, connection)
    assert [letter.coordinates for letter in found] == [f"{topic}/0@{n}" for n in (1, 2, 3)]
    assert {letter.cause for letter in found} == {"ValueError: no"}
    assert all(letter.is_cut and "test_large_letters.py" in letter.stack for letter in found)
    assert [letter.record.header(CUT) for letter in found] == [b"1048200", b"5000001", b"5000021"]
    assert (found[2].value, found[2].headers) == (b"y", (("own", b"h"),))
    with pytest.raises(TopicError, match="only the first bytes"):
        replay(graveyard, connection, into=[topic])


def test_a_topic_whose_rules_have_changed_is_asked_again(
    connection: Connection, fill: Fill, topics: Topics
) -> None:
    name = fill(0, partitions=1)
    limits, tried = LetterLimits(topics), list[int]()

    def made(largest: Callable[[str], int]) -> Output:
        tried.append(largest(name))
        return Output(name, b"v" * (largest(name) - 200))

    before = limits.largest(name)
    topics.alter(name, configs={"max.message.bytes": "5000"})

    def send(letter: Output) -> None:
        record = Record("orders", 0, 0, 0, None, None)
        deliver(clients.producer(connection, **producer_properties(any_size=True)), letter, record)

    limits.send(made, send)
    assert tried == [before, 5000]


@pytest.mark.parametrize(
    "configs", [{"cleanup.policy": "compact"}, {"max.message.bytes": str(LEAST - 1)}]
)
def test_a_topic_that_cannot_keep_all_letters_is_refused_at_the_start(
    connection: Connection, fill: Fill, topics: Topics, configs: dict[str, str]
) -> None:
    topic, group = fill(1, partitions=1), f"no-grave-{min(configs)}"
    topics.create(f"{group}.dead-letters", configs=configs)
    with pytest.raises(ConfigError, match=rf"topic alter {group}.dead-letters"):
        consume(topic, print, group=group, connection=connection, until="available")
    topics.alter(
        f"{group}.dead-letters",
        configs={"cleanup.policy": "delete", "max.message.bytes": "100000"},
    )
    consume(topic, lambda _: None, group=group, connection=connection, until="available")
