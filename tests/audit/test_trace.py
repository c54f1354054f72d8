"""One record is followed to what became of it, and a row back to its record."""

from typing import Any

import pytest

from fixtures.audits import abort
from fixtures.flows import Flow
from tallygate import Delta, KafkaSink, Parquet, Postgres, Producer
from tallygate.auditing.trace import Trace, trace_record, trace_rows
from tallygate.errors import ConfigError


def _followed(flow: Flow, offset: int, **fields: Any) -> Trace:
    at = flow.name, 0, offset
    return trace_record(flow.pipeline(**fields), at, settings=flow.settings, spark=flow.spark)


def _back(flow: Flow, where: str, **fields: Any) -> list[int]:
    pipeline = flow.pipeline(**fields)
    found = trace_rows(pipeline, where, settings=flow.settings, spark=flow.spark)
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
    with pytest.raises(ConfigError, match="--where 'nonsense = 1'"):
        _back(flow, "nonsense = 1")


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
