"""A rebuild is whole or it changes nothing, whatever the table is called."""

import itertools
import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest
from pyspark.sql import types as t

from fixtures.flows import Flow
from tallygate import Postgres, Stack
from tallygate.core.ledger import Claim
from tallygate.engine.progress import Progress
from tallygate.engine.rebuild import _forget, _swap, rebuild
from tallygate.errors import TallygateError, TargetError
from tallygate.postgres.sessions import rename, session_name
from tallygate.postgres.tables import LOCK
from tallygate.targets.base import RowShape
from tallygate.targets.postgres.table import TableName
from tallygate.targets.postgres.target import PostgresTarget

_names = (f"rebuilt_{number}" for number in itertools.count())


@pytest.mark.parametrize("sink", ["table", "parquet"])
def test_a_rebuild_that_is_stopped_changes_nothing(flow: Flow, sink: str) -> None:
    place = flow.name if sink == "table" else str(flow.folder / "rows")
    pipeline = flow.pipeline(sink={sink: place})
    flow.send(250)
    pipeline.run(until="available", settings=flow.settings, spark=flow.spark)

    def stop(progress: Progress) -> None:
        if progress.batch == 0:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(TallygateError, match="was stopped after .* nothing is changed"):
        rebuild(pipeline, settings=flow.settings, spark=flow.spark, on_progress=stop)
    assert _ids(flow, sink, place) == list(range(250))
    flow.send(50)
    pipeline.run(until="available", settings=flow.settings, spark=flow.spark)
    assert _ids(flow, sink, place) == list(range(300))
    rebuild(pipeline, settings=flow.settings, spark=flow.spark)
    assert _ids(flow, sink, place) == list(range(300))


def _ids(flow: Flow, sink: str, place: str) -> list[Any]:
    if sink == "table":
        return flow.rows()
    return sorted(row.id for row in flow.spark.read.parquet(place).select("id").collect())


@pytest.mark.parametrize("length", [54, 58, 63])
def test_a_table_whose_name_leaves_no_room_for_another(flow: Flow, length: int) -> None:
    """PostgreSQL cuts names off after 63 bytes: those of the new and the old table must differ
    from this one's, which must not be the one that is dropped."""
    table = "t" * (length - 3) + f"_{length}"
    pipeline = flow.pipeline(sink=Postgres(table))
    flow.send(20)
    pipeline.run(until="available", settings=flow.settings, spark=flow.spark)
    flow.execute(f"UPDATE {table} SET account = 'old'")
    names = set()
    for _ in range(2):
        done = rebuild(pipeline, settings=flow.settings, spark=flow.spark)
        names.add(done.before)
    old = flow.rows(f"SELECT DISTINCT account FROM {min(map(str, names))}")
    assert old == ["old"], "what was replaced is kept"
    assert len(names) == 2
    assert len(flow.rows(f"SELECT id FROM {table} WHERE account <> 'old'")) == 20


def _taken_over(dsn: str, name: str, table: str) -> Claim:
    """A pipeline with a table and a run."""
    shape = RowShape(
        schema=t.StructType([t.StructField("id", t.LongType())]),
        has_coordinates=False,
        narrow=False,
        stateful=True,
    )
    target = PostgresTarget(
        Postgres(table),
        pipeline=name,
        delivery="exactly-once",
        dsn=dsn,
        timeout=10,
        lock_wait=0.5,
    )
    target.open(shape)
    return target.take_over(shape, "checkpoint")


@contextmanager
def _hanging(dsn: str, name: str, statement: str) -> Iterator[psycopg.Connection]:
    """A session that did this in a transaction, and hangs."""
    with closing(psycopg.connect(dsn, application_name="a report")) as session:
        if name:
            session.execute(rename(name).encode())
            session.commit()
        session.execute(statement.encode())
        yield session


def _swapped(dsn: str, name: str) -> str | None:
    table, copy = TableName("public", name), TableName("public", f"{name}__rebuild")
    return _swap(dsn, name, f"{name}.rebuild", table, copy, wait=0.5)


HELD = {
    "the pipeline's row": "SELECT FROM tallygate.pipelines WHERE name = '{0}' FOR SHARE",
    "the table": "LOCK TABLE {0} IN ROW EXCLUSIVE MODE",
}


@pytest.mark.parametrize("held", HELD)
def test_a_run_that_hangs_does_not_keep_the_rebuilt_table_from_its_place(
    small_stack: Stack, held: str
) -> None:
    name, dsn = next(_names), small_stack.dsn
    claim = _taken_over(dsn, name, name)
    _taken_over(dsn, f"{name}.rebuild", f"{name}__rebuild")
    with _hanging(dsn, session_name(claim), HELD[held].format(name)) as session:
        assert _swapped(dsn, name) == f"{name}__before_2"
        with pytest.raises(psycopg.OperationalError):
            session.execute("SELECT 1")


def test_another_program_that_holds_the_table_is_named_and_nothing_is_changed(
    small_stack: Stack,
) -> None:
    name, dsn = next(_names), small_stack.dsn
    _taken_over(dsn, name, name)
    _taken_over(dsn, f"{name}.rebuild", f"{name}__rebuild")
    with _hanging(dsn, "", HELD["the table"].format(name)) as session:
        pid = session.info.backend_pid
        with pytest.raises(TargetError, match=rf"nothing is changed.*pid {pid} .*'a report'"):
            _swapped(dsn, name)
        session.rollback()
        assert _swapped(dsn, name) == f"{name}__before_2"


def test_a_rebuild_is_begun_again_although_the_one_before_hangs(small_stack: Stack) -> None:
    name, dsn = next(_names), small_stack.dsn
    copy = f"{name}__rebuild"
    claim = _taken_over(dsn, f"{name}.rebuild", copy)
    with _hanging(dsn, session_name(claim), HELD["the table"].format(copy)):
        _forget(dsn, f"{name}.rebuild", TableName("public", copy), wait=0.5)


def test_the_ledgers_tables_are_not_waited_for_without_an_end(small_stack: Stack) -> None:
    """A start brings them to its version, for which it needs them for itself."""
    name, dsn = next(_names), small_stack.dsn
    claim = _taken_over(dsn, name, name)
    held = f"SELECT pg_advisory_xact_lock({LOCK})"
    with _hanging(dsn, session_name(claim), held):
        claim = _taken_over(dsn, name, name)
    with _hanging(dsn, "", held), pytest.raises(TargetError, match="'a report', idle in transac"):
        _taken_over(dsn, name, name)
