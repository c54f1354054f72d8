"""Kafka forgets the offsets of a group without members some time after they were last committed.
A ledger that lost the position of an idle partition would take it for a new one."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from pyspark.sql import SparkSession

from fixtures.flows import Flow
from tallygate import KafkaSink, Stack
from tallygate.engine.status import request_stop
from tallygate.errors import LedgerError
from tallygate.kafka import clients
from tallygate.lab.drills.workload import ids_in
from tallygate.settings import Settings
from tallygate.targets.kafka import target as kafka_target
from tallygate.waiting import wait_until

FORGETS = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "1000"}


@pytest.fixture(scope="module")
def forgetful(settings: Settings) -> Iterator[Stack]:
    with Stack("forgetful", brokers=1, config=FORGETS, purge=True, settings=settings) as running:
        yield running


@pytest.mark.parametrize("renewed_every", [5, 3600])
def test_idle_partitions_are_not_forgotten(
    forgetful: Stack,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    renewed_every: float,
) -> None:
    """Once with a renewal, and the twin without one: it finds its ledger gone and stops, and is
    refused from then on, also without its checkpoint."""
    renewed = renewed_every < 60
    monkeypatch.setattr(kafka_target, "RENEWED_EVERY", renewed_every)
    flow = Flow(f"forgetting_{renewed_every}", forgetful, spark, tmp_path)
    target = f"{flow.name}-out"
    flow.topics.create(target)
    flow.send(30, partition=0)
    pipeline = flow.pipeline(sink=KafkaSink(target))
    failures: list[LedgerError] = []

    def keep_running() -> None:
        try:
            pipeline.run(settings=flow.settings, spark=spark)
        except LedgerError as error:
            failures.append(error)

    run = threading.Thread(target=keep_running)
    run.start()
    wait_until(lambda: len(_ids(flow, target)) == 30, 60, "the pipeline does not write")
    _commit_once(flow)

    def forgotten() -> bool:
        flow.send(1, partition=1)
        return not _offsets(flow, "once")

    wait_until(forgotten, 120, "Kafka forgets nothing", every=1)
    if renewed:
        request_stop(flow.name, flow.settings)
    else:
        flow.send(1, partition=1)
    run.join(60)
    assert not run.is_alive()
    assert bool(failures) is not renewed
    shutil.rmtree(flow.checkpoint)
    if renewed:
        flow.run(sink=KafkaSink(target))
    else:
        with pytest.raises(LedgerError, match=f"has lost where it is in {flow.name}/0"):
            flow.run(sink=KafkaSink(target))
        target = f"{target}-again"
        flow.topics.create(target)
        flow.run(name=f"{flow.name}-again", sink=KafkaSink(target))
    assert _ids(flow, target) == sorted(range(flow.sent))


def _commit_once(flow: Flow) -> None:
    """For a group that nobody renews: when Kafka has forgotten it, it has had the time."""
    consumer = clients.consumer(flow.stack.cluster.connection, group_id="once")
    consumer.commit(offsets=[TopicPartition(flow.name, 0, 1)], asynchronous=False)
    consumer.close()


def _offsets(flow: Flow, group: str) -> list[int]:
    admin = clients.admin(flow.stack.cluster.connection)
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    found = asked[group].result().topic_partitions or ()
    return [each.offset for each in found if each.offset >= 0]


def _ids(flow: Flow, topic: str) -> list[int]:
    return sorted(ids_in(topic, flow.stack.cluster.connection))
