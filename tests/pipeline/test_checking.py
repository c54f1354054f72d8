"""What streams cannot do is refused before anything starts, with the reason and the alternative."""

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tallygate import Kafka, KafkaSink, Pipeline, Postgres
from tallygate.errors import ConfigError
from tallygate.settings import Settings
from tallygate.spec import Delta

SCHEMA = "id long, animal string, beach string, at timestamp"
UPSERT = Postgres("t", mode="upsert", key="animal")


def _look(spark: SparkSession, settings: Settings, transform: Any, **fields: Any) -> dict[str, str]:
    given = {
        "name": "checked",
        "source": Kafka("sightings", schema=SCHEMA),
        "sink": Postgres("t"),
        **fields,
    }
    return Pipeline(transform=transform, **given).look(spark, settings)


def _open_pivot(source: DataFrame) -> DataFrame:
    return source.groupBy("beach").pivot("animal").count()


def _count(source: DataFrame) -> DataFrame:
    source.count()
    return source


WATERMARK = {"watermark": {"at": "1 hour"}}
REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    ("SELECT * FROM source LIMIT 3", {}, "LIMIT has no meaning.*limit when you query"),
    ("SELECT DISTINCT animal FROM source", {}, "DISTINCT.*remember every row.*dedup step"),
    (
        "SELECT animal FROM source EXCEPT SELECT 'shark'",
        {},
        "EXCEPT compares whole rows.*remember every row.*LEFT ANTI JOIN",
    ),
    ("SELECT animal FROM source INTERSECT SELECT 'shark'", {}, "INTERSECT compares whole rows"),
    ("SELECT * FROM source ORDER BY id", {}, "ORDER BY needs all rows.*mode replace"),
    (
        "SELECT animal, count(*) AS n FROM source GROUP BY animal ORDER BY n",
        {"sink": UPSERT},
        "ORDER BY needs all rows",
    ),
    (
        "SELECT animal, count(*) AS n FROM source GROUP BY animal",
        {},
        "only be appended once it is final.*watermark.*mode upsert",
    ),
    (
        "SELECT animal, count(*) AS n FROM source GROUP BY animal",
        {"sink": KafkaSink("t")},
        "only be appended once it is final",
    ),
    (
        "SELECT n, count(*) AS m FROM (SELECT animal, count(*) AS n FROM source GROUP BY animal) "
        "GROUP BY n",
        {"sink": Postgres("t", mode="upsert", key="n")},
        "Spark cannot run this as a stream: Detected pattern",
    ),
    (_open_pivot, {}, "a pivot whose columns are left open"),
    (_count, {}, r"read the stream to its end.*count\(\)"),
    ([{"dedup": ["id"]}], {}, "dedup needs a watermark"),
    (
        "SELECT uuid() AS id, animal FROM source",
        {"delivery": "idempotent", "sink": Postgres("t", key="id")},
        r"uuid.* gives other values.*key.*xxhash64",
    ),
    (
        "SELECT /*+ REPARTITION(2) */ rand() AS r, id FROM source",
        {"sink": KafkaSink("t")},
        "rand.* rows go to lanes",
    ),
    (
        "SELECT a.id FROM source a JOIN source b ON a.id = b.id",
        {},
        "topic 'sightings' is read twice",
    ),
    (
        "SELECT source.*, row_number() OVER (PARTITION BY animal ORDER BY at) AS n FROM source",
        {},
        "Spark cannot run this as a stream: Window function",
    ),
]


PIVOT = {"on": "animal", "values": ["shark", "turtle"]}
REFUSED += [
    (
        [
            WATERMARK,
            {"window": {"on": "at", "size": "1 hour"}, "pivot": {**PIVOT, "aggregate": of}},
        ],
        {},
        "is more than one call of an aggregate function.*sum\\(amount - fee\\)",
    )
    for of in ("sum(id) - min(id)", "CAST(sum(id) AS int)", "1", "count(*) -- all of them")
]
REFUSED += [
    ("SELECT id FROM source", {"sink": sink}, r"sink\.key .*'idd' is no column.*did you mean 'id'")
    for sink in (
        Postgres("t", mode="upsert", key="idd"),
        Postgres("t", key="idd"),
        KafkaSink("t", key="idd"),
        Delta("t", mode="upsert", key="idd"),
    )
]


@pytest.mark.parametrize(("transform", "fields", "said"), REFUSED)
def test_refused(
    spark: SparkSession, settings: Settings, transform: Any, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        _look(spark, settings, transform, **fields)


@pytest.mark.parametrize(
    ("join", "said"),
    [
        ("source RIGHT JOIN names USING (animal)", "this right join.*stream on the left"),
        ("source FULL JOIN names USING (animal)", "this full outer join"),
        ("names LEFT JOIN source USING (animal)", "this left join"),
    ],
)
def test_outer_joins_with_a_static_side(
    spark: SparkSession, settings: Settings, tmp_path: Path, join: str, said: str
) -> None:
    file = tmp_path / "names.csv"
    file.write_text("shark,1\n")
    static = {"names": {"file": str(file), "schema": "animal string, size int"}}
    with pytest.raises(ConfigError, match=said):
        _look(spark, settings, f"SELECT id FROM {join}", static=static)
    step = {"join": {"with": "names", "on": "source.animal = names.animal", "how": "right"}}
    with pytest.raises(ConfigError, match=r"transform\.0 .*a right join would have to give out"):
        _look(spark, settings, [step], static=static)


TWO = {
    "source": None,
    "sources": {
        "a": {"topic": "a", "schema": "id long, at timestamp"},
        "b": {"topic": "b", "schema": "id long, at timestamp"},
    },
}


def test_a_join_of_streams_without_watermarks_is_a_warning_or_refused(
    spark: SparkSession, settings: Settings
) -> None:
    inner = "SELECT a.id FROM a JOIN b ON a.id = b.id"
    seen = _look(spark, settings, inner, **TWO)
    assert "keeps every record of (id, at" in seen["warning"]
    assert seen["state"].startswith("join: a row for each record of both sides, about ")
    assert seen["state"].endswith("for ever")
    with pytest.raises(ConfigError, match="outer join of two streams.*BETWEEN"):
        _look(spark, settings, inner.replace("JOIN", "LEFT JOIN"), **TWO)


def test_a_subquery_may_shuffle(spark: SparkSession, settings: Settings, tmp_path: Path) -> None:
    """It becomes a join later, so its rows are not written partition by partition."""
    (tmp_path / "names.csv").write_text("shark\n")
    static = {"names": {"file": str(tmp_path / "names.csv"), "schema": "animal string"}}
    query = "SELECT id FROM source WHERE animal IN (SELECT animal FROM names)"
    seen = _look(spark, settings, query, static=static)
    assert seen["plan"] == "a join with a static side, which may shuffle"
    assert seen["commit"] == "exactly-once, staged; small batches by the driver"


def test_an_aggregate_that_replaces_its_table_can_be_sorted_and_limited(
    spark: SparkSession, settings: Settings
) -> None:
    query = "SELECT animal, count(*) AS n FROM source GROUP BY animal ORDER BY n DESC LIMIT 3"
    _look(spark, settings, query, sink=Postgres("t", mode="replace"))


def test_what_check_shows(spark: SparkSession, settings: Settings) -> None:
    windows = {
        "window": {"on": "at", "size": "15 minutes"},
        "group_by": "animal",
        "aggregate": {"n": "count(*)"},
    }
    seen = _look(spark, settings, [WATERMARK, windows])
    assert seen["columns"].startswith("window_start:timestamp,window_end:timestamp,animal:string")
    assert "aggregate: a row for each (window, animal)" in seen["state"]
    assert seen["state"].endswith("until the watermark passes")
    assert "warning" not in seen
    seen = _look(
        spark, settings, "SELECT animal, count(*) AS n FROM source GROUP BY 1", sink=UPSERT
    )
    assert "keeps a row for each (animal) without end" in seen["warning"]
    assert seen["commit"] == "exactly-once, staged; small batches by the driver"


def _yaml(steps: str) -> str:
    return textwrap.dedent(
        """
        name: checked
        source: {topic: t, schema: "id long, animal string, at timestamp, text string"}
        sink: {table: t}
        transform:
        """
    ) + textwrap.indent(textwrap.dedent(steps).strip(), "  ")


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ("- sql: SELECT nothing FROM source", r"line 6: transform\.0: .*`nothing` cannot be"),
        ("- sql: SELECT id FROM nowhere", r"line 6: transform\.0: .*`nowhere` cannot be found"),
        ("- sql: SELEKT id FROM source", r"line 6: transform\.0: Syntax error"),
        (
            "- name: one\n  sql: SELECT id, id AS ID2 FROM source\n"
            "- sql: SELECT id FROM source a JOIN one ON a.id = one.id",
            r"line 8: transform\.1: Reference `id` is ambiguous",
        ),
        (
            "- window: {on: text, size: 1 minute}\n  aggregate: {n: count(*)}",
            r"line 6: transform\.0: column 'text' is string.*CAST\(text AS timestamp\)",
        ),
        ("- watermark: {att: 1 minute}", r"there is no column 'att'; did you mean 'at'\?"),
        (
            "- name: a\n  sql: SELECT 1\n- name: a\n  sql: SELECT 2",
            r"line 8: transform\.1\.name is called 'a' like another view",
        ),
        ("- sql: SELECT 1\n  dedup: id", "line 6: transform.0 does sql and dedup; a step does"),
        ("- function: nomodule:f", r"line 6: transform\.0: 'nomodule:f' cannot be imported"),
        ("- from: sourc\n  dedup: id", r"there is no view 'sourc'; did you mean 'source'\?"),
    ],
)
def test_the_place_in_the_file_is_said(
    spark: SparkSession, settings: Settings, tmp_path: Path, steps: str, said: str
) -> None:
    file = tmp_path / "checked.yaml"
    file.write_text(_yaml(steps))
    with pytest.raises(ConfigError, match=said):
        Pipeline.load(file).look(spark, settings)


def test_what_the_page_shows_can_be_checked(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    page = Path(__file__).parents[2] / "docs" / "pipelines.md"
    shown = re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    for text in shown:
        (tmp_path / "shown.yaml").write_text(text)
        Pipeline.load(tmp_path / "shown.yaml").look(spark, settings)


def test_the_step_before_is_called_previous(spark: SparkSession, settings: Settings) -> None:
    """Only right after it, and only if it has no name: an older one is not taken for it."""
    older = {"sql": "SELECT id AS old FROM source"}
    newer = {"name": "newer", "sql": "SELECT old AS new FROM previous"}
    assert "new:bigint" in _look(spark, settings, [older, newer])["columns"]
    with pytest.raises(ConfigError, match=r"transform\.2 .*`previous` cannot be found"):
        _look(spark, settings, [older, newer, {"sql": "SELECT old FROM previous"}])
    with pytest.raises(ConfigError, match=r"transform\.0 .*`previous` cannot be found"):
        _look(spark, settings, [{"sql": "SELECT old FROM previous"}])


def test_a_partition_that_several_tasks_share_is_not_for_a_topic() -> None:
    source = Kafka("t", schema="id long", options={"minPartitions": "8"})
    Pipeline(name="p", source=source, sink=Postgres("t"))
    with pytest.raises(ConfigError, match="remove the option minPartitions of source"):
        Pipeline(name="p", source=source, sink=KafkaSink("out"))


def test_a_socket_gives_what_it_can() -> None:
    socket = {"name": "s", "source": {"port": 9999}}
    with pytest.raises(ConfigError, match="a socket, which cannot be read twice"):
        Pipeline(**socket, sink=Postgres("t"))
    with pytest.raises(ConfigError, match="no ledger can count"):
        Pipeline(**socket, sink=Postgres("t"), delivery="at-most-once")
    Pipeline(**socket, sink={"console": 5}, delivery="at-most-once")
    with pytest.raises(ConfigError, match="comes again after a crash"):
        Pipeline(
            name="s",
            source=Kafka("t", format="text"),
            sink={"console": 5},
            delivery="at-most-once",
        )
    with pytest.raises(ConfigError, match=r"source\.rate input should be greater than 0"):
        Pipeline(name="s", source={"rate": 0}, sink=Postgres("t"))
    with pytest.raises(ConfigError, match="sink console keeps no ledger"):
        Pipeline(name="s", source=Kafka("t", format="text"), sink={"console": 5})
