"""A connection to PostgreSQL through which Arrow data flows by binary COPY.

Rows, dead letters and the ledger must share one transaction, so everything that a batch commits
goes through here: blocks of Arrow by `ingest`, the few statements of the ledger by `rows`.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import adbc_driver_postgresql.dbapi as adbc
import psycopg
import pyarrow as pa
from adbc_driver_manager import AdbcStatusCode

from tallygate.pool import Pool
from tallygate.postgres.connect import WATCHFUL, watchful
from tallygate.postgres.plain import PlainConnection
from tallygate.postgres.sessions import rename

NOT_FOUND = AdbcStatusCode.NOT_FOUND


class ArrowConnection:
    """Statements belong to a transaction that begins by itself and ends by commit or rollback."""

    named = ""
    """After which run the session is named."""

    def __init__(self, dsn: str) -> None:
        self._connection = adbc.connect(watchful(dsn), autocommit=True)
        self._cursor = self._connection.cursor()
        self.rows(WATCHFUL)
        self._transaction = self._connection.adbc_connection
        self._transaction.set_autocommit(False)

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement with $1, $2…; return what it returns. A value may be an array of
        Arrow's, which becomes one of PostgreSQL's."""
        self._cursor.execute(statement, _bound(values) if values else None)
        return self._cursor.fetchall() if self._cursor.description else []

    def ingest(
        self, schema: str, table: str, blocks: Iterable[pa.RecordBatch], like: pa.Schema
    ) -> int:
        """COPY blocks into a table, as they come; return how many rows."""
        reader = pa.RecordBatchReader.from_batches(like, blocks)
        return int(self._cursor.adbc_ingest(table, reader, mode="append", db_schema_name=schema))

    def commit(self) -> None:
        self._transaction.commit()

    def rollback(self) -> None:
        self._transaction.rollback()

    def close(self) -> None:
        """Close without complaint: the connection may be broken already."""
        for part in (self._cursor, self._connection):
            with contextlib.suppress(adbc.Error, RuntimeError):
                part.close()


def _bound(values: tuple[Any, ...]) -> pa.RecordBatch:
    """The values as a single row."""
    columns = [
        pa.ListArray.from_arrays(pa.array([0, len(each)], pa.int32()), each)
        if isinstance(each, pa.Array)
        else pa.array([each])
        for each in values
    ]
    return pa.RecordBatch.from_arrays(columns, names=[str(n) for n, _ in enumerate(columns)])


Connected = ArrowConnection | PlainConnection
_connections: Pool[Connected] = Pool()


@contextlib.contextmanager
def pooled(dsn: str, *, careful: bool = False, name: str = "") -> Iterator[Connected]:
    """A connection of one's own for a while; a careful one has savepoints. If two shared one, one
    would commit the other's rows. What is not committed at the end is rolled back. The session
    gets the `name` of a run, by which a newer one can find it (`postgres.sessions`)."""

    def connect() -> Connected:
        return PlainConnection.open(dsn) if careful else ArrowConnection(dsn)

    with _connections.taken((dsn, careful), connect, _is_fit) as connection:
        if connection.named != name:
            connection.rows(rename(name))
            connection.commit()  # a rollback would undo it
            connection.named = name
        try:
            yield connection
        except Exception as error:
            refusal = driver_refusal(error)
            if refusal is not None and _answers(connection):
                raise refusal from error
            raise
        connection.rollback()


class DriverRefusalError(Exception):
    """An error without a SQLSTATE on a connection that still answers: the driver cannot send what
    it was given, or PostgreSQL has refused it without a word that the driver hands on."""


def driver_refusal(error: Exception) -> DriverRefusalError | None:
    """What an error means if the connection answers after it; None if the error says that itself.
    By its looks alone it may as well mean that the connection is lost."""
    explained = not is_lost(error) or getattr(error, "sqlstate", None)
    return None if explained else DriverRefusalError(str(error))


def _answers(connection: Connected) -> bool:
    try:
        connection.rollback()
        return connection.rows("SELECT 1") == [(1,)]
    except (adbc.Error, psycopg.Error):
        return False


def _is_fit(connection: Connected) -> bool:
    """Whether the server has not ended the connection while it was idle, as far as that shows."""
    return isinstance(connection, ArrowConnection) or connection.is_quiet()


_PASSING = ("08", "40", "53", "57", "58", "XX")
"""Classes of errors that say nothing of what was sent: the server went away, or had no room."""
_PASSING_STATES = ("25006", "25P03", "55P03")
"""It became one that only reads, or ended what was idle or waited too long."""
_OF_STATEMENTS = ("0A", "25", "26", "28", "2D", "34", "3B", "3D", "3F", "42", "55", "F0", "HV")
"""Classes that mean the table, the statement or the rights, whatever the row."""
_ROW_SECURITY = "42501"
"""Also what a role hears that may not write at all."""
_UNFIT = (DriverRefusalError, psycopg.DataError, UnicodeError, OverflowError, pa.ArrowInvalid)
"""What is raised for values that cannot be sent."""


def is_lost(error: BaseException) -> bool:
    """Whether the server went away, or broke off by itself: the outcome is unknown. An error
    without a SQLSTATE may also be the driver's own, for which `pooled` asks whether the connection
    answers."""
    if not isinstance(error, adbc.Error | psycopg.Error) or is_gone(error) or is_refusal(error):
        return False
    state = error.sqlstate
    return not state or state[:2] in _PASSING or state in _PASSING_STATES


def is_gone(error: BaseException) -> bool:
    """Whether no row can be written: a table or a column is not there (any more), or a right."""
    if getattr(error, "status_code", None) is NOT_FOUND:
        return True
    if not isinstance(error, adbc.Error | psycopg.Error) or is_refusal(error):
        return False
    state = error.sqlstate or ""
    return state[:2] in _OF_STATEMENTS and state not in _PASSING_STATES


def is_refusal(error: BaseException) -> bool:
    """Whether it is for what a row holds that it was refused.

    **A bad record neither blocks nor vanishes.** There is no end to the ways in which a row can be
    refused: its data, a constraint, a trigger with a code of its own, an index that takes no more
    than so many bytes. So every error on a live connection counts that is not known to mean
    something else."""
    if isinstance(error, _UNFIT):
        return True
    if not isinstance(error, adbc.Error | psycopg.Error):
        return False
    state = error.sqlstate
    if not state:
        return isinstance(error, psycopg.ProgrammingError | psycopg.NotSupportedError)
    if state == _ROW_SECURITY:
        return _is_by_row_security(error)
    return state[:2] not in (*_PASSING, *_OF_STATEMENTS)


def _is_by_row_security(error: BaseException) -> bool:
    if isinstance(error, psycopg.Error) and error.diag.source_function is not None:
        return error.diag.source_function == "ExecWithCheckOptions"
    return "row-level security" in str(error)
