"""What streams cannot do is refused before anything starts, with the reason and the alternative."""

import re
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkConf
from pyspark.sql import DataFrame, SparkSession

from tallygate import Kafka, KafkaSink, Pipeline, Postgres
from tallygate.engine import factory
from tallygate.errors import ConfigError
from tallygate.settings import Settings
from tallygate.spec import Console, Delta, Memory, Parquet
from tallygate.targets.base import Target

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
        {"sink": Delta("t")},
        "only be appended once it is final.*, or use mode upsert with the groups as the key",
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


REPLACE = {"sink": Postgres("t", mode="replace")}
REFUSED += [
    (
        "SELECT animal, count(*) AS n FROM (SELECT * FROM source ORDER BY at) GROUP BY animal",
        REPLACE,
        "ORDER BY needs all rows.*and not what goes into the aggregate",
    ),
    (
        "SELECT animal, count(*) AS n FROM (SELECT * FROM source LIMIT 9) GROUP BY animal",
        REPLACE,
        "LIMIT has no meaning.*only the result of an aggregate",
    ),
    (
        "SELECT id FROM source",
        REPLACE,
        "mode replace writes the whole result with each batch.*GROUP BY",
    ),
    (None, REPLACE, "mode replace writes the whole result with each batch.*Use mode append"),
    (
        "SELECT animal, max(r) AS r FROM (SELECT animal, rand() AS r FROM source) GROUP BY animal",
        {"sink": UPSERT},
        r"transform of 'checked': rand\(\) AS r gives other values.*the state was computed with "
        r"the old ones\. Derive the value from the record",
    ),
    (
        [WATERMARK, {"sql": "SELECT *, uuid() AS u FROM previous"}, {"dedup": ["u"]}],
        {},
        "uuid.* AS u gives other values.*the state was computed with the old ones",
    ),
]
REFUSED += [
    (
        "SELECT animal, count(*) AS n FROM source GROUP BY animal",
        {"sink": sink, "delivery": delivery},
        f"only be appended once it is final.* by a window, or {said}",
    )
    for sink, delivery, said in (
        (KafkaSink("t"), "exactly-once", "write to PostgreSQL or Delta, with mode upsert and the"),
        (Parquet("t"), "exactly-once", "write to PostgreSQL or Delta, with mode upsert and the"),
        (Memory("t"), "at-least-once", r"use mode replace\."),
        (Console(), "at-least-once", "use mode upsert, which gives a group again"),
    )
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
    (
        "SELECT id FROM source",
        {"sink": sink},
        r"sink\.key .*'idd' is not a column.*did you mean 'id'",
    )
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


BOTH = [
    {"from": "a", "name": "first", **WATERMARK},
    {"from": "b", "name": "second", **WATERMARK},
]
ONE = [BOTH[0], {"name": "second", "sql": "SELECT * FROM b"}]
WITHIN = "second.at BETWEEN first.at AND first.at + INTERVAL 1 HOUR"


@pytest.mark.parametrize(
    ("before", "condition", "growing"),
    [
        (BOTH, f"ON first.id = second.id AND {WITHIN}", []),
        (BOTH, f"ON first.id = second.id WHERE {WITHIN}", []),
        (BOTH, "ON first.id = second.id AND first.at = second.at", []),
        (BOTH, "ON first.id = second.id", ["first", "second"]),
        (BOTH, "ON first.id = second.id AND second.at >= first.at", ["first"]),
        (ONE, f"ON first.id = second.id AND {WITHIN}", ["first", "second"]),
        (ONE, "ON first.id = second.id", ["first", "second"]),
    ],
)
def test_a_join_of_streams_forgets_by_watermarks_and_bounds_of_time(
    spark: SparkSession,
    settings: Settings,
    before: list[dict[str, Any]],
    condition: str,
    growing: list[str],
) -> None:
    join = {"sql": f"SELECT first.id FROM first JOIN second {condition}"}
    seen = _look(spark, settings, [*before, join], **TWO)
    for side in ("first", "second"):
        until = "for ever" if side in growing else "until the watermark passes"
        assert re.search(
            f"join: a row for each record of {side}, about .*?, {until}", seen["state"]
        )
        warned = f"keeps every record of {side} in its state for ever" in seen.get("warning", "")
        assert warned == (side in growing)


def test_a_join_of_streams_without_watermarks_is_a_warning_or_refused(
    spark: SparkSession, settings: Settings
) -> None:
    inner = "SELECT a.id FROM a JOIN b ON a.id = b.id"
    seen = _look(spark, settings, inner, **TWO)
    assert "the join keeps every record of a in its state for ever" in seen["warning"]
    assert "the join keeps every record of b in its state for ever" in seen["warning"]
    assert "Add a watermark to both sides and bounds of time" in seen["warning"]
    assert seen["state"].endswith("for ever")
    with pytest.raises(ConfigError, match="outer join of two streams.*BETWEEN"):
        _look(spark, settings, inner.replace("JOIN", "LEFT JOIN"), **TWO)


def test_dropping_duplicates_forgets_by_its_own_columns(
    spark: SparkSession, settings: Settings
) -> None:
    def over(*columns: str) -> dict[str, str]:
        def once(source: DataFrame) -> DataFrame:
            return source.withWatermark("at", "1 hour").dropDuplicates(list(columns))

        return _look(spark, settings, once)

    assert over("id", "at")["state"].endswith("until the watermark passes")
    assert over("id")["state"].endswith("for ever")
    assert "dropDuplicates remembers every (id) without end" in over("id")["warning"]


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
    size = re.fullmatch(
        r"aggregate: a row for each \(window, animal\), about (\d+) bytes, which makes (\d+) MB "
        "for a million of them, until the watermark passes",
        seen["state"],
    )
    assert size is not None
    assert size[1] == size[2]
    assert seen["plan"] == "wide: Aggregate may mix rows of several records"
    assert "warning" not in seen
    seen = _look(
        spark, settings, "SELECT animal, count(*) AS n FROM source GROUP BY 1", sink=UPSERT
    )
    assert "keeps a row for each (animal) without end" in seen["warning"]
    assert seen["commit"] == "exactly-once, staged; small batches by the driver"


@pytest.mark.parametrize(
    ("query", "plan"),
    [
        ("SELECT id FROM source WHERE id > 0", "narrow"),
        (
            "SELECT /*+ REPARTITION(2) */ id FROM source",
            "wide: Repartition may mix rows of several records",
        ),
        (
            "SELECT id FROM source DISTRIBUTE BY id",
            "wide: RepartitionByExpression may mix rows of several records",
        ),
    ],
)
def test_a_shuffle_is_shown_as_wide(
    spark: SparkSession, settings: Settings, query: str, plan: str
) -> None:
    seen = _look(spark, settings, query)
    assert seen["plan"] == plan
    way = "by partition" if plan == "narrow" else "staged"
    assert seen["commit"] == f"exactly-once, {way}; small batches by the driver"


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


@pytest.mark.parametrize("said", ["true", "TRUE", "false"])
def test_speculation_into_a_topic_is_refused(said: str, settings: Settings) -> None:
    """Of two attempts of a task each would fence the other's producer."""
    conf = SparkConf(loadDefaults=False).set("spark.speculation", said)
    spark: Any = SimpleNamespace(
        sparkContext=SimpleNamespace(getConf=lambda: conf),
        conf=SimpleNamespace(get=lambda _: "2"),
    )

    def made() -> Target:
        return factory.target_of(
            KafkaSink("t", bootstrap_servers="localhost:1"),
            "p",
            delivery="exactly-once",
            source=None,
            topics=(),
            spark=spark,
            settings=settings,
        )

    if said == "false":
        assert made().name == "topic t"
        return
    with pytest.raises(ConfigError, match="set spark.speculation=false"):
        made()
