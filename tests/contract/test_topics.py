"""What only a topic has: its ledger is in the offsets of groups, which Kafka shows late, may forget
and knows by a cluster; and its transactions may not take too long."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from contract.conftest import Make
from contract.forks import forked
from contract.harness import Run, Store, keep, settled
from contract.kafka_store import KafkaStore
from contract.source import BATCHES, LAST, TOPIC, batch
from contract.ways import Way, ways
from tallygate.core.letters import Letter
from tallygate.core.offsets import Range
from tallygate.errors import LedgerError
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.kafka.dead_letters import list_dead_letters
from tallygate.kafka.producer import open_transactions
from tallygate.kafka.topics import Topics
from tallygate.targets.base import Task, TaskReport
from tallygate.targets.batch_input import BlockInput
from tallygate.targets.kafka.ledger import GroupLedger, Names, committed, kept_as

TOPICS = ways(lambda way: way.kind == "kafka")
NARROW = ways(lambda way: str(way) == "kafka-narrow")
LATE = 1.0
"""For how many seconds a commit is not seen that was answered."""


def _kafka(made: Store, **changes: Any) -> KafkaStore:
    assert isinstance(made, KafkaStore)
    return replace(made, **changes)


def _groups(store: KafkaStore) -> list[str]:
    names = Names(store.pipeline)
    return [names.group] if store.raw else [names.lane_group(0), names.lane_group(1)]


@contextmanager
def _seen_late(store: KafkaStore, run: Run) -> Iterator[None]:
    """What batch 1 commits is seen a second later. Kafka answers a commit before it tells the
    group; here the transaction ends after that time."""
    connection, open_ = Connection.to(store.servers), []
    for group in _groups(store):
        held = committed(connection, group, stand_in=False)
        ledger = GroupLedger(group=group, claim=run.claim, stand_in=False)
        ends = [
            ledger.offset((TOPIC, p), LAST[TOPIC, p] - 10, held[TOPIC, p].mark)
            for _, p in sorted(held)
        ]
        producer = open_transactions(connection, f"late-{group}")
        consumer = clients.consumer(connection, group_id=group)
        producer.begin_transaction()
        producer.send_offsets_to_transaction(ends, consumer.consumer_group_metadata(), 10)
        consumer.close()
        open_.append(producer)

    def end() -> None:
        time.sleep(LATE)
        for producer in open_:
            producer.commit_transaction(10)

    ending = threading.Thread(target=end)
    ending.start()
    try:
        yield
    finally:
        ending.join()


@pytest.mark.parametrize("way", TOPICS)
def test_a_run_goes_on_from_a_commit_that_kafka_shows_late(way: Way, make: Make) -> None:
    """It would plan the next batch from where the ledger was, and find a gap."""
    store = _kafka(make(way))
    run = Run(store)
    run.bring(BATCHES[:1])
    settled(store)
    with _seen_late(store, run):
        state = run.target.ledger()
    assert state is not None
    assert state.positions == {at: end - 10 for at, end in LAST.items()}


@pytest.mark.parametrize("way", TOPICS)
def test_a_start_does_not_wait_for_what_a_dead_run_left_open(way: Way, make: Make) -> None:
    store = _kafka(make(way))
    with forked(_bring, store, at="ledger-moved@1") as child:
        assert child.died
    began = time.monotonic()
    run = Run(store)
    state = run.target.ledger()
    assert time.monotonic() - began < 8
    assert state is not None
    run.bring(BATCHES)
    assert settled(store).state.positions == LAST


def _bring(store: Store) -> None:
    Run(store).bring(BATCHES)


@pytest.mark.parametrize("way", TOPICS)
def test_a_cluster_by_another_name_is_the_same_cluster(way: Way, make: Make) -> None:
    store = _kafka(make(way))
    Run(store).bring(BATCHES[:2])
    named = store.servers.replace("127.0.0.1", "localhost")
    assert named != store.servers
    other = replace(store, source=named)
    assert Run(other).bring(BATCHES)[:2] == [None, None]
    assert settled(other).state.positions == LAST
    begun = _kafka(make(way, pipeline="begun"), source=named)
    Run(begun).bring(BATCHES)
    assert settled(begun).state.positions == LAST
    kept = committed(Connection.to(store.servers), _groups(begun)[0], stand_in=False)
    assert kept.keys() == LAST.keys(), "no stand-ins are needed"


@pytest.mark.parametrize("way", TOPICS)
def test_a_ledger_of_stand_ins_is_gone_on_with_as_such(way: Way, make: Make) -> None:
    """One was made when another name was taken for another cluster."""
    store = _kafka(make(way), source=None)
    topics, stand_in = Topics(Connection.to(store.servers)), kept_as(TOPIC, stand_in=True)
    if stand_in not in topics.names():
        topics.create(stand_in, partitions=4)
    Run(store).bring(BATCHES[:2])
    same = replace(store, source="")
    assert Run(same).bring(BATCHES)[:2] == [None, None]
    assert settled(same).state.positions == LAST


@pytest.mark.parametrize("way", TOPICS)
def test_dead_letters_that_are_listed_are_those_that_count(way: Way, make: Make) -> None:
    store = _kafka(make(way))
    run = Run(store)
    run.bring(BATCHES[:1])
    given_up = [Letter(TOPIC, each.partition, each.until - 1, "?") for each in BATCHES[1].ranges]
    keep(run, given_up)
    Run(store).bring(BATCHES)
    seen = settled(store)
    listed = list_dead_letters(f"{store.pipeline}.dead-letters", Connection.to(store.servers))
    assert Counter((each.partition, each.offset) for each in listed) == seen.letters


def _forget(store: KafkaStore, group: str, partition: int) -> None:
    """An offset that was reset by a tool has no mark, and is as good as forgotten."""
    admin = clients.admin(Connection.to(store.servers))
    reset = ConsumerGroupTopicPartitions(group, [TopicPartition(TOPIC, partition, 0)])
    admin.alter_consumer_group_offsets([reset])[group].result()


@pytest.mark.parametrize("way", TOPICS)
def test_a_position_that_was_forgotten_is_not_taken_for_a_new_partition(
    way: Way, make: Make
) -> None:
    """Also without a checkpoint, which would have it: its rows would come twice."""
    store = _kafka(make(way))
    Run(store).bring(BATCHES[:2])
    settled(store)
    for group in _groups(store)[-1:]:
        _forget(store, group, 0)
    with pytest.raises(LedgerError, match=f"has lost where it is in {TOPIC}/0: "):
        Run(store)
    over = make(way, pipeline="over", place="over")
    Run(over).bring(BATCHES)
    assert settled(over).state.positions == LAST


@pytest.mark.parametrize("way", TOPICS)
def test_a_partition_that_was_added_is_known_from_the_next_start_on(way: Way, make: Make) -> None:
    store = _kafka(make(way, begin=((0, 0), (1, 0))))
    run = Run(store)
    run.bring([batch(0, partitions=[0])])
    Run(store).bring([replace(batch(1, partitions=[0]), ranges=(Range(TOPIC, 1, 0, 10),))])
    settled(store)
    Run(store)
    settled(store)
    for group in _groups(store):
        _forget(store, group, 1)
    with pytest.raises(LedgerError, match=f"{TOPIC}/1"):
        Run(store)


@pytest.mark.parametrize("way", TOPICS)
@pytest.mark.parametrize("point", ["batch-planned@0", "rows-begun@0", "ledger-moved@0"])
def test_what_a_first_batch_had_not_begun_is_not_forgotten(
    way: Way, point: str, make: Make
) -> None:
    store = _kafka(make(way))
    with forked(_bring, store, at=point) as child:
        assert child.died
    Run(store).bring(BATCHES)
    assert settled(store).state.positions == LAST


class Slow(BlockInput):
    """Rows that take their time: a second each block."""

    def run(self, task: Task, *, one_partition: bool = False) -> list[TaskReport]:
        return BlockInput(self.plan, [_Slow(blocks) for blocks in self.tasks]).run(
            task, one_partition=one_partition
        )


class _Slow(tuple[pa.RecordBatch, ...]):
    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for block in super().__iter__():
            time.sleep(1.1)
            yield block


def _bring_slowly(store: Store) -> None:
    Run(store, Slow).bring([batch(0, partitions=[0])])


@pytest.mark.parametrize("way", NARROW)
def test_rows_that_take_too_long_for_one_transaction_have_several(way: Way, make: Make) -> None:
    """Killed after the first of them, a run leaves the ledger within the range."""
    short = (("transaction.timeout.ms", "2000"),)
    store = _kafka(make(way, begin=((0, 0),)), properties=short)
    with forked(_bring_slowly, store, at="committed@0") as child:
        assert child.died
    (at,) = settled(store).state.positions.values()
    assert 0 < at < 10, "it is at the end of a block"
    _bring_slowly(store)
    seen = settled(store)
    assert seen.state.positions == {(TOPIC, 0): 10}
    assert seen.letters == {(0, 7): 1}
