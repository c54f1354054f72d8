"""What an error of PostgreSQL's means: a row, the table, or nothing but the moment."""

import psycopg
import pytest

from tallygate.postgres.arrow import is_gone, is_lost, is_refusal

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
