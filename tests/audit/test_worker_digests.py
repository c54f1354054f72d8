"""Workers compare on their own where they can, and what they read is not taken at its word."""

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from fixtures.audits import abort, audited, counts
from fixtures.flows import Flow
from tallygate import Kafka, Parquet, Postgres
from tallygate.auditing import coordinates
from tallygate.auditing import worker_digests as quick
from tallygate.auditing.verdict import Verdict
from tallygate.core.offsets import Range
from tallygate.spec import Delta

SCHEMA = (
    "id long, yes boolean, tiny byte, small short, medium int, near float, far double, "
    "said string, raw binary, day date, at timestamp, local timestamp_ntz"
)


def send_every_type(flow: Flow, count: int) -> None:
    values = []
    for number in range(count):
        row: dict[str, Any] = {
            "id": number,
            "yes": number % 2 == 0,
            "tiny": -(number % 100),
            "small": number * 7,
            "medium": -number * 1000,
            "near": number / 8,
            "far": -number / 3,
            "said": "é" * (number % 20),
            "raw": base64.b64encode(bytes(range(number % 30))).decode(),
            "day": f"2026-01-{number % 28 + 1:02}",
            "at": f"2026-01-01T00:00:00.{number:06}+01:00",
            "local": f"1969-01-01T00:00:00.{number:06}",
        }
        values.append(json.dumps({key: row[key] for key in row if key == "id" or number % 9}))
    flow.send_text(values)


def only_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any) -> Any:
        raise AssertionError("Spark was to compare rows")

    monkeypatch.setattr(coordinates, "digests", forbidden)
    monkeypatch.setattr(coordinates, "_row_by_row", forbidden)


@pytest.mark.parametrize("sink", ["table", "folder", "delta"])
def test_workers_alone_find_that_nothing_is_wrong(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, sink: str
) -> None:
    """Whatever the type, a value has the same number on both sides, nulls too; with records that
    were never sent, and with ones that cannot be decoded."""
    place = str(flow.folder / "lake")
    to: Any = {"table": Postgres(flow.name), "folder": Parquet(place), "delta": Delta(place)}[sink]
    fields = {"source": Kafka(flow.name, schema=SCHEMA), "sink": to}
    send_every_type(flow, 60)
    abort(flow.stack.cluster.connection, flow.name, '{"id": -1}', partition=0)
    flow.send_text(["bad"])
    send_every_type(flow, 30)
    flow.run(**fields)
    only_workers(monkeypatch)
    found = audited(flow, **fields)
    assert (found.verdict, found.records, found.rows) == (Verdict.VALID, 91, 90), found
    assert (found.letters, found.filtered) == (1, 0)


def test_each_column_counts(flow: Flow) -> None:
    source = Kafka(flow.name, schema=SCHEMA)
    send_every_type(flow, 30)
    flow.run(source=source)
    changes = {
        "yes": "NOT yes",
        "tiny": "tiny + 1",
        "near": "near + 0.5",
        "said": "said || '.'",
        "raw": "raw || 'a'",
        "day": "day + 1",
        "at": "at + interval '1 microsecond'",
        "local": "NULL",
    }
    for number, (column, changed) in enumerate(changes.items()):
        flow.execute(f"UPDATE {{table}} SET {column} = {changed} WHERE id = {number + 10}")
    assert counts(audited(flow, source=source)) == {"different": len(changes)}


def test_types_that_workers_do_not_compare_go_through_spark(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Kafka(flow.name, schema="id long, amount decimal(20, 4)")
    flow.send_text(['{"id": 1, "amount": "1.5"}', '{"id": 2, "amount": null}'])
    flow.run(source=source)
    assert audited(flow, source=source).verdict is Verdict.VALID
    only_workers(monkeypatch)
    with pytest.raises(AssertionError, match="Spark was to compare"):
        audited(flow, source=source)


def test_a_record_that_the_pipelines_reader_passes_over_is_missed(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same reader leaves a record out for the pipeline and for the audit: both lack its row,
    and only another reader can tell."""
    flow.send(20, partition=0)
    flow.run()
    flow.execute("DELETE FROM {table} WHERE _offset = 19")
    shares = quick._shares

    def short(ranges: Sequence[Range], cores: int) -> list[list[Range]]:
        return shares([replace(each, until=each.until - 1) for each in ranges], cores)

    monkeypatch.setattr(quick, "_shares", short)
    found = audited(flow)
    assert counts(found) == {"missing": 1}
    assert found.unknown == (f"two readings of {flow.name}/0 [0, 20) do not agree",)
    monkeypatch.setattr(quick.Quick, "_unsure", lambda *_: set())  # the twin: nobody else reads
    assert audited(flow).verdict is Verdict.VALID
