"""Topics that are deleted and made again: their offsets mean other records, whenever it happens."""

import shutil
from collections.abc import Callable

import pytest

from fixtures.flows import SCHEMA, Flow
from tallygate import Kafka, KafkaSink, Postgres, Stack, Topics
from tallygate.core.ledger import Claim
from tallygate.engine.progress import Progress
from tallygate.errors import LostRangeError
from tallygate.targets.base import WriteBatch, Written
from tallygate.targets.postgres.target import PostgresTarget

QUERY = "SELECT id, account FROM source"


def test_a_topic_is_recreated_under_a_batch_that_is_planned(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may even have as many records as the old one: they are others."""
    flow.send(30)
    flow.run()
    flow.send(30)

    def recreate() -> None:
        _recreate(flow)
        flow.send(10)

    _before_write(monkeypatch, recreate)
    with pytest.raises(LostRangeError, match="was deleted and recreated"):
        flow.run()
    assert len(flow.rows()) == 30


def test_a_topic_is_recreated_while_running(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """It soon has more records than the old one, so that the next offsets are there again."""
    monkeypatch.setattr("tallygate.engine.batch.LOOK_EVERY", 0)
    flow.send(60, partition=0)

    def recreate(progress: Progress) -> None:
        if progress.batch == 0:
            _recreate(flow)
            flow.send(90, partition=0)

    pipeline = flow.pipeline(source=Kafka(flow.name, schema=SCHEMA, max_records=30))
    with pytest.raises(LostRangeError, match="was deleted and recreated"):
        pipeline.run(
            until="available", settings=flow.settings, spark=flow.spark, on_progress=recreate
        )
    assert flow.rows() == list(range(30))


@pytest.mark.parametrize(
    ("driver_rows", "transform"),
    [(0, None), (20_000, None), (0, QUERY)],
    ids=["tasks", "driver", "tasks that decode"],
)
def test_a_topic_that_is_recreated_within_the_interval_is_not_written(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, driver_rows: int, transform: str | None
) -> None:
    """It has records at the same offsets, and the driver has only just asked for its id."""
    sink = Postgres(flow.name, driver_rows=driver_rows)
    given = {"sink": sink, "source": Kafka(flow.name, schema=SCHEMA), "transform": transform}
    flow.send(30, partition=0)
    flow.run(**given)
    flow.send(30, partition=0)

    def recreate() -> None:
        _recreate(flow)
        flow.send(90, partition=0)

    _before_write(monkeypatch, recreate)
    with pytest.raises(LostRangeError, match="was deleted and recreated"):
        flow.run(**given)
    assert flow.rows() == list(range(30))


def test_a_batch_of_a_topic_that_is_recreated_meanwhile_does_not_count_as_done(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a transform Spark reads, and no task can tell. No run goes on from there."""
    flow.send(30, partition=0)
    flow.run(transform=QUERY)
    flow.send(30, partition=0)

    def recreate() -> None:
        _recreate(flow)
        flow.send(90, partition=0)

    with monkeypatch.context() as patch:
        _before_write(patch, recreate)
        with pytest.raises(LostRangeError, match="was deleted and recreated"):
            flow.run(transform=QUERY)
    with pytest.raises(LostRangeError, match="was deleted and recreated"):
        flow.run(transform=QUERY)


@pytest.mark.parametrize("transform", [None, QUERY], ids=["before it is read", "after"])
def test_a_topic_that_is_recreated_under_the_first_batch_is_known_by_the_next_start(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, transform: str | None
) -> None:
    """The ledger has its id as soon as it has any of its offsets, and before."""
    flow.send(30, partition=0)

    def recreate() -> None:
        _recreate(flow)
        flow.send(90, partition=0)

    with monkeypatch.context() as patch:
        _before_write(patch, recreate)
        with pytest.raises(LostRangeError, match="was deleted and recreated"):
            flow.run(transform=transform)
    with pytest.raises(LostRangeError, match="was deleted and recreated"):
        flow.run(transform=transform)


def test_a_pipeline_that_has_planned_nothing_takes_the_topic_that_is_there(flow: Flow) -> None:
    """An id that the ledger has without an offset says nothing of the target."""
    flow.send(30)
    flow.run()
    flow.execute(f"DELETE FROM tallygate.positions WHERE pipeline = '{flow.name}'")
    flow.execute("TRUNCATE {table}")
    shutil.rmtree(flow.checkpoint)
    _recreate(flow)
    flow.send(20)
    flow.run()
    assert flow.rows() == list(range(30, 50))


@pytest.mark.parametrize("to", ["a table", "a topic elsewhere"])
def test_a_topic_that_was_recreated(flow: Flow, stack: Stack, to: str) -> None:
    """Each run is a single batch, whose own commit must say which topic it was. A cluster forgets
    the offsets of a topic that is deleted, but not those of its stand-in on another one."""
    target = f"{flow.name}-out"
    Topics(stack.cluster.connection, flow.settings).create(target)
    away = KafkaSink(target, bootstrap_servers=stack.bootstrap_servers)
    sink = Postgres(flow.name) if to == "a table" else away
    for _ in range(2):
        flow.send(30)
        flow.run(sink=sink)
    _recreate(flow)
    flow.send(90)
    with pytest.raises(LostRangeError, match="was deleted and recreated"):
        flow.run(sink=sink)


def _before_write(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Do something once the ids of the topics were asked for, and before anything is read."""
    left, write = [act], PostgresTarget.write

    def acted(self: PostgresTarget, claim: Claim, batch: WriteBatch) -> Written:
        if left:
            left.pop()()
        return write(self, claim, batch)

    monkeypatch.setattr(PostgresTarget, "write", acted)


def _recreate(flow: Flow) -> None:
    flow.topics.delete([flow.name])
    flow.topics.create(flow.name, partitions=3)
