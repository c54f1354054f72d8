"""Records on which the transform fails: each is named, or a dead letter, and no other is lost."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from fixtures.audits import audited
from fixtures.flows import SCHEMA, Flow
from tallygate import Kafka, KafkaSink, Parquet, Postgres
from tallygate.auditing.dead_letters import dead_letters
from tallygate.errors import ConfigError, InputError, QueryError
from tallygate.spec import Delta

SHARES = "SELECT id, 100 DIV (id % 60 - 7) AS share FROM source WHERE 1 / (id % 60 - 7) < 2"
SENT = 120
FAILING = [7, 67]
ALL = "SELECT id, 1 DIV (id - id) AS share FROM source"


def by_function(source: DataFrame) -> DataFrame:
    share = f.udf(lambda id: 100 // (id % 60 - 7), "long")
    return source.select("id", share("id").alias("share"))


def letters(flow: Flow, **fields: Any) -> list[tuple[bytes | None, str]]:
    pipeline = flow.pipeline(**fields)
    found = dead_letters(pipeline, settings=flow.settings, spark=flow.spark)
    return [(each.record.value, each.cause) for each in found]


def ids(values: list[tuple[bytes | None, str]]) -> list[int]:
    found = (re.match(rb'{"id": (\d+)', value or b"") for value, _ in values)
    return sorted(int(match[1]) for match in found if match)


@pytest.mark.parametrize(
    ("sink", "transform"),
    [
        pytest.param(lambda name, _: Postgres(name), SHARES, id="driver"),
        pytest.param(lambda name, _: Postgres(name, driver_rows=0), by_function, id="partition"),
        pytest.param(
            lambda name, _: Postgres(name, driver_rows=0, mode="upsert", key="id"),
            SHARES,
            id="staged",
            marks=pytest.mark.system,
        ),
        pytest.param(lambda name, _: KafkaSink(f"{name}-target"), SHARES, id="topic"),
        pytest.param(lambda _, folder: Parquet(folder, driver_rows=0), SHARES, id="parquet"),
        pytest.param(lambda _, folder: Delta(folder), SHARES, id="delta", marks=pytest.mark.system),
    ],
)
def test_they_are_dead_letters_and_the_others_are_written(
    flow: Flow, sink: Callable[[str, str], Any], transform: Any
) -> None:
    fields: dict[str, Any] = {
        "sink": sink(flow.name, str(flow.folder / "rows")),
        "transform": transform,
        "on_error": "dead-letter",
    }
    if isinstance(fields["sink"], KafkaSink):
        flow.topics.create(f"{flow.name}-target", partitions=2)
    flow.send(SENT)
    flow.send_text(["not JSON"])
    flow.run(**fields)
    found = letters(flow, **fields)
    assert ids(found) == FAILING
    assert len(found) == len(FAILING) + 1
    causes = [cause for value, cause in found if value != b"not JSON"]
    assert all("the transform fails: " in each and "by zero" in each for each in causes)
    result = audited(flow, **fields)
    assert result, str(result)
    assert (result.rows, result.letters) == (SENT - len(FAILING), len(FAILING) + 1)


@pytest.mark.parametrize("kind", ["table", "topic"])
def test_a_batch_of_which_every_record_fails_is_done(flow: Flow, kind: str) -> None:
    fields: dict[str, Any] = {"transform": ALL, "on_error": "dead-letter"}
    if kind == "topic":
        flow.topics.create(f"{flow.name}-target", partitions=2)
        fields["sink"] = KafkaSink(f"{flow.name}-target")
    flow.send(6)
    (note,) = flow.run(**fields)
    assert "gave no row, since its 6 records are dead letters: the transform fails: Div" in note
    assert ids(letters(flow, **fields)) == list(range(6))


def test_the_first_of_them_is_named_where_a_pipeline_stops(flow: Flow) -> None:
    flow.send(SENT)
    with pytest.raises(QueryError) as stopped:
        flow.run(transform=SHARES)
    said = str(stopped.value)
    found = re.search(r"fails on (\S+)/(\d)@(\d+): Division by zero", said)
    assert found, said
    assert "set `on_error: dead-letter` to set such records aside" in said
    flow.run(transform=SHARES, on_error="dead-letter")
    letters = flow.rows(
        'SELECT partition, "offset" FROM tallygate.dead_letters '
        f"WHERE pipeline = '{flow.name}' ORDER BY 1, 2"
    )
    assert letters[0] == (int(found[2]), int(found[3]))
    assert flow.rows() == [id for id in range(SENT) if id not in FAILING]


def test_more_than_may_be_dead_letters_are_not_looked_for(flow: Flow) -> None:
    flow.send(60)
    with pytest.raises(InputError, match="which is more than dead_letters allows") as stopped:
        flow.run(transform=ALL, on_error="dead-letter", dead_letters={"share": 0.02})
    assert "fails on 2 or more of 60 records" in str(stopped.value)


@pytest.mark.parametrize(
    ("transform", "source", "why"),
    [
        ("SELECT account, count(*) AS n FROM source GROUP BY account", {}, "Aggregate may mix"),
        ("SELECT id, current_timestamp() AS at FROM source", {}, "more than that"),
        (
            "SELECT id FROM source",
            {"options": {"minPartitions": "6"}},
            "only Spark's own reader can read it",
        ),
    ],
)
def test_it_is_refused_where_they_cannot_be_told_apart(
    flow: Flow, transform: str, source: dict[str, Any], why: str
) -> None:
    given = {"source": Kafka(flow.name, schema=SCHEMA, **source), "transform": transform}
    sink = Postgres(flow.name, mode="upsert", key=("account",) if "GROUP" in transform else ("id",))
    with pytest.raises(ConfigError, match=f"on_error: dead-letter needs .* and here .*{why}"):
        flow.pipeline(**given, sink=sink, on_error="dead-letter").look(flow.spark, flow.settings)
    flow.pipeline(**given, sink=sink).look(flow.spark, flow.settings)


def test_it_is_refused_where_rows_are_shuffled_into_a_topic(flow: Flow) -> None:
    """A lane that has a batch keeps its dead letters, and another that has not would not know."""
    fields = {
        "transform": "SELECT /*+ REPARTITION(2) */ id FROM source",
        "sink": KafkaSink("t"),
    }
    with pytest.raises(ConfigError, match="Repartition may mix rows"):
        flow.pipeline(**fields, on_error="dead-letter").look(flow.spark, flow.settings)
    flow.pipeline(**fields).look(flow.spark, flow.settings)
