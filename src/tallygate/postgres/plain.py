"""A connection to PostgreSQL for careful work: slower than Arrow's, but with savepoints.

After an error ADBC lets a transaction only be rolled back as a whole. Where single rows may be
refused and the rest is to be kept, rows go by a text COPY of psycopg's instead. It takes the same
statements and the same blocks.
"""

import select
from collections.abc import Iterable
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from tallygate.postgres.connect import open_watchful

JSON = {b"json": b"1"}
"""Marks a field whose texts are jsonb's binary form: a version byte, then the text."""


class PlainConnection:
    """Statements belong to a transaction that begins by itself and ends by commit or rollback."""

    named = ""
    """After which run the session is named."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    @classmethod
    def open(cls, dsn: str) -> "PlainConnection":
        return cls(open_watchful(dsn))

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement with $1, $2…; return what it returns. A value may be an array of
        Arrow's, which becomes one of PostgreSQL's."""
        given = [each.to_pylist() if isinstance(each, pa.Array) else each for each in values]
        with psycopg.RawCursor(self._connection) as cursor:
            cursor.execute(statement.encode(), given or None)
            return cursor.fetchall() if cursor.description else []

    def ingest(
        self, schema: str, table: str, blocks: Iterable[pa.RecordBatch], like: pa.Schema
    ) -> int:
        """COPY blocks into a table; return how many rows."""
        names = sql.SQL(", ").join(sql.Identifier(name) for name in like.names)
        into = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(schema, table), names)
        json = {field.name for field in like if field.metadata == JSON}
        count = 0
        with self._connection.cursor() as cursor, cursor.copy(into) as copy:
            for block in blocks:
                for row in shown(block).to_pylist():
                    copy.write_row([_text(value, name in json) for name, value in row.items()])
                count += block.num_rows
        return count

    def is_quiet(self) -> bool:
        """Whether the server has said nothing since the last answer. What it says to one that is
        idle is that the connection ends."""
        if self._connection.closed:
            return False
        socket = select.poll()
        socket.register(self._connection.fileno(), select.POLLIN)
        return not socket.poll(0)

    def commit(self) -> None:
        self._connection.commit()

    def rollback(self) -> None:
        self._connection.rollback()

    def close(self) -> None:
        self._connection.close()


def shown(block: pa.RecordBatch) -> pa.RecordBatch:
    """The block with its times as text: those of Python end with the year 9999, and those of
    PostgreSQL do not."""
    return pa.RecordBatch.from_arrays(
        [_shown(column) for column in block.columns], names=block.schema.names
    )


def _shown(column: pa.Array) -> pa.Array:
    if pa.types.is_date(column.type):
        return column.cast(pa.string())
    if not pa.types.is_timestamp(column.type):
        return column
    # Without its zone, for whose rules Arrow would look in files of the system.
    text = column.cast(pa.timestamp(column.type.unit)).cast(pa.string())
    return pc.binary_join_element_wise(text, "+00", "") if column.type.tz else text


def _text(value: Any, json: bool) -> Any:
    return value[1:] if json and value is not None else value
