"""The audit of a folder finds what was planted into its files, and nothing in one untouched."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fixtures.audits import abort, audited, counts
from fixtures.flows import Flow
from tallygate import Parquet
from tallygate.auditing.verdict import Verdict
from tallygate.targets.parquet.folder import LEDGER, Folder

WINDOWS = [
    {"sql": "SELECT *, timestamp_seconds(id * 10) AS at FROM source"},
    {"watermark": {"at": "1 minute"}},
    {"window": {"on": "at", "size": "1 minute"}, "aggregate": {"payments": "count(*)"}},
]


@contextmanager
def _planted(folder: Path) -> Iterator[None]:
    """What happens inside is undone afterwards."""
    kept = folder.with_name("kept")
    shutil.copytree(folder, kept)
    yield
    shutil.rmtree(folder)
    kept.rename(folder)


def _rewrite(folder: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    """Change the rows of the first file."""
    file = min(folder.glob("commit=*/part-*.parquet"))
    table = pq.read_table(file, partitioning=None)
    pq.write_table(pa.Table.from_pylist(change(table.to_pylist()), schema=table.schema), file)


def _change_ledger(folder: Path, by: int, place: str) -> None:
    newest = Folder(folder).commit(Folder(folder).numbers()[-1]) / LEDGER
    entry = json.loads(newest.read_text())
    for position in entry["state"]["positions"]:
        position[2] += by if str(position[1]) == place else 0
    newest.write_text(json.dumps(entry))


def test_what_was_planted_is_found(flow: Flow) -> None:
    folder = flow.folder / "rows"
    fields = {"sink": Parquet(str(folder)), "transform": "SELECT * FROM source WHERE id <> 7"}
    flow.send_text(["bad"])
    abort(flow.stack.cluster.connection, flow.name, '{"id": 1, "account": "x"}', partition=0)
    flow.send(90, partition=0)
    flow.run(**fields)
    whole = audited(flow, **fields)
    assert (whole.verdict, whole.records, whole.rows) == (Verdict.VALID, 91, 89)
    assert (whole.filtered, whole.letters) == (1, 1)

    def change(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        assert [row["id"] for row in rows[:3]] == [0, 1, 2]
        never = {**rows[0], "id": 1, "account": "x", "_offset": rows[0]["_offset"] - 2}
        return [rows[1], rows[1], {**rows[2], "account": "x"}, *rows[3:], never]

    with _planted(folder):
        _rewrite(folder, change)
        found = counts(audited(flow, **fields))
        assert found == {"missing": 1, "duplicate": 1, "different": 1, "aborted": 1}
    with _planted(folder):
        file = min(folder.glob("commit=*/part-*.parquet"))
        shutil.copy(file, folder / "copy.parquet")
        assert counts(audited(flow, **fields)) == {"duplicate": 89}
    with _planted(folder):
        _change_ledger(folder, -1, "0")
        assert counts(audited(flow, **fields)) == {"misplaced": 1, "overlap": 1}
    with _planted(folder):
        _change_ledger(folder, 5, "0")
        assert counts(audited(flow, **fields)) == {"overclaimed": 5, "gap": 5}
    assert audited(flow, **fields).verdict is Verdict.VALID


@pytest.mark.parametrize("coordinates", [True, False], ids=["placed", "plain"])
def test_a_folder_without_rows_can_be_audited(flow: Flow, coordinates: bool) -> None:
    folder = flow.folder / "rows"
    nested = "SELECT id, array(account) AS listed, named_struct('id', id) AS inner FROM source"
    fields = {"sink": Parquet(str(folder), coordinates=coordinates), "transform": nested}
    flow.run(**fields)
    empty = audited(flow, **fields)
    assert (empty.verdict, empty.records, empty.rows) == (Verdict.VALID, 0, 0), empty
    assert "the ledger claims no offset" in empty.notes[0]
    flow.send_text(["bad", "worse"])
    flow.run(**fields)
    dead = audited(flow, **fields)
    assert (dead.verdict, dead.letters, dead.rows) == (Verdict.VALID, 2, 0), dead
    assert "all 2 records are dead letters" in dead.notes[0]


def test_nested_columns_are_compared(flow: Flow) -> None:
    folder = flow.folder / "rows"
    nested = (
        "SELECT id, array(account) AS listed, named_struct('id', id) AS inner, "
        "map(account, id, 'b', 1) AS by_name FROM source"
    )
    fields = {"sink": Parquet(str(folder)), "transform": nested}
    flow.send(30, partition=0)
    flow.run(**fields)
    whole = audited(flow, **fields)
    assert (whole.verdict, whole.not_compared) == (Verdict.VALID, ())

    def change(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        first, second, third, fourth, *rest = rows
        return [
            {**first, "listed": []},
            {**second, "inner": {"id": None}},
            {**third, "by_name": [("b", 2)]},
            {**fourth, "by_name": fourth["by_name"][::-1]},
            *rest,
        ]

    _rewrite(folder, change)
    assert counts(audited(flow, **fields)) == {"different": 3}


def test_windows_that_the_watermark_has_closed_are_compared(flow: Flow) -> None:
    """Those still open are in the recomputation and not in the folder, and that is right; and
    a record that came too late makes differences unknown, since it may be why."""
    folder = flow.folder / "rows"
    fields = {"sink": Parquet(str(folder)), "transform": WINDOWS}
    flow.send(300, partition=0)
    flow.run(**fields)
    whole = audited(flow, **fields)
    assert (whole.verdict, whole.records, whole.rows) == (Verdict.VALID, 300, 32)
    with _planted(folder):
        _rewrite(folder, lambda rows: [rows[0], *rows[2:]])
        assert counts(audited(flow, **fields)) == {"missing": 1}
    with _planted(folder):
        _rewrite(folder, lambda rows: [{**rows[0], "payments": 99}, *rows])
        assert counts(audited(flow, **fields)) == {"unexpected": 1}
    flow.sent = 0
    flow.send(1, partition=0)
    flow.run(**fields)
    late = audited(flow, **fields)
    assert late.verdict is Verdict.UNKNOWN
    assert late.unknown == (
        "1 missing, 1 unexpected: 1 records may have been too late for the watermark",
    )
