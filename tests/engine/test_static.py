"""Static sides: taken up when they change, and never in the middle of a batch."""

import threading
from pathlib import Path
from typing import Any

import pytest

from fixtures.flows import Flow
from tallygate.core.ledger import Claim
from tallygate.engine.lookup_tables import Statics
from tallygate.engine.status import request_stop
from tallygate.errors import ConfigError, QueryError
from tallygate.targets.base import WriteBatch, Written
from tallygate.targets.postgres.target import PostgresTarget
from tallygate.waiting import wait_until

NAMED = "SELECT id, names.name FROM source LEFT JOIN names ON source.account = names.account"
BY_NAME = "SELECT name, count(*) FROM {table} GROUP BY 1 ORDER BY 1"


def _side(flow: Flow, name: str) -> dict[str, Any]:
    """A file that gives every account this name."""
    file = flow.folder / "names.csv"
    file.write_text("".join(f"a{number},{name}\n" for number in range(5)))
    return {"names": {"file": str(file), "schema": "account string, name string"}}


def _refreshed(side: dict[str, Any], when: str = "on change") -> dict[str, Any]:
    return {"names": {**side["names"], "refresh": when}}


def test_a_side_is_kept_as_it_was_unless_it_is_to_be_refreshed(flow: Flow) -> None:
    side = _side(flow, "old")
    flow.send(10)
    flow.run(transform=NAMED, static=side)
    _side(flow, "new")
    flow.send(10)
    flow.run(transform=NAMED, static=side)
    assert flow.rows(BY_NAME) == [("old", 20)]
    flow.send(10)
    flow.run(transform=NAMED, static=_refreshed(side))
    assert flow.rows(BY_NAME) == [("new", 10), ("old", 20)]


@pytest.mark.parametrize("when", ["on change", "1s"])
def test_a_change_is_taken_up_while_running(flow: Flow, when: str) -> None:
    side = _refreshed(_side(flow, "old"), when)
    flow.send(10)
    notes: list[str] = []
    pipeline = flow.pipeline(transform=NAMED, static=side)
    thread = threading.Thread(
        target=lambda: pipeline.run(settings=flow.settings, spark=flow.spark, note=notes.append)
    )
    thread.start()
    try:
        wait_until(lambda: _count(flow) == 10, 60, "nothing was written")
        _side(flow, "new")
        wait_until(lambda: bool(notes), 30, "the change was not seen")
        flow.send(10)
        wait_until(lambda: _count(flow) == 20, 60, "nothing more was written")
        request_stop(flow.name, flow.settings)
    finally:
        thread.join(60)
    assert "a static side has changed" in notes[0]
    assert flow.rows(BY_NAME) == [("new", 10), ("old", 10)]


def _count(flow: Flow) -> int:
    there = flow.rows(f"SELECT to_regclass('public.\"{flow.name}\"')::text")
    return int(flow.rows("SELECT count(*) FROM {table}")[0]) if there[0] else 0


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "forgotten"])
def test_a_batch_that_is_computed_again_sees_what_it_saw(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """With the versions forgotten it sees the new names: the twin that shows the test can see."""
    side = _refreshed(_side(flow, "old"))
    flow.send(10)
    flow.run(transform=NAMED, static=side)
    flow.send(10)
    write = PostgresTarget.write

    def fail(self: PostgresTarget, claim: Claim, batch: WriteBatch) -> Written:
        raise RuntimeError("the driver dies here")

    monkeypatch.setattr(PostgresTarget, "write", fail)
    with pytest.raises(QueryError):
        flow.run(transform=NAMED, static=side)
    monkeypatch.setattr(PostgresTarget, "write", write)
    _side(flow, "new")
    if not kept:
        monkeypatch.setattr(
            Statics, "_versions", lambda self, at: {"names": self._copy(at, "names")}
        )
    flow.send(10)
    flow.run(transform=NAMED, static=side)
    expected = [("new", 10), ("old", 20)] if kept else [("new", 20), ("old", 10)]
    assert flow.rows(BY_NAME) == expected


def test_copies_that_no_batch_of_the_log_saw_are_removed(flow: Flow) -> None:
    """Spark keeps the last batches of its log; there are only two here."""
    side = _refreshed(_side(flow, "n0"))
    copies: list[int] = []
    for number in range(1, 5):
        flow.send(10)
        flow.run(transform=NAMED, static=side)
        logged = (flow.checkpoint / "offsets").glob("[0-9]*")
        for old in sorted(logged, key=lambda path: int(path.name))[:-2]:
            old.unlink()
        copies.append(len(list((flow.checkpoint / "static" / "names").iterdir())))
        _side(flow, f"n{number}")
    assert copies == [1, 2, 3, 3]
    assert flow.rows(BY_NAME) == [(f"n{number}", 10) for number in range(4)]


def test_a_table_in_postgres_can_be_the_static_side(flow: Flow) -> None:
    flow.execute(f'CREATE TABLE public."{flow.name}_names" (account text, name text)')
    flow.execute(f"INSERT INTO public.\"{flow.name}_names\" VALUES ('a1', 'one'), ('a2', 'two')")
    side = {"names": {"table": f'public."{flow.name}_names"', "refresh": "on change"}}
    flow.send(10)
    flow.run(transform=NAMED, static=side)
    assert flow.rows(BY_NAME) == [("one", 2), ("two", 2), (None, 6)]
    flow.execute(f"UPDATE public.\"{flow.name}_names\" SET name = 'uno' WHERE account = 'a1'")
    flow.send(10)
    flow.run(transform=NAMED, static=side)
    assert flow.rows(BY_NAME) == [("one", 2), ("two", 4), ("uno", 2), (None, 12)]


@pytest.mark.system
def test_a_delta_table_can_be_the_static_side(flow: Flow) -> None:
    place = str(flow.folder / "names.delta")

    def name(account: str, called: str) -> None:
        row = flow.spark.createDataFrame([(account, called)], "account string, name string")
        row.write.format("delta").mode("append").save(place)

    name("a1", "one")
    side = {"names": {"delta": place, "refresh": "on change"}}
    flow.send(10)
    flow.run(transform=NAMED, static=side)
    assert flow.rows(BY_NAME) == [("one", 2), (None, 8)]
    name("a2", "two")
    flow.send(10)
    flow.run(transform=NAMED, static=side)
    assert flow.rows(BY_NAME) == [("one", 4), ("two", 2), (None, 14)]


def test_a_side_that_is_not_there_is_said(flow: Flow, tmp_path: Path) -> None:
    side = {"names": {"file": str(tmp_path / "none.csv"), "schema": "account string, name string"}}
    with pytest.raises(ConfigError, match=r"static\.names of .*none\.csv does not exist"):
        flow.run(transform=NAMED, static=side)
