"""What acknowledgement means, shown by taking brokers away. docs/clients.md tells the same."""

import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tallygate import Connection, Producer, Stack, Topics
from tallygate.errors import DeliveryError, UnreachableError
from tallygate.kafka.read import records_in
from tallygate.settings import Settings
from tallygate.waiting import wait_until


@pytest.fixture(scope="module")
def trio(settings: Settings) -> Iterator[Stack]:
    """Three brokers with dedicated controllers, so that brokers can be paused at will."""
    stack = Stack(
        "trio",
        brokers=3,
        controllers=1,
        # Long enough that nobody is thrown out of the ISR while a test has it paused.
        config={"broker.session.timeout.ms": "9000", "replica.lag.time.max.ms": "60000"},
        purge=True,
        settings=settings,
    )
    with stack:
        yield stack


@pytest.fixture
def connection(stack: Stack, trio: Stack) -> Connection:
    return trio.cluster.connection


def _values(connection: Connection, topic: str) -> list[str]:
    return [record.text for record in records_in(topic, connection)]


def _leader(topics: Topics, name: str) -> int | None:
    try:
        return topics.describe(name, sizes=False).partitions[0].leader
    except UnreachableError:
        return None  # the broker that is asked is the one that died, and nobody has noticed yet


class Followers:
    """The followers of a partition, paused while the block lasts, and the leader killed in it."""

    def __init__(self, stack: Stack, leader: int) -> None:
        self._stack, self._leader = stack, leader
        self._others = [node for node in stack.cluster.nodes if node.spec.id != leader]
        self._followers = [node for node in self._others if node.spec.broker]

    def __enter__(self) -> "Followers":
        for node in self._followers:
            node.process.send(signal.SIGSTOP)
        return self

    def kill_leader(self) -> None:
        self._stack.cluster.node(self._leader).process.kill()

    def __exit__(self, *_: object) -> None:
        for node in self._followers:
            node.process.send(signal.SIGCONT)


def _restore(stack: Stack, number: int) -> None:
    stack.cluster.start_node(number)


def test_acks_1_loses_what_was_acknowledged_when_the_leader_dies(
    trio: Stack, connection: Connection, settings: Settings
) -> None:
    """The write anomaly, and the reason for the high watermark: what the followers do not have yet
    was acknowledged, but no consumer ever saw it, and then it is gone."""
    topics = Topics(connection, settings)
    topics.create("careless", partitions=1, replication=3, configs={"min.insync.replicas": "1"})
    leader = _leader(topics, "careless")
    assert leader is not None
    producer = Producer(connection, acks="1")
    producer.send("careless", "replicated")
    producer.flush()
    wait_until(lambda: _values(connection, "careless") == ["replicated"], 10, "not replicated")
    with Followers(trio, leader) as followers:
        time.sleep(2)  # a fetch that is under way still brings what comes now
        future = producer.send("careless", "acknowledged")
        producer.flush(5)
        assert future.result(0).offset == 1, "acknowledged by the leader alone"
        followers.kill_leader()
    wait_until(lambda: _leader(topics, "careless") not in (None, leader), 40, "no new leader")
    assert _values(connection, "careless") == ["replicated"], "acknowledged, and lost"
    _restore(trio, leader)
    assert _values(connection, "careless") == ["replicated"], "and it does not come back"


def test_acks_all_acknowledges_nothing_that_can_be_lost(
    trio: Stack, connection: Connection, settings: Settings
) -> None:
    topics = Topics(connection, settings)
    topics.create("careful", partitions=1, replication=3, configs={"min.insync.replicas": "2"})
    leader = _leader(topics, "careful")
    assert leader is not None
    producer = Producer(connection, acks="all")
    producer.send("careful", "first")
    producer.flush()
    with Followers(trio, leader) as followers:
        time.sleep(1)
        future = producer.send("careful", "second")
        with pytest.raises(DeliveryError, match="not acknowledged"):
            producer.flush(0.5)
        assert not future.done(), "not acknowledged while it could be lost"
        assert _unseen(trio, leader), "and not seen by any consumer: it is above the watermark"
        followers.kill_leader()
    producer.flush(60)
    assert future.result(0)
    assert _values(connection, "careful") == ["first", "second"]
    _restore(trio, leader)


def _unseen(stack: Stack, leader: int) -> bool:
    """Read from the leader, the only one that answers, without waiting for committed offsets."""
    from confluent_kafka import TopicPartition

    from tallygate.kafka import clients

    reader = clients.consumer(
        Connection.to(f"127.0.0.1:{stack.cluster.node(leader).spec.port}"),
        isolation_level="read_uncommitted",
    )
    reader.assign([TopicPartition("careful", 0, 0)])
    found: list[Any] = []

    def read(seconds: float) -> bool:
        found.extend(m.value() for m in reader.consume(10, seconds) if m.error() is None)
        return bool(found)

    wait_until(lambda: read(0.2), 10, "what is committed cannot be read")
    read(0.5)
    reader.close()
    return found == [b"first"]


def test_below_min_isr_a_producer_backs_off_and_goes_on_when_the_replica_returns(
    trio: Stack, connection: Connection, settings: Settings
) -> None:
    topics = Topics(connection, settings)
    topics.create("strict", partitions=1, replication=3, configs={"min.insync.replicas": "3"})
    leader = _leader(topics, "strict")
    victim = next(n.id for n in trio.spec.cluster.brokers if n.id != leader)
    trio.cluster.node(victim).process.kill()
    assert trio.cluster.wait_unregistered(victim)
    wait_until(
        lambda: "below min ISR" in topics.describe("strict", sizes=False).partitions[0].flags,
        10,
        "nobody says that it is below its minimum",
    )
    producer = Producer(connection, acks="all")
    future = producer.send("strict", "patient")
    with pytest.raises(DeliveryError, match="not acknowledged"):
        producer.flush(2)
    _restore(trio, victim)
    producer.flush(30)
    assert future.result(0).offset == 0
    assert _values(connection, "strict") == ["patient"]
