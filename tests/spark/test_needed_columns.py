"""What the decoding step need not give out: columns that no operator names."""

import pytest
from pyspark.sql import DataFrame, SparkSession

from fixtures.flows import Flow
from tallygate.core.letters import Letter
from tallygate.engine.frames import decoded, raw_stream
from tallygate.errors import QueryError
from tallygate.kafka.connection import Connection
from tallygate.spark.plan import needed_columns, read_plan
from tallygate.spec import Kafka

SOURCE = Kafka("t", schema="id long, account string, at timestamp, note string")
PLACE = {"_topic", "_partition", "_offset"}
ALL = PLACE | {"id", "account", "at", "note", "_timestamp", "_key"}


class Nowhere:
    def keep(self, letters: list[Letter]) -> None: ...


@pytest.fixture
def source(spark: SparkSession) -> DataFrame:
    raw = raw_stream(spark, SOURCE, Connection.to("localhost:1"))
    frame = decoded(raw, SOURCE, Nowhere())
    frame.createOrReplaceTempView("source")
    return frame


@pytest.mark.parametrize(
    ("query", "needed"),
    [
        ("SELECT id FROM source WHERE note > 'a'", PLACE | {"id", "note"}),
        ("SELECT t.id FROM (SELECT id, account FROM source) t", PLACE | {"id"}),
        ("SELECT * FROM source", ALL),
        ("SELECT id, explode(split(note, ' ')) FROM source", PLACE | {"id", "note"}),
        ("SELECT account, count(*) FROM source GROUP BY account", {"account"}),
        ("SELECT max(_key) FROM source GROUP BY window(at, '1 hour')", {"at", "_key"}),
        ("SELECT a.id FROM source a JOIN source b ON a.id = b.account", {"id", "account"}),
        ("SELECT DISTINCT id FROM source", {"id"}),
        ("SELECT id FROM source UNION ALL SELECT 1", None),
    ],
)
def test_what_a_query_needs(
    query: str, needed: set[str] | None, source: DataFrame, spark: SparkSession
) -> None:
    frame = read_plan(spark.sql(query)).frame
    assert needed_columns(frame) == needed


def test_what_a_step_of_python_needs_is_not_known(source: DataFrame) -> None:
    def same(blocks: object) -> object:
        return blocks

    mapped = source.select("id").mapInArrow(same, "id long")  # type: ignore[arg-type]
    assert needed_columns(mapped) is None


def test_what_is_not_needed_still_tells_whether_a_record_is_fit(flow: Flow) -> None:
    flow.send(30)
    flow.send_text(['{"id": 999, "account": 7}'])
    flow.run(transform="SELECT id FROM source")
    assert flow.rows() == list(range(30))
    letters = flow.rows(f"SELECT cause FROM tallygate.dead_letters WHERE pipeline = '{flow.name}'")
    assert letters == ["account: 7 is not a string"]


def test_what_a_function_asks_for_is_there(flow: Flow) -> None:
    def listed(source: DataFrame) -> DataFrame:
        assert {"id", "account", "_key"} <= set(source.columns)
        return source.select("id")

    flow.send(10)
    flow.run(transform=listed)
    assert flow.rows() == list(range(10))


def test_what_was_left_out_cannot_be_read(
    source: DataFrame, spark: SparkSession, flow: Flow
) -> None:
    """Were it taken for needless by mistake, the query would fail and not give nulls."""
    flow.send(10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tallygate.engine.start.needed_columns", lambda frame: {"id", *PLACE})
        with pytest.raises(QueryError, match="column account is read"):
            flow.run(transform="SELECT id, account FROM source")
        flow.run(transform="SELECT id FROM (SELECT id, account FROM source)")
    assert flow.rows() == list(range(10))
