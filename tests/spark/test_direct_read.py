"""Batches whose tasks read by themselves: the same rows as with Spark's reader, or an error."""

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from fixtures.flows import SCHEMA, Flow, windows_of_20
from fixtures.readers import rows_of
from tallygate import Kafka, KafkaSink, Parquet, Postgres
from tallygate.core.letters import Letter
from tallygate.core.offsets import Range
from tallygate.engine import frames as source
from tallygate.engine import read_path
from tallygate.engine.run_request import RunRequest
from tallygate.errors import LostRangeError, UnreachableError
from tallygate.kafka.connection import Connection
from tallygate.kafka.read import records_in
from tallygate.spark.direct_read import over_ranges
from tallygate.spec import Memory
from tallygate.targets.task_report import StepError

LARGE = 25_000
"""More records than a small batch has, where a sink does not say how many those are."""


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Range, ...]]:
    """The ranges of the batches whose tasks read by themselves."""
    seen = []

    def noted(
        plan: DataFrame, ranges: tuple[Range, ...], spark: SparkSession, *more: Any
    ) -> DataFrame:
        seen.append(ranges)
        return over_ranges(plan, ranges, spark, *more)

    monkeypatch.setattr(read_path, "over_ranges", noted)
    return seen


@pytest.mark.parametrize(
    "transform",
    [
        "SELECT * FROM source",
        "SELECT id, account, _key, _timestamp FROM source WHERE id >= 0",
        "SELECT /*+ REPARTITION(2) */ id FROM source",
        "SELECT id, part FROM source LATERAL VIEW explode(array(1, 2)) AS part",
        lambda frame: frame.selectExpr("id", "upper(account) AS account", "size(_headers) AS n"),
    ],
)
def test_rows_are_those_of_sparks_reader(
    flow: Flow, read: list[Any], transform: str | Callable[[DataFrame], DataFrame]
) -> None:
    def rows(table: str) -> list[Any]:
        content = f"SELECT string_agg(t::text, '|' ORDER BY t::text) FROM {table} t"
        letters = f"SELECT \"offset\" FROM tallygate.dead_letters WHERE pipeline = '{table}'"
        return flow.rows(content) + flow.rows(letters)

    flow.send(300)
    flow.send_text(["not JSON"])
    given = Kafka(flow.name, schema=SCHEMA, max_records=150, headers=callable(transform))
    for name, small in (("by_spark", 1000), ("by_tasks", 0)):
        flow.run(
            name=f"{flow.name}_{name}",
            transform=transform,
            source=given,
            sink=Postgres(f"{flow.name}_{name}", driver_rows=small),
            checkpoint=str(flow.folder / name),
        )
        assert bool(read) == (small == 0)
    assert rows(f"{flow.name}_by_tasks") == rows(f"{flow.name}_by_spark")
    assert len(rows(f"{flow.name}_by_tasks")) == 2, "the content, and one letter"
    (found,) = flow.rows(f"SELECT count(DISTINCT id) FROM {flow.name}_by_tasks")
    assert found == 300


@pytest.mark.parametrize("hint", ["", "/*+ REPARTITION(2) */"])
def test_into_a_topic(flow: Flow, read: list[Any], hint: str) -> None:
    target = f"{flow.name}-target"
    flow.topics.create(target, partitions=2)
    flow.send(LARGE)
    flow.run(
        transform=f"SELECT {hint} id FROM source",
        source=Kafka(flow.name, schema=SCHEMA),
        sink=KafkaSink(target),
    )
    assert len(read) == 1
    found = records_in(target, flow.stack.cluster.connection)
    assert sorted(json.loads(each.text)["id"] for each in found) == list(range(LARGE))


def test_into_files_without_a_transform(flow: Flow, read: list[Any]) -> None:
    flow.send(300)
    folder = flow.folder / "rows"
    flow.run(sink=Parquet(str(folder), driver_rows=0))
    assert len(read) == 3
    assert rows_of(folder, "id") == list(range(300))


@pytest.mark.parametrize(
    "fields",
    [
        {"transform": windows_of_20},
        {"transform": "SELECT id, current_timestamp() AS at FROM source"},
        {"transform": "SELECT * FROM source WHERE id IN (SELECT id FROM range(1000))"},
        {"transform": "WITH all AS (SELECT * FROM source) SELECT * FROM all"},
        {"transform": "SELECT id, uuid() AS chance FROM source"},
        {"transform": lambda frame: frame.observe("seen", f.count("*").alias("n"))},
        {"source": {"options": {"minPartitions": "6"}}},
    ],
)
def test_what_only_the_stream_knows_is_left_to_it(
    flow: Flow, read: list[Any], fields: dict[str, Any]
) -> None:
    """State, the time of the batch, other sides, what was said to Spark's reader alone, what is
    unknown."""
    flow.send(100)
    options = fields.get("source", {})
    flow.run(
        transform=fields.get("transform", "SELECT * FROM source"),
        source=Kafka(flow.name, schema=SCHEMA, max_records=60, **options),
        sink=Postgres(flow.name, driver_rows=0),
    )
    assert not read
    if fields.get("transform") != windows_of_20:
        flow.check()


def test_chance_is_another_in_each_batch(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the twin: over ranges, batches would repeat each other's values."""
    given: dict[str, Any] = {
        "transform": "SELECT id, uuid() AS chance FROM source",
        "source": Kafka(flow.name, schema=SCHEMA, max_records=60),
        "sink": Postgres(flow.name, driver_rows=0),
    }
    flow.send(60, partition=0)
    flow.send(60, partition=0)
    flow.run(**given)
    assert flow.rows("SELECT count(DISTINCT chance) FROM {table}") == [120]
    monkeypatch.setattr(read_path, "by_records_alone", lambda _: True)
    flow.send(120, partition=0)
    flow.run(**given)
    assert flow.rows("SELECT count(DISTINCT chance) FROM {table}") == [180]


def test_a_batch_in_part_is_trimmed(flow: Flow, read: list[Any]) -> None:
    """A checkpoint that was rolled back plans records that the ledger has."""
    given: dict[str, Any] = {
        "transform": "SELECT id FROM source",
        "sink": Postgres(flow.name, driver_rows=0),
        "source": Kafka(flow.name, schema=SCHEMA, max_records=90),
    }
    flow.send(90)
    flow.run(**given)
    with flow.checkpoint_of_now():
        flow.send(60)
        flow.run(**given)
    flow.send(90)
    flow.run(**given)
    flow.check()
    assert len(read) >= 3


@pytest.mark.parametrize("sink", ["table", "folder", "memory"])
def test_records_that_are_gone_by_the_time_they_are_read_are_an_error(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, sink: str
) -> None:
    def too_late(
        plan: DataFrame, ranges: tuple[Range, ...], spark: SparkSession, *others: Any
    ) -> DataFrame:
        flow.retire(1, 15)
        return over_ranges(plan, ranges, spark, *others)

    monkeypatch.setattr(read_path, "over_ranges", too_late)
    flow.send(50, partition=1)
    sinks = {
        "table": Postgres(flow.name, driver_rows=0),
        "folder": Parquet(str(flow.folder / "rows"), driver_rows=0),
        "memory": Memory(f"of_{flow.name}"),
    }
    monkeypatch.setattr(RunRequest, "small", 0)
    delivery = "at-least-once" if sink == "memory" else "exactly-once"
    with pytest.raises(LostRangeError, match="15 records"):
        flow.run(transform="SELECT id FROM source", sink=sinks[sink], delivery=delivery)
    if sink == "table":
        assert flow.rows() == []
    if sink == "folder":
        assert rows_of(flow.folder / "rows", "id") == []


@pytest.mark.usefixtures("spark")
def test_brokers_that_do_not_answer_are_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def silent(*_: Any, **__: Any) -> Any:
        raise UnreachableError("no broker answers")

    class Nowhere:
        def keep(self, letters: list[Letter]) -> None: ...

    monkeypatch.setattr(source, "fetch", silent)
    monkeypatch.setattr(source, "collect_seldom", lambda: None)  # this is no worker
    decoder = source.decoder_of(Kafka("t", schema=SCHEMA))
    where = Connection.to("localhost:1")
    step = source._DecodeStep(decoder, Nowhere(), False, None, None, ["id"], where, set())
    row = {
        "topic": "t",
        "partition": 0,
        "offset": 0,
        "until": 5,
        "topic_id": None,
        "apart": [],
    }
    with pytest.raises(StepError, match=r"\[retry\] no broker answers"):
        list(step.run([pa.RecordBatch.from_pylist([row])]))
