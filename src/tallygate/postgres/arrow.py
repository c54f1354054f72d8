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

__all__ = ["ArrowConnection", "Connected", "is_gone", "is_lost", "is_refusal", "pooled"]

NOT_FOUND = AdbcStatusCode.NOT_FOUND


class ArrowConnection:
    """Statements belong to a transaction that begins by itself and ends by commit or rollback."""

    def __init__(self, dsn: str) -> None:
        self._connection = adbc.connect(watchful(dsn), autocommit=True)
        self._cursor = self._connection.cursor()
        self.rows(WATCHFUL)
        self._transaction = self._connection.adbc_connection
        self._transaction.set_autocommit(False)

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement with $1, $2…; return what it returns."""
        self._cursor.execute(statement, values or None)
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


Connected = ArrowConnection | PlainConnection
_connections: Pool[Connected] = Pool()


@contextlib.contextmanager
def pooled(dsn: str, *, careful: bool = False) -> Iterator[Connected]:
    """A connection of one's own for a while; a careful one has savepoints. If two shared one, one
    would commit the other's rows. What is not committed at the end is rolled back."""

    def connect() -> Connected:
        return PlainConnection.open(dsn) if careful else ArrowConnection(dsn)

    with _connections.taken((dsn, careful), connect) as connection:
        yield connection
        connection.rollback()


def is_lost(error: BaseException) -> bool:
    """Whether the server went away, or broke off by itself: the outcome is unknown. It may also
    have become one that only reads, or have ended what was idle or waited too long."""
    if not isinstance(error, adbc.Error | psycopg.Error) or is_gone(error) or is_refusal(error):
        return False
    state = error.sqlstate
    return (
        not state
        or state[:2] in ("08", "40", "53", "57", "XX")
        or state in ("25006", "25P03", "55P03")
    )


def is_gone(error: BaseException) -> bool:
    """Whether a table or a column is not there (any more)."""
    if getattr(error, "status_code", None) is NOT_FOUND:
        return True
    return isinstance(error, adbc.Error | psycopg.Error) and (error.sqlstate or "")[:2] == "42"


def is_refusal(error: BaseException) -> bool:
    """Whether a row was refused: its data (class 22) or a constraint (class 23)."""
    if isinstance(error, psycopg.DataError):
        return True
    state = error.sqlstate if isinstance(error, adbc.Error | psycopg.Error) else None
    return (state or "")[:2] in ("22", "23")
