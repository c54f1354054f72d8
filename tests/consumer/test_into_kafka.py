"""Transactions of Kafka's while the broker does not answer."""

import signal
import threading
from collections import Counter
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaException

from tallygate import Connection, Output, Record, Stack, consume
from tallygate.kafka import transactions
from tallygate.kafka.read import records_in
from tallygate.kafka.transactions import TransactionalProducer

Fill = Callable[..., str]


def _silence(stack: Stack, seconds: float) -> threading.Timer:
    """The only broker hears nothing and says nothing for so long."""
    (broker,) = stack.cluster.nodes
    broker.process.send(signal.SIGSTOP)
    waking = threading.Timer(seconds, broker.process.send, [signal.SIGCONT])
    waking.start()
    return waking


@pytest.mark.system  # a broker that is silent for so long may be taken for dead meanwhile
def test_a_transaction_that_takes_long_is_not_begun_again(
    small_stack: Stack, connection: Connection, fill: Fill
) -> None:
    topic, target, calls = fill(20, partitions=1), fill(0, partitions=1), Counter[int]()

    def copy(record: Record) -> Output:
        calls[record.offset] += 1
        if record.offset == 19:
            _silence(small_stack, 15)
        return Output(target, record.value)

    summary = consume(
        topic,
        copy,
        group="patient",
        delivery="exactly-once",
        connection=connection,
        until="available",
    )
    assert summary.outages == 0
    assert calls == Counter(range(20))
    assert sorted(int(record.text) for record in records_in(target, connection)) == [*range(20)]


@pytest.mark.system
def test_a_commit_that_is_not_answered_is_given_up(
    small_stack: Stack, connection: Connection, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for it can be stopped, and keeps its place in the group. What became of it is
    for the next producer of the same id to settle."""
    target = fill(0, partitions=1)
    producer = TransactionalProducer(connection, "unanswered")
    producer.begin()
    producer.raw.produce(target, "0")
    assert producer.raw.flush(30) == 0
    with monkeypatch.context() as patch:
        patch.setattr(transactions, "ANSWER_TIMEOUT", 1.0)
        waking = _silence(small_stack, 6)
        with pytest.raises(KafkaException):
            producer.commit()
    assert waking.is_alive(), "it waited for as long as the broker was silent"
    waking.join()
    assert producer.is_spent
    producer.open()
