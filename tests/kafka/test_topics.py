"""Topic operations against real brokers."""

from collections.abc import Callable

import pytest

from fixtures.retention import FOREVER
from tallygate import Stack, Topics
from tallygate.errors import TopicError, UnreachableError
from tallygate.kafka import clients, groups
from tallygate.kafka.connection import Connection
from tallygate.kafka.topic_state import Partition, Topic
from tallygate.settings import Settings
from tallygate.waiting import wait_until

NewTopic = Callable[..., str]


def _partition(**changes: object) -> Partition:
    whole = {"id": 0, "leader": 1, "replicas": (1, 2, 3), "in_sync": (1, 2, 3)}
    rest = {"begin": 0, "end": 0, "size": 0, "min_in_sync": 2}
    return Partition(**{**whole, **rest, **changes})  # type: ignore[arg-type]


def test_flags_name_what_is_wrong_worst_first() -> None:
    assert _partition().flags == ()
    assert _partition(leader=2).flags == ("leader not preferred",)
    assert _partition(in_sync=(1, 2)).flags == ("under-replicated",)
    assert _partition(replicas=(1,), in_sync=(1,)).flags == (), "Kafka caps min ISR"
    assert _partition(leader=None, in_sync=(3,)).flags == (
        "no leader",
        "below min ISR",
        "under-replicated",
    )


def test_create_and_describe(stack: Stack, topics: Topics, new_topic: NewTopic) -> None:
    name = new_topic(4, replication=3, configs={"retention.ms": "60000"})
    producer = clients.producer(stack.cluster.connection)
    for number in range(10):
        producer.produce(name, f"value {number}", partition=2)
    producer.flush()
    topic = topics.describe(name)
    assert len(topic.partitions) == 4
    assert topic.replication == 3
    assert topic.configs == {"retention.ms": "60000"}
    assert topic.min_in_sync == 2
    assert topic.records == 10
    busy = topic.partitions[2]
    assert (busy.begin, busy.end) == (0, 10)
    assert busy.size is not None
    assert busy.size > 100
    assert topic.partitions[0].size == 0
    assert set(busy.in_sync) == set(busy.replicas) == {1, 2, 3}
    assert busy.flags == ()


def test_list_shows_internal_topics_only_when_asked(topics: Topics, new_topic: NewTopic) -> None:
    name = new_topic()
    assert name in [topic.name for topic in topics.all()]
    assert "__consumer_offsets" not in topics.names()
    assert "__consumer_offsets" in topics.names(internal=True)


def test_replicas_are_spread_over_racks(topics: Topics, new_topic: NewTopic) -> None:
    racks = {broker.id: broker.rack for broker in topics.brokers()}
    assert racks == {1: "a", 2: "b", 3: "c"}
    topic = topics.describe(new_topic(6, replication=2), sizes=False)
    assert all(len({racks[b] for b in p.replicas}) == 2 for p in topic.partitions)


def test_alter_changes_everything_that_is_asked_for(topics: Topics, new_topic: NewTopic) -> None:
    name = new_topic(2, replication=1)
    topics.alter(
        name,
        partitions=3,
        replication=2,
        configs={"cleanup.policy": "compact", "retention.ms": "5"},
    )
    _wait_for(topics, name, lambda topic: len(topic.partitions) == 3)
    _wait_for(topics, name, lambda topic: topic.replication == 2)
    _wait_for(topics, name, lambda topic: topic.configs.get("cleanup.policy") == "compact")
    topics.alter(name, configs={"retention.ms": None})
    _wait_for(topics, name, lambda topic: "retention.ms" not in topic.configs)


def _wait_for(topics: Topics, name: str, changed: Callable[[Topic], bool]) -> None:
    """Any broker may be asked, and one may be behind another."""
    wait_until(lambda: changed(topics.describe(name, sizes=False)), 10, "the change is not there")


def test_an_alteration_is_whole_or_nothing(topics: Topics, new_topic: NewTopic) -> None:
    name = new_topic(2)
    with pytest.raises(TopicError, match="Invalid value"):
        topics.alter(name, partitions=4, configs={"retention.ms": "soon"})
    topic = topics.describe(name, sizes=False)
    assert len(topic.partitions) == 2
    assert topic.configs == FOREVER


def test_reassign_moves_replicas_off_a_broker(topics: Topics, new_topic: NewTopic) -> None:
    name = new_topic(4, replication=2)
    target = topics.reassign(name, [1, 3])
    topic = topics.describe(name, sizes=False)
    for partition in topic.partitions:
        assert set(partition.replicas) == {1, 3}
        assert list(partition.replicas) == target[partition.id]
        assert partition.flags == ()
    assert sorted(p.leader or 0 for p in topic.partitions) == [1, 1, 3, 3]


def test_delete_is_awaited(topics: Topics, new_topic: NewTopic) -> None:
    """By every broker: whichever is asked next must not name it."""
    for _ in range(5):
        name = new_topic()
        topics.delete([name])
        assert all(name not in topics.names() for _ in range(5))


def test_refusals_say_why_and_change_nothing(topics: Topics, new_topic: NewTopic) -> None:
    name = new_topic(3)
    refused: list[tuple[str, Callable[[], object]]] = [
        ("exists already", lambda: topics.create(name)),
        ("cannot take partitions away", lambda: topics.alter(name, partitions=2)),
        ("the cluster has 3 brokers", lambda: topics.create("new", replication=4)),
        ("the cluster has 3 brokers", lambda: topics.alter(name, replication=4)),
        ("0 partitions", lambda: topics.create("new", partitions=0)),
        (
            "one lost replica would stop writes",
            lambda: topics.create("new", replication=2, configs={"min.insync.replicas": "3"}),
        ),
        (
            "'retention.m' is not a topic config; did you mean 'retention.ms'?",
            lambda: topics.create("new", configs={"retention.m": "1"}),
        ),
        (
            "'cleanup.polcy' is not a topic config; did you mean 'cleanup.policy'?",
            lambda: topics.alter(name, configs={"cleanup.polcy": "compact"}),
        ),
        (f"there is no topic '{name}x'; did you mean", lambda: topics.describe(f"{name}x")),
        ("Kafka's own topic", lambda: topics.delete(["__consumer_offsets"])),
        ("there is no broker 9; the brokers are 1, 2, 3", lambda: topics.reassign(name, [1, 9])),
    ]
    for said, attempt in refused:
        with pytest.raises(TopicError) as raised:
            attempt()
        assert said in str(raised.value)
    assert "new" not in topics.names()
    assert len(topics.describe(name, sizes=False).partitions) == 3


def test_a_cluster_that_does_not_answer_is_an_error_in_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nowhere = Connection.to("127.0.0.1:9")
    monkeypatch.setattr(groups, "ANSWER_TIMEOUT", 1)
    topics = Topics(nowhere, Settings.load({"timeout": "1"}))
    for ask in (topics.names, lambda: groups.topic_ids(["t"], nowhere)):
        with pytest.raises(UnreachableError, match="Kafka at 127.0.0.1:9 did not answer in time"):
            ask()
