"""`tallygate consume` as a user types it."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import OffsetSpec

from fixtures.commands import Tallygate
from fixtures.retention import retire
from tallygate import Producer, Stack
from tallygate.errors import ConfigError, LostRangeError, TopicError
from tallygate.kafka import clients
from tallygate.kafka import read as reader
from tallygate.kafka.read import list_offsets, records_in
from tallygate.targets.kafka.ledger import open_producer


@pytest.fixture
def filled(stack: Stack, new_topic: Callable[..., str]) -> str:
    """A topic of two partitions with ten records each, a second apart."""
    topic = new_topic(2)
    with Producer(stack.cluster.connection) as producer:
        for number in range(20):
            producer.send(
                topic,
                f'{{"n": {number}}}',
                key=f"k{number % 2}",
                partition=number % 2,
                headers=(("h", b"x"),),
                timestamp=1_700_000_000_000 + number * 1000,
            )
    return topic


def _numbers(tallygate: Tallygate, topic: str, stack: Stack, *options: str) -> list[int]:
    done = tallygate(
        *("consume", topic, "--exit", "-o", "json", "--decode", "json", *options),
        *("-b", stack.bootstrap_servers),
    )
    return sorted(json.loads(line)["value"]["n"] for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), range(20)),
        (("--from", "beginning"), range(20)),
        (("--from", "8"), range(16, 20)),
        (("--from", "2023-11-14T22:13:35Z"), range(15, 20)),
        (("--tail", "2"), range(16, 20)),
        (("--partition", "1"), range(1, 20, 2)),
        (("--key", "k0"), range(0, 20, 2)),
    ],
)
def test_where_reading_starts_and_what_is_left_out(
    tallygate: Tallygate, stack: Stack, filled: str, options: tuple[str, ...], expected: range
) -> None:
    assert _numbers(tallygate, filled, stack, *options) == list(expected)


def test_outputs(tallygate: Tallygate, stack: Stack, filled: str) -> None:
    servers = ("-b", stack.bootstrap_servers)
    raw = tallygate("consume", filled, "--exit", "-o", "raw", "--limit", "3", *servers).stdout
    assert len(raw.splitlines()) == 3
    row = json.loads(
        tallygate("consume", filled, "--exit", "-o", "json", "--limit", "1", *servers).stdout
    )
    assert set(row) == {"topic", "partition", "offset", "timestamp", "key", "headers", "value"}
    assert row["headers"] == {"h": "x"}
    assert "value" in tallygate("consume", filled, "--exit", *servers).stdout


def test_a_group_goes_on_where_it_stopped(tallygate: Tallygate, stack: Stack, filled: str) -> None:
    assert len(_numbers(tallygate, filled, stack, "--group", "readers")) == 20
    with Producer(stack.cluster.connection) as producer:
        producer.send(filled, '{"n": 99}')
    assert _numbers(tallygate, filled, stack, "--group", "readers") == [99]


def test_open_and_aborted_transactions_are_seen_only_when_asked(
    tallygate: Tallygate, stack: Stack, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1)
    producer = clients.producer(stack.cluster.connection, transactional_id="unseen")
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(topic, '{"n": 1}')
    producer.flush()
    producer.abort_transaction(10)
    assert _numbers(tallygate, topic, stack) == []
    assert _numbers(tallygate, topic, stack, "--isolation", "uncommitted") == [1]


def test_a_commit_that_is_not_seen_yet_is_waited_for(
    stack: Stack, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if Kafka took its time from answering a commit to showing it; without the wait what was
    committed is not there."""
    connection, topic, settled = stack.cluster.connection, new_topic(1), reader.is_settled
    producer = open_producer(connection, topic)
    producer.begin_transaction()
    producer.produce(topic, "x")
    producer.flush()
    with monkeypatch.context() as patched:
        patched.setattr(reader, "MOMENT", 0.0)
        assert records_in(topic, connection) == []

    def settled_after_a_look(*asked: Any) -> bool:
        if settled(*asked):
            return True
        producer.commit_transaction()
        return False

    monkeypatch.setattr(reader, "is_settled", settled_after_a_look)
    assert [record.text for record in records_in(topic, connection)] == ["x"]


def test_ctrl_c_ends_cleanly(stack: Stack, filled: str) -> None:
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "tallygate", "consume", filled, "--from", "beginning"),
            *("-b", stack.bootstrap_servers, "-o", "raw"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline()
        reader.send_signal(signal.SIGINT)
        _, said = reader.communicate(timeout=20)
    assert reader.returncode == 0
    assert said == ""


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--from", "soon"), ConfigError.exit_code, "not a time"),
        (("--from", "3", "--tail", "3"), ConfigError.exit_code, "exclude each other"),
        (("--group", "g", "--from", "3"), ConfigError.exit_code, "offsets of its own"),
        (("--decode", "avro"), ConfigError.exit_code, "go together"),
        (("--partition", "7"), TopicError.exit_code, "has no partition 7; it has 0 to 1"),
    ],
)
def test_refusals(
    tallygate: Tallygate,
    stack: Stack,
    filled: str,
    options: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    servers = ("-b", stack.bootstrap_servers)
    done = tallygate("consume", filled, "--exit", *options, *servers, code=code)
    assert said in done.stderr


def test_what_cannot_be_decoded_is_shown_and_what_follows_too(
    tallygate: Tallygate, stack: Stack, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1)
    with Producer(stack.cluster.connection) as producer:
        producer.send(topic, "no json")
        producer.send(topic, '{"id": 1}')
    options = ("--exit", "--decode", "json", "-o", "json", "-b", stack.bootstrap_servers)
    first, second = tallygate("consume", topic, *options).stdout.splitlines()
    assert json.loads(first)["value"] == "no json"
    assert json.loads(first)["error"]
    assert json.loads(second)["value"] == {"id": 1}


def test_records_that_are_gone_are_an_error_with_the_count(
    tallygate: Tallygate, stack: Stack, filled: str
) -> None:
    retire(stack.cluster.connection, filled, 0, 4)
    done = tallygate(
        *("consume", filled, "--exit", "--from", "1", "-b", stack.bootstrap_servers),
        code=LostRangeError.exit_code,
    )
    assert f"3 records of {filled}/0 from offset 1 are gone" in done.stderr


def test_the_ends_of_a_topic_that_was_only_just_made(
    stack: Stack, new_topic: Callable[..., str]
) -> None:
    """Every broker names the leaders by then, and not every leader knows yet that it is one."""
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    for _ in range(8):
        topic = new_topic(partitions=60)
        partitions = [(topic, number) for number in range(60)]
        assert set(list_offsets(partitions, latest, stack.cluster.connection).values()) == {0}
