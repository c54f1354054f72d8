"""One record is followed to what became of it, and a row back to its record."""

from typing import Any

import pytest

from fixtures.audits import abort
from fixtures.flows import Flow
from tallygate import Delta, Kafka, KafkaSink, Parquet, Pipeline, Postgres, Producer
from tallygate.auditing.trace import Trace, _coordinates, trace
from tallygate.core.ledger_snapshot import Commit
from tallygate.errors import ConfigError

TWO = Pipeline(name="p", source=Kafka(["a", "b"], schema="id long"), sink=Postgres("p"))


def test_a_record_is_named_by_its_coordinates() -> None:
    one = TWO.model_copy(update={"source": Kafka("a/b", schema="id long")})
    for at in ("a/b/2@17", "2@17", ("a/b", 2, 17), (2, 17)):
        assert _coordinates(at, one) == ("a/b", 2, 17)
    assert _coordinates("b/0@1", TWO) == ("b", 0, 1)


def test_what_names_no_record_is_refused_before_anything_starts() -> None:
    for at in ("a", "a/1", "a@1", "/1@1", "1@-1", ""):
        with pytest.raises(ConfigError, match="write topic/partition@offset"):
            trace(TWO, at)
    with pytest.raises(ConfigError, match="no record is at partition 0, offset -1"):
        trace(TWO, ("a", 0, -1))
    with pytest.raises(ConfigError, match="reads 2 topics by name; say of which one"):
        trace(TWO, "0@1")
    with pytest.raises(ConfigError, match="either a record by its coordinates, or rows"):
        trace(TWO)
    with pytest.raises(ConfigError, match="either a record by its coordinates, or rows"):
        trace(TWO, "a/0@1", where="true")


def test_a_trace_is_true_if_it_is_right_and_tells_its_story() -> None:
    commit = Commit(number=12, run=3, batch=11, ranges=(), at="2026-01-31 12:00:01+00")
    at: dict[str, Any] = {"topic": "t", "partition": 2, "offset": 17}
    record: dict[str, Any] = {"key": "k", "value": "v", "time": "now"}
    letter = Trace(**at, became="dead letter", **record, commit=commit, cause="why")
    assert letter
    assert str(letter).splitlines() == [
        "t/2@17: dead letter",
        "  record: now, key k, value v",
        "  commit: 12 by run 3, batch 11, 2026-01-31 12:00:01+00",
        "  cause: why",
    ]
    wrong = Trace(**at, became="different", rows=({"id": 1},), expected=({"id": 2},))
    assert not wrong
    assert str(wrong).splitlines()[1:] == ['  row: {"id": 1}', '  should be: {"id": 2}']


def _followed(flow: Flow, offset: int, **fields: Any) -> Trace:
    pipeline = flow.pipeline(**fields)
    (found,) = trace(pipeline, (0, offset), settings=flow.settings, spark=flow.spark)
    return found


def _back(flow: Flow, where: str, **fields: Any) -> list[int]:
    pipeline = flow.pipeline(**fields)
    found = trace(pipeline, where=where, settings=flow.settings, spark=flow.spark)
    return [each.offset for each in found]


@pytest.mark.parametrize("kind", ["postgres", "parquet", "delta", "kafka"])
def test_a_record_is_followed_to_its_row_and_back(flow: Flow, kind: str) -> None:
    flow.topics.create(f"{flow.name}-out")
    sink = {
        "postgres": Postgres(flow.name),
        "parquet": Parquet(str(flow.folder / "rows")),
        "delta": Delta(str(flow.folder / "rows")),
        "kafka": KafkaSink(f"{flow.name}-out"),
    }[kind]
    fields = {"sink": sink, "transform": "SELECT * FROM source WHERE id <> 7"}
    flow.send(8, partition=0)
    flow.run(**fields)
    whole = _followed(flow, 3, **fields)
    assert (whole.became, whole.key, whole.value) == ("row", "a3", '{"id": 3, "account": "a3"}')
    assert len(whole.rows) == 1
    assert whole.right
    if kind != "kafka":
        assert whole.commit is not None
        assert whole.commit.batch == 0
    where = "value LIKE '%\"id\":3,%'" if kind == "kafka" else "id = 3"
    assert _back(flow, where, **fields) == [3]


@pytest.mark.system
def test_why_a_record_has_no_row_is_said(flow: Flow) -> None:
    connection = flow.stack.cluster.connection
    fields = {"transform": "SELECT * FROM source WHERE id <> 2"}
    flow.send(3, partition=0)
    with Producer(connection) as producer:
        producer.send(flow.name, "bad", partition=0)
    abort(connection, flow.name, '{"id": 1, "account": "x"}', partition=0)
    flow.run(**fields)
    flow.send(1, partition=0)
    assert _followed(flow, 2, **fields).became == "filtered"
    assert _followed(flow, 4, **fields).became == "no record"
    assert _followed(flow, 6, **fields).became == "unread"
    assert _followed(flow, 99, **fields).became == "unread"
    flow.execute("DELETE FROM {table} WHERE id = 1")
    gone = _followed(flow, 1, **fields)
    assert (gone.became, gone.right) == ("missing", False)
    assert [row["id"] for row in gone.expected] == [1]
    flow.execute("UPDATE {table} SET account = 'x' WHERE id = 0")
    other = _followed(flow, 0, **fields)
    assert (other.became, other.right) == ("different", False)
    flow.execute("UPDATE {table} SET account = 'a0'")
    flow.execute("INSERT INTO {table} SELECT * FROM {table} WHERE id = 0")
    assert _followed(flow, 0, **fields).became == "duplicate"
    dead = _followed(flow, 3, **fields)
    assert dead.became == "dead letter"
    assert dead.cause
    with pytest.raises(ConfigError, match="where 'nonsense = 1'"):
        _back(flow, "nonsense = 1")


@pytest.mark.system
def test_a_record_whose_key_was_there_before_is_replaced(flow: Flow) -> None:
    """A table that appends by key keeps the first row of each."""
    fields = {"sink": Postgres(flow.name, key="account")}
    flow.send(6, partition=0)
    flow.run(**fields)
    later = _followed(flow, 5, **fields)
    assert (later.became, later.right) == ("replaced", True)
    assert [row["id"] for row in later.rows] == [0]
    assert _followed(flow, 0, **fields).became == "row"
    flow.execute("DELETE FROM {table} WHERE account = 'a0'")
    assert _followed(flow, 5, **fields).became == "missing"


def test_a_record_of_an_aggregate_has_no_row_of_its_own(flow: Flow) -> None:
    sink = Postgres(flow.name, mode="upsert", key="account")
    counts = "SELECT account, count(*) AS payments FROM source GROUP BY account"
    fields = {"sink": sink, "transform": counts}
    flow.send(5, partition=0)
    flow.run(**fields)
    assert _followed(flow, 1, **fields).became == "together"
    with pytest.raises(ConfigError, match="lead back to none"):
        _back(flow, "account = 'a1'", **fields)
