"""What an error of PostgreSQL's means: a row, the table, or nothing but the moment."""

import itertools
from collections.abc import Iterator

import adbc_driver_postgresql.dbapi as adbc
import psycopg
import pyarrow as pa
import pytest
from adbc_driver_manager import AdbcStatusCode
from pyspark.sql import types as t

from tallygate import Postgres, Stack
from tallygate.core.blocks import BlockPlan
from tallygate.core.offsets import Range
from tallygate.postgres.arrow import (
    DriverRefusalError,
    driver_refusal,
    is_gone,
    is_lost,
    is_refusal,
    pooled,
)
from tallygate.targets.base import RowShape, UnknownOutcomeError, WriteBatch, Written
from tallygate.targets.batch_input import BlockInput
from tallygate.targets.postgres.target import PostgresTarget

_names = (f"unsendable_{number}" for number in itertools.count())

ROWS = ("21000", "22001", "22021", "23505", "23514", "27000", "44000", "54000", "P0001", "TG001")
TABLE = ("0A000", "28P01", "3D000", "42501", "42703", "42P01", "42804", "55000")
MOMENT = ("08006", "25006", "25P03", "40001", "40P01", "53300", "55P03", "57P01", "58030", "XX000")


def _error(state: str) -> psycopg.Error:
    """An error that the server might have sent."""
    try:
        kind: type[psycopg.Error] = psycopg.errors.lookup(state)
    except KeyError:
        kind = psycopg.DatabaseError
    error = kind("said by the server")
    error.sqlstate = state
    return error


@pytest.mark.parametrize("state", [*ROWS, *TABLE, *MOMENT])
def test_each_error_means_one_thing(state: str) -> None:
    error = _error(state)
    found = (is_refusal(error), is_gone(error), is_lost(error))
    assert found == (state in ROWS, state in TABLE, state in MOMENT)


def test_what_the_driver_cannot_send_is_a_row_that_is_refused() -> None:
    assert is_refusal(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"))
    assert is_refusal(psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes"))
    assert is_refusal(psycopg.ProgrammingError("cannot adapt type 'object'"))
    assert not is_refusal(psycopg.OperationalError("the connection is lost"))
    assert is_lost(psycopg.OperationalError("the connection is lost"))


@pytest.mark.parametrize("status", [each for each in AdbcStatusCode if each.value])
def test_what_adbc_says_without_a_state_means_what_the_connection_does_then(
    status: AdbcStatusCode,
) -> None:
    error = adbc.OperationalError("said by the driver", status_code=status)
    gone = status is AdbcStatusCode.NOT_FOUND
    assert (is_refusal(error), is_gone(error), is_lost(error)) == (False, gone, not gone)
    refusal = driver_refusal(error)
    assert (refusal is None) == gone
    if refusal is not None:
        assert (is_refusal(refusal), is_gone(refusal), is_lost(refusal)) == (True, False, False)
        assert str(refusal) == str(error)


@pytest.mark.parametrize("state", [*ROWS, *TABLE, *MOMENT])
def test_an_error_with_a_state_means_the_same_on_a_live_connection(state: str) -> None:
    assert driver_refusal(_error(state)) is None


COLUMNS = pa.schema([("at", pa.timestamp("us", "UTC"))])
EARLIEST = -(2**63)
"""A time of Spark's that ADBC cannot send, of which it says nothing but that it cannot."""


def _times(*micros: int) -> pa.RecordBatch:
    times = pa.array(micros, pa.int64()).cast(COLUMNS.field(0).type)
    return pa.RecordBatch.from_arrays([times], schema=COLUMNS)


def _ended_meanwhile(dsn: str, pid: int) -> Iterator[pa.RecordBatch]:
    yield _times(*range(100_000))
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))
    for _ in range(100):
        yield _times(*range(100_000))


def test_the_driver_refuses_where_the_connection_still_answers(stack: Stack) -> None:
    with psycopg.connect(stack.dsn) as session:
        session.execute("CREATE TABLE IF NOT EXISTS times (at timestamptz)")
    with pytest.raises(DriverRefusalError), pooled(stack.dsn) as connection:
        connection.ingest("public", "times", [_times(0, EARLIEST)], COLUMNS)
    with pytest.raises(adbc.Error) as caught, pooled(stack.dsn) as connection:
        ((pid,),) = connection.rows("SELECT pg_backend_pid()")
        connection.ingest("public", "times", _ended_meanwhile(stack.dsn, pid), COLUMNS)
    assert is_lost(caught.value)


@pytest.mark.parametrize("driver_rows", [20_000, 0], ids=["driver", "partition"])
def test_a_value_that_the_driver_cannot_send_makes_its_row_a_dead_letter(
    stack: Stack, driver_rows: int
) -> None:
    name = next(_names)
    fields = [("id", t.LongType()), ("at", t.TimestampType()), ("_topic", t.StringType())]
    fields += [("_partition", t.IntegerType()), ("_offset", t.LongType())]
    shape = RowShape(
        schema=t.StructType([t.StructField(*each) for each in fields]),
        has_coordinates=True,
        narrow=True,
        stateful=False,
    )
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array([0, 1, 2]),
            _times(0, EARLIEST, 2).column(0),
            pa.array(["t"] * 3),
            pa.array([0] * 3, pa.int32()),
            pa.array([0, 1, 2]),
        ],
        names=[name for name, _ in fields],
    )
    target = PostgresTarget(
        Postgres(name, driver_rows=driver_rows),
        pipeline=name,
        delivery="exactly-once",
        dsn=stack.dsn,
        timeout=10,
    )
    target.open(shape)
    claim = target.take_over(shape, "checkpoint")
    left = (Range("t", 0, 0, 3),)
    plan = BlockPlan(left=left, has_coordinates=True, trim=False, decoder=None)

    def write() -> Written:
        given = BlockInput(plan, [[rows]])
        return target.write(claim, WriteBatch(id=0, left=left, new=left, input=given))

    with pytest.raises(UnknownOutcomeError):
        write()
    assert write().rows == 2
    with psycopg.connect(stack.dsn) as session:
        found = session.execute(f"SELECT id FROM {name} ORDER BY id".encode()).fetchall()
    assert found == [(0,), (2,)]
    ((cause,),) = [target.first_causes(left, 2)]
    assert "timestamp" in cause
