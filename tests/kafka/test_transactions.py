"""One producer after the other: a request that came late ends no transaction but its own."""

import json
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tallygate import Connection, Output, Record, Stack
from tallygate.consumer.dead_letters import _put_back, dead_letter_of
from tallygate.consumer.into_kafka import ExactlyOnceKafka
from tallygate.core.letters import Letter
from tallygate.kafka import clients
from tallygate.kafka.load import Load, LoadSummary, _Transactional
from tallygate.kafka.producer import producer_properties
from tallygate.kafka.read import records_in
from tallygate.kafka.record_files import FileFormat
from tallygate.kafka.transactions import TransactionalProducer, _Log

Fill = Callable[..., str]
SILENT = 2.5


@pytest.fixture
def hasty(small_stack: Stack) -> Connection:
    """One whose clients send a request again after a second without an answer."""
    servers = small_stack.cluster.connection.bootstrap_servers
    return Connection({"bootstrap.servers": servers}, {}, {"socket.timeout.ms": "1000"})


@contextmanager
def _silence(stack: Stack) -> Iterator[None]:
    """The only broker hears nothing and says nothing for a moment. What is sent meanwhile lies in
    its sockets."""
    (broker,) = stack.cluster.nodes
    broker.process.send(signal.SIGSTOP)
    waking = threading.Timer(SILENT, broker.process.send, [signal.SIGCONT])
    waking.start()
    yield
    waking.join()


def _transact(producer: TransactionalProducer, topic: str, text: str) -> None:
    producer.begin()
    producer.raw.produce(topic, text)
    producer.raw.flush()


def test_a_producer_whose_requests_were_answered_is_kept(hasty: Connection, fill: Fill) -> None:
    topic = fill(0, partitions=1)
    producer = TransactionalProducer(hasty, "answered")
    first = producer.raw
    for number in range(3):
        assert not producer.is_spent
        _transact(producer, topic, str(number))
        producer.commit()
    assert not producer.is_spent
    assert producer.raw is first


def test_a_producer_whose_request_timed_out_is_spent_although_all_was_committed(
    small_stack: Stack, hasty: Connection, fill: Fill
) -> None:
    """librdkafka tries again by itself, and the call of the commit says nothing of it."""
    topic = fill(0, partitions=1)
    producer = TransactionalProducer(hasty, "timed-out")
    _transact(producer, topic, "0")
    with _silence(small_stack):
        producer.commit()
    assert producer.is_spent
    producer.open()
    assert not producer.is_spent
    assert [record.text for record in records_in(topic, hasty)] == ["0"]


def test_what_the_connection_says_of_the_log_makes_no_producer_deaf(
    small_stack: Stack, hasty: Connection, fill: Fill
) -> None:
    quiet = {**hasty.librdkafka_properties, "log_level": "0", "log.connection.close": "false"}
    connection = Connection(hasty.properties, {}, quiet)
    producer = TransactionalProducer(connection, "quiet")
    _transact(producer, fill(0, partitions=1), "0")
    with _silence(small_stack):
        producer.commit()
    assert producer.is_spent


def test_a_transaction_that_was_not_committed_is_the_last(hasty: Connection, fill: Fill) -> None:
    producer = TransactionalProducer(hasty, "aborted")
    _transact(producer, fill(0, partitions=1), "0")
    assert producer.is_spent
    producer.abort()
    assert producer.is_spent


@pytest.mark.parametrize(
    ("line", "is_unanswered"),
    [
        ("FAIL", True),
        ("REQTMOUT", True),
        ("CONFWARN", False),
    ],
)
def test_only_an_answer_that_did_not_come_counts(line: str, is_unanswered: bool) -> None:
    log = _Log()
    log.log(20, "%s [%s] %s", line, "rdkafka#producer-1", "what happened")
    assert log.is_unanswered is is_unanswered


def test_a_loader_opens_another_producer_after_a_request_that_timed_out(
    small_stack: Stack, hasty: Connection, fill: Fill, tmp_path: Path
) -> None:
    topic, path = fill(0, partitions=1), tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"id": n}) + "\n" for n in range(100)))
    what = Load(topic, str(path), FileFormat.json, transaction_size=10, rate=100)
    what.properties.update(producer_properties(transactional_id=what.group))
    silent = False

    def silence(summary: LoadSummary) -> None:
        """While a transaction is open."""
        nonlocal silent
        if summary.sent > 40 and not silent:
            silent = True
            with _silence(small_stack):
                loader.producer.flush()

    loader = _Transactional(what, hasty, silence)
    first = loader.producer
    assert loader.run().acknowledged == 100
    assert silent
    assert loader.producer is not first
    assert Counter(record.value for record in records_in(topic, hasty)) == Counter(
        path.read_bytes().splitlines()
    )


def test_a_consumer_opens_another_producer_after_a_request_that_timed_out(
    small_stack: Stack, hasty: Connection, fill: Fill
) -> None:
    topic, target = fill(3, partitions=1), fill(0, partitions=1)
    records = records_in(topic, hasty)
    consumer = clients.consumer(hasty, group_id="hasty")

    def copy(record: Record) -> Output:
        if record.offset == 1:
            stage.enter_context(_silence(small_stack))
        return Output(target, record.value)

    with ExitStack() as stage:
        delivery = ExactlyOnceKafka(consumer, hasty, copy, None)
        first = delivery._transactions.raw
        for record in records[:2]:
            assert delivery.apply([record]) == (1, None)
        assert delivery._transactions.raw is first
    assert delivery.apply(records[2:]) == (1, None)
    assert delivery._transactions.raw is not first
    consumer.close()
    assert [record.text for record in records_in(target, hasty)] == ["0", "1", "2"]


def test_a_replay_asks_again_what_was_put_back_before_it_opens_another_producer(
    small_stack: Stack, hasty: Connection, fill: Fill
) -> None:
    topic = fill(0, partitions=1)
    producer = TransactionalProducer(hasty, "replay")
    letters = [dead_letter_of(Letter(topic, 0, number, "why")) for number in range(2)]
    _transact(producer, topic, "0")
    with _silence(small_stack):
        producer.commit()
    assert _put_back(letters, set(), producer, topic) == 0
    assert len(list(records_in(topic, hasty))) == 1
