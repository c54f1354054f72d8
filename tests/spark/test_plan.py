"""What a plan says of its rows: whether they are still of one record each, and where they are."""

import pytest
from pyspark.sql import DataFrame, SparkSession

from fixtures.flows import Flow
from tallygate.core.letters import Letter
from tallygate.engine.frames import decoded, raw_stream
from tallygate.kafka.connection import Connection
from tallygate.spark.plan import (
    committed_only,
    needed_columns,
    read_plan,
    seen_besides_records,
    topics_read,
    walk,
)
from tallygate.spec import Kafka, Postgres

SOURCE = Kafka("t", schema="id long, account string")


class Nowhere:
    def keep(self, letters: list[Letter]) -> None: ...


@pytest.fixture
def source(spark: SparkSession) -> DataFrame:
    raw = raw_stream(spark, SOURCE, Connection.to("localhost:1"))
    frame = decoded(raw, SOURCE, Nowhere())
    frame.createOrReplaceTempView("source")
    return frame


def test_the_decoding_step_is_known_also_when_it_gives_less(spark: SparkSession) -> None:
    raw = raw_stream(spark, SOURCE, Connection.to("localhost:1"))
    for needed in (None, {"id", "_topic", "_partition", "_offset"}):
        assert read_plan(decoded(raw, SOURCE, Nowhere(), needed=needed)).narrow


def test_a_step_of_the_users_that_gives_the_same_columns_is_not_the_decoding_step(
    source: DataFrame,
) -> None:
    """What is below it may have mixed the rows of a partition, or left columns to it."""

    def same(blocks: object) -> object:
        return blocks

    for before in (source, source.where("id > 0"), source.repartition(2)):
        mapped = before.mapInArrow(same, source.schema)  # type: ignore[arg-type]
        plan = read_plan(mapped)
        assert (plan.narrow, plan.has_coordinates) == (False, False)
        assert needed_columns(mapped) is None


def test_rows_that_a_step_of_the_users_has_mixed_are_all_written(flow: Flow) -> None:
    """There are as many tasks as partitions, each with half of the rows of one: were it taken for
    all of them, the first would move the ledger, and the second's half would be lost."""

    def same(blocks: object) -> object:
        return blocks

    def mixed(source: DataFrame) -> DataFrame:
        halves = source.where("_partition = 1").repartition(2)
        return halves.mapInArrow(same, source.schema)  # type: ignore[arg-type]

    for partition in (0, 1):
        flow.send(150, partition=partition)
    sink = Postgres(flow.name, driver_rows=0)
    flow.run(transform=mixed, sink=sink, source=Kafka(flow.name, schema=SOURCE.schema_))
    assert flow.rows() == list(range(150, 300))


def test_sources_of_other_jobs_read_as_ours_do_unless_told_otherwise(spark: SparkSession) -> None:
    def read_with(**given: str) -> dict[str, str]:
        options = {f"kafka.{name.replace('_', '.')}": text for name, text in given.items()}
        reader = spark.readStream.format("kafka").option("subscribe", "t").options(**options)
        frame = reader.option("kafka.bootstrap.servers", "localhost:1").load().select("value")
        (*_, source) = walk(committed_only(frame)._jdf.queryExecution().analyzed())
        return dict(source.extraOptions().asCaseSensitiveMap())

    by_itself = read_with(isolation_level="read_uncommitted")
    assert by_itself["kafka.max.poll.records"] == "10000"
    assert by_itself["kafka.isolation.level"] == "read_committed"
    assert read_with(max_poll_records="7")["kafka.max.poll.records"] == "7"


def test_what_is_read(spark: SparkSession) -> None:
    there = ["a", "b", "bb", "c"]
    where = Connection.to("localhost:1")
    by_name = raw_stream(spark, Kafka(["a", "c", "gone"], format="text"), where)
    assert topics_read(by_name, there) == {"a", "c"}
    by_pattern = raw_stream(spark, Kafka(pattern="b+", format="text"), where)
    assert topics_read(by_pattern, there) == {"b", "bb"}


@pytest.mark.parametrize(
    ("query", "seen"),
    [
        ("SELECT id, 'x' AS x FROM source WHERE id > 0", None),
        ("SELECT id, current_timestamp() AS at FROM source", "current time"),
        ("SELECT id FROM source WHERE now() > _timestamp", "current time"),
        ("SELECT id, current_date() AS day FROM source", "current time"),
        ("SELECT id FROM source JOIN names USING (id)", "static side"),
        ("SELECT id FROM source WHERE id IN (SELECT id FROM names)", "static side"),
    ],
)
def test_what_a_batch_sees_besides_its_records(
    source: DataFrame, spark: SparkSession, query: str, seen: str | None
) -> None:
    spark.createDataFrame([], "id long").createOrReplaceTempView("names")
    assert seen_besides_records(spark.sql(query)) == seen
