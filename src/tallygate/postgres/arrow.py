"""A connection to PostgreSQL through which Arrow data flows by binary COPY.

Rows, dead letters and the ledger must share one transaction, so everything that a batch commits
goes through here: blocks of Arrow by `ingest`, the few statements of the ledger by `rows`.
"""

import contextlib
from collections.abc import Iterable
from typing import Any

import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa
from adbc_driver_manager import AdbcStatusCode

__all__ = ["ArrowConnection", "is_gone", "is_lost", "is_refusal", "pooled"]

NOT_FOUND = AdbcStatusCode.NOT_FOUND


class ArrowConnection:
    """Statements belong to a transaction that begins by itself and ends by commit or rollback."""

    def __init__(self, dsn: str) -> None:
        self._connection = adbc.connect(dsn)
        self._cursor = self._connection.cursor()

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
        self._connection.commit()

    def rollback(self) -> None:
        self._connection.rollback()

    def close(self) -> None:
        """Close without complaint: the connection may be broken already."""
        for part in (self._cursor, self._connection):
            with contextlib.suppress(adbc.Error, RuntimeError):
                part.close()


_open: dict[str, ArrowConnection] = {}


class pooled:  # noqa: N801 - used as a function: `with pooled(dsn) as connection`
    """This process's connection to `dsn`. Whatever fails inside closes it: the state of a
    connection after a failure is not worth a guess. What is not committed at the end is rolled
    back."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def __enter__(self) -> ArrowConnection:
        if self._dsn not in _open:
            _open[self._dsn] = ArrowConnection(self._dsn)
        return _open[self._dsn]

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is None:
            _open[self._dsn].rollback()
        else:
            _open.pop(self._dsn).close()


def is_lost(error: BaseException) -> bool:
    """Whether the server went away, or broke off by itself: the outcome is unknown."""
    if not isinstance(error, adbc.Error) or is_gone(error):
        return False
    state = error.sqlstate
    return not state or state[:2] in ("08", "40", "53", "57", "XX")


def is_gone(error: BaseException) -> bool:
    """Whether a table or a column is not there (any more)."""
    if not isinstance(error, adbc.Error):
        return False
    return (error.sqlstate or "")[:2] == "42" or error.status_code is NOT_FOUND


def is_refusal(error: BaseException) -> bool:
    """Whether the server refused a row: its data (class 22) or a constraint (class 23)."""
    return isinstance(error, adbc.Error) and (error.sqlstate or "")[:2] in ("22", "23")
