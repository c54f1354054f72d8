"""The target table: made from the columns that a pipeline gives, or checked against them.

Every atomic type of Spark's has its own in PostgreSQL; arrays of those are arrays; maps, structs
and what is nested deeper are jsonb. COPY is binary, so a column that exists must be of the type
that is sent, or of one that every value of it fits into.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql import types as t

from tallygate.core.decoding import COORDINATES
from tallygate.errors import TargetError
from tallygate.postgres.tables import SCHEMA
from tallygate.quoting import double_quoted

_ATOMIC: dict[type[t.DataType], tuple[str, pa.DataType]] = {
    t.BooleanType: ("boolean", pa.bool_()),
    t.ByteType: ("smallint", pa.int16()),
    t.ShortType: ("smallint", pa.int16()),
    t.IntegerType: ("integer", pa.int32()),
    t.LongType: ("bigint", pa.int64()),
    t.FloatType: ("real", pa.float32()),
    t.DoubleType: ("double precision", pa.float64()),
    t.StringType: ("text", pa.string()),
    t.CharType: ("text", pa.string()),
    t.VarcharType: ("text", pa.string()),
    t.BinaryType: ("bytea", pa.binary()),
    t.DateType: ("date", pa.date32()),
    t.TimestampType: ("timestamp with time zone", pa.timestamp("us", "UTC")),
    t.TimestampNTZType: ("timestamp without time zone", pa.timestamp("us")),
    t.DayTimeIntervalType: ("interval", pa.duration("us")),
    t.YearMonthIntervalType: ("text", pa.string()),
}
_JSON = (t.MapType, t.StructType, t.VariantType)

# Wider types of existing columns, and what is sent to them.
_WIDER: dict[str, dict[str, pa.DataType]] = {
    "smallint": {"integer": pa.int32(), "bigint": pa.int64()},
    "integer": {"bigint": pa.int64()},
    "real": {"double precision": pa.float64()},
    "text": {"character varying": pa.string(), "character": pa.string()},
}


@dataclass(frozen=True)
class TableName:
    schema: str
    name: str

    @classmethod
    def parse(cls, text: str, connection: psycopg.Connection) -> "TableName":
        """`name` or `schema.name`, each as it is or in double quotes.

        A name alone is looked for along the search_path, where our own schema does not count: for
        a role of its name PostgreSQL would put it first."""
        parts = _identifiers(text)
        if len(parts) == 2:
            return cls(*parts)
        row = connection.execute(
            "SELECT nspname, relname IS NOT NULL FROM unnest(current_schemas(false)) "
            "WITH ORDINALITY AS path (name, place) JOIN pg_namespace ON nspname = path.name "
            "LEFT JOIN pg_class ON relnamespace = pg_namespace.oid AND relname = %s "
            "WHERE nspname <> %s ORDER BY relname IS NULL, place LIMIT 1",
            (parts[0], SCHEMA),
        ).fetchone()
        if row is None:
            raise TargetError(
                f"table {text!r} names no schema and the search_path leads to none; write "
                "schema.table."
            )
        return cls(row[0], parts[0])

    @property
    def quoted(self) -> str:
        """As it is written in SQL, and as `parse` reads it."""
        return f"{double_quoted(self.schema)}.{double_quoted(self.name)}"

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


def _identifiers(text: str) -> list[str]:
    part = r'"(?:[^"\0]|"")+"|[^".\0]+'
    if not re.fullmatch(rf"(?:{part})(?:\.(?:{part}))?", text):
        raise TargetError(f'{text!r} names no table: write name, schema.name or "schema"."name".')
    return [
        found[1:-1].replace('""', '"') if found.startswith('"') else found
        for found in re.findall(part, text)
    ]


@dataclass(frozen=True)
class Column:
    """A column as Spark gives it, as PostgreSQL keeps it and as it is sent."""

    name: str
    spark: str
    postgres: str
    arrow: pa.DataType
    json: bool = False
    text: bool = False
    """Given by Spark as something that Arrow cannot carry: sent as its text."""


def columns_of(schema: t.StructType) -> tuple[Column, ...]:
    """The table's columns for a frame's schema."""
    names = [field.name for field in schema.fields]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise TargetError(f"the transform gives two columns named {twice[0]!r}; rename one.")
    return tuple(_column(field.name, field.dataType) for field in schema.fields)


def _column(name: str, given: t.DataType) -> Column:
    said = given.simpleString()
    if not name or "\0" in name or len(name.encode()) > 63:
        raise TargetError(
            f"column {name!r} cannot be a column in PostgreSQL: names have 1 to 63 bytes."
        )
    if isinstance(given, t.NullType):
        raise TargetError(f"column {name!r} is always null and has no type; cast it to one.")
    if isinstance(given, t.DecimalType):
        kept = f"numeric({given.precision},{given.scale})"
        return Column(name, said, kept, pa.decimal128(given.precision, given.scale))
    if isinstance(given, t.ArrayType) and type(given.elementType) in _ATOMIC:
        element = _column(name, given.elementType)
        if not element.text and not isinstance(given.elementType, t.DayTimeIntervalType):
            return Column(name, said, f"{element.postgres}[]", pa.list_(element.arrow))
    if isinstance(given, (*_JSON, t.ArrayType)):
        return Column(name, said, "jsonb", pa.string(), json=True)
    if type(given) not in _ATOMIC:
        raise TargetError(f"column {name!r} is of type {said}, which has no type in PostgreSQL.")
    kept, arrow = _ATOMIC[type(given)]
    return Column(name, said, kept, arrow, text=isinstance(given, t.YearMonthIntervalType))


def ensure_table(
    connection: psycopg.Connection, table: TableName, columns: Sequence[Column], key: Sequence[str]
) -> tuple[Column, ...]:
    """Make the table, or check the one that is there; return the columns as they are to be sent."""
    missing = [name for name in key if name not in {column.name for column in columns}]
    if missing:
        raise TargetError(f"the key {missing[0]!r} is not a column of the pipeline's rows.")
    with connection.transaction():
        there = _columns_there(connection, table)
        if there:
            _check_kind(connection, table)
            return _checked(table, columns, there, unique_on(connection, table, key), key)
        try:
            connection.execute(_create(table, columns, key))
        except psycopg.Error as error:
            raise TargetError(
                f"table {table} cannot be made: {str(error).splitlines()[0]}."
            ) from error
    return tuple(columns)


def table_id(connection: psycopg.Connection, table: TableName) -> str | None:
    """The table's number in its database, which another one of its name does not have, behind that
    of the ledger: a restored database numbers both of them again."""
    row = connection.execute(
        "SELECT 'tallygate.pipelines'::regclass::oid::text || ':' || pg_class.oid::text "
        "FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
        "WHERE nspname = %s AND relname = %s",
        (table.schema, table.name),
    ).fetchone()
    return None if row is None else str(row[0])


_PARTS = """
WITH RECURSIVE parts AS (
    SELECT pg_class.oid, relkind, relpersistence
    FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE nspname = %s AND relname = %s
    UNION ALL
    SELECT child.oid, child.relkind, child.relpersistence
    FROM parts JOIN pg_inherits ON inhparent = parts.oid AND parts.relkind = 'p'
    JOIN pg_class AS child ON child.oid = inhrelid)
SELECT oid::regclass::text, relkind::text, relpersistence::text FROM parts
"""
_KINDS = {
    "f": "a foreign table, whose rows are committed apart from the ledger",
    "m": "a materialized view",
    "v": "a view",
}


def _check_kind(connection: psycopg.Connection, table: TableName) -> None:
    """Refuse what does not keep its rows as long as the ledger does, or commits them apart."""
    parts = connection.execute(_PARTS.encode(), (table.schema, table.name)).fetchall()
    for name, kind, persistence in parts:
        what = str(table) if name == parts[0][0] else f"{table} has the part {name}, which"
        if kind not in ("r", "p"):
            raise TargetError(
                f"table {what} is {_KINDS.get(kind, 'not a table')}: name an ordinary table."
            )
        if persistence != "p":
            unlogged = persistence == "u"
            how = "unlogged: PostgreSQL empties it after a crash" if unlogged else "temporary"
            cure = f"ALTER TABLE {name} SET LOGGED, or name" if unlogged else "Name"
            raise TargetError(
                f"table {what} is {how}, and the ledger would not know. {cure} another table."
            )


def _create(table: TableName, columns: Sequence[Column], key: Sequence[str]) -> sql.Composed:
    parts = [
        sql.SQL("{} {}{}").format(
            sql.Identifier(column.name),
            sql.SQL(column.postgres),
            sql.SQL(" NOT NULL" if column.name in COORDINATES else ""),
        )
        for column in columns
    ]
    if key:
        names = sql.SQL(", ").join(sql.Identifier(name) for name in key)
        parts.append(sql.SQL("PRIMARY KEY ({})").format(names))
    return sql.SQL("CREATE TABLE {} ({})").format(table.identifier, sql.SQL(", ").join(parts))


@dataclass(frozen=True)
class _There:
    type: str
    required: bool


def _columns_there(connection: psycopg.Connection, table: TableName) -> dict[str, _There]:
    rows = connection.execute(
        "SELECT attname, format_type(atttypid, atttypmod), "
        "attnotnull AND NOT atthasdef AND attidentity = '' "
        "FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid "
        "JOIN pg_namespace ON pg_namespace.oid = relnamespace "
        "WHERE nspname = %s AND relname = %s AND attnum > 0 AND NOT attisdropped",
        (table.schema, table.name),
    ).fetchall()
    return {name: _There(type_, required) for name, type_, required in rows}


def unique_on(connection: psycopg.Connection, table: TableName, key: Sequence[str]) -> bool:
    """Whether the table holds each key at most once."""
    if not key:
        return True
    rows = connection.execute(
        "SELECT array_agg(attname::text) FROM pg_index JOIN pg_class ON pg_class.oid = indrelid "
        "JOIN pg_namespace ON pg_namespace.oid = relnamespace "
        "JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY(indkey) "
        "WHERE indisunique AND indpred IS NULL AND indexprs IS NULL "
        "AND nspname = %s AND relname = %s GROUP BY indexrelid",
        (table.schema, table.name),
    ).fetchall()
    return any(set(names) == set(key) for (names,) in rows)


def _checked(
    table: TableName,
    columns: Sequence[Column],
    there: dict[str, _There],
    unique: bool,
    key: Sequence[str],
) -> tuple[Column, ...]:
    differences, sent = [], []
    for column in columns:
        found = there.get(column.name)
        if found is None:
            differences.append(f"it has no column {column.name!r} ({column.postgres})")
            continue
        arrow = _sendable(column, found.type)
        if arrow is None:
            differences.append(
                f"{column.name!r} is {found.type} there and {column.postgres} here ({column.spark})"
            )
        else:
            sent.append(
                Column(column.name, column.spark, found.type, arrow, column.json, column.text)
            )
    given = {column.name for column in columns}
    for name, found in there.items():
        if name not in given and found.required:
            differences.append(f"{name!r} is NOT NULL there and not given here")
    if not unique:
        differences.append(f"it has no unique index on ({', '.join(key)})")
    if differences:
        raise TargetError(
            f"table {table} does not fit what the pipeline gives: {'; '.join(differences)}. "
            "Change the table or the transform, or name another table."
        )
    return tuple(sent)


def _sendable(column: Column, there: str) -> pa.DataType | None:
    """What to send to a column of type `there`, or None if it cannot take every value."""
    if there == column.postgres:
        return column.arrow
    if pa.types.is_decimal(column.arrow) and there.startswith("numeric"):
        return column.arrow if there == "numeric" or _holds(there, column.postgres) else None
    return _WIDER.get(column.postgres, {}).get(there.partition("(")[0])


def _holds(there: str, here: str) -> bool:
    """Whether numeric(p,s) `there` has the places before and after the point of `here`."""
    sizes = []
    for text in (there, here):
        precision, _, scale = text.removeprefix("numeric(").rstrip(")").partition(",")
        sizes.append((int(precision) - int(scale or 0), int(scale or 0)))
    return sizes[0][0] >= sizes[1][0] and sizes[0][1] >= sizes[1][1]
