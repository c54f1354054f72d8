"""The audit of a Delta table finds what was planted into it, and nothing in one untouched."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fixtures.audits import abort, audited, audited_meanwhile, counts
from fixtures.lakes import Lake
from tallygate import Delta
from tallygate.auditing.verdict import Verdict

COUNTS = "SELECT account, count(*) AS payments FROM source GROUP BY account"


def _change(lake: Lake, *statements: str) -> None:
    for statement in statements:
        lake.flow.spark.sql(statement.format(table=f"delta.`{lake.path}`"))


@contextmanager
def _ledger(lake: Lake, by: int) -> Iterator[None]:
    """With a ledger that somebody has changed."""
    entry = lake.entry()
    name = f"{entry.number:020}-{entry.state.run.id}.json"
    file = Path(lake.path, "_tallygate", lake.flow.name, name)
    kept = file.read_text()
    fields = json.loads(kept)
    for position in fields["state"]["positions"]:
        position[2] += by if position[1] == 0 else 0
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    file.write_text(json.dumps(fields))
    yield
    file.write_text(kept)


def test_what_was_planted_is_found(lake: Lake) -> None:
    flow, fields = lake.flow, {"sink": Delta(lake.path)}
    flow.send_text(["bad"])
    abort(flow.stack.cluster.connection, flow.name, '{"id": 1, "account": "x"}', partition=0)
    flow.send(90, partition=0)
    flow.run(**fields)
    whole = audited(flow, **fields)
    assert (whole.verdict, whole.records, whole.rows, whole.letters) == (Verdict.VALID, 91, 90, 1)
    with _ledger(lake, -1):
        assert counts(audited(flow, **fields)) == {"misplaced": 1, "overlap": 1}
    with _ledger(lake, 5):
        assert counts(audited(flow, **fields)) == {"overclaimed": 5, "gap": 5}
    _change(
        lake,
        "DELETE FROM {table} WHERE id = 20",
        "INSERT INTO {table} SELECT * FROM {table} WHERE id = 21",
        "UPDATE {table} SET account = 'x' WHERE id = 22",
        "INSERT INTO {table} SELECT 1, 'x', _topic, _partition, _offset - 2 FROM {table} "
        "WHERE id = 0",
        "INSERT INTO {table} SELECT 1, 'x', NULL, _partition, _offset FROM {table} WHERE id = 0",
        "INSERT INTO {table} SELECT 1, 'x', _topic, NULL, _offset FROM {table} WHERE id = 0",
    )
    found = counts(audited(flow, **fields))
    assert found.pop("unexpected") == 2, "rows that do not name all of a record"
    assert found == {"missing": 1, "duplicate": 1, "different": 1, "aborted": 1}


@pytest.mark.system
def test_aggregates_are_compared_key_by_key(lake: Lake) -> None:
    flow = lake.flow
    sink = Delta(lake.path, mode="upsert", key="account")
    fields: dict[str, Any] = {"sink": sink, "transform": COUNTS}
    flow.send(100)
    flow.run(**fields)
    assert audited(flow, **fields).verdict is Verdict.VALID
    _change(
        lake,
        "UPDATE {table} SET payments = payments + 1 WHERE account = 'a1'",
        "DELETE FROM {table} WHERE account = 'a2'",
        "INSERT INTO {table} VALUES ('nobody', 1)",
        "INSERT INTO {table} SELECT * FROM {table} WHERE account = 'a3'",
    )
    found = counts(audited(flow, **fields))
    assert found == {"different": 1, "missing": 1, "unexpected": 1, "duplicate": 1}


def test_an_audit_of_a_running_pipeline_sees_one_version(lake: Lake) -> None:
    flow, fields = lake.flow, {"sink": Delta(lake.path)}
    flow.send(200)
    seen = audited_meanwhile(flow, **fields)
    assert seen == [(Verdict.VALID, 100), (Verdict.VALID, 200)]
