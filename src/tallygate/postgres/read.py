"""Rows of a table as a Spark frame, read by Arrow in parallel, all as of one snapshot.

A table is read in stretches of its pages, each by a task with a connection of its own. A task's
transaction begins by taking over a snapshot that another one has exported, so all of them see the
table at one moment, for as long as that other one lasts. Rows come by binary COPY, as blocks of
Arrow, and nothing is made of single values on the way.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from tallygate.quoting import double_quoted

PARTS_PER_CORE = 2
_AS_THEY_ARE = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_date32,
    pa.types.is_timestamp,
)

Step = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
Through = tuple[Step, str]
"""A step that rows are taken through, and the columns that it gives, as Spark writes them."""


@dataclass(frozen=True, kw_only=True)
class TableReading:
    """A table at one moment."""

    dsn: str
    table: str
    """As it is written in SQL."""
    snapshot: str
    """What PostgreSQL calls the snapshot that was exported."""
    pages: int

    def rows(
        self, spark: SparkSession, where: str = "true", through: Through | None = None
    ) -> DataFrame:
        """All columns; those of types that Arrow or Spark do not have come as text. Or what a step
        makes of them, in the workers that read them."""
        with adbc.connect(self.dsn) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {self.table} LIMIT 0")
            given = cursor.fetch_arrow_table().schema
        columns, fields = [], []
        for field in given:
            name = double_quoted(field.name)
            plain = any(fits(field.type) for fits in _AS_THEY_ARE)
            columns.append(name if plain else f"{name}::text AS {name}")
            fields.append(pa.field(field.name, field.type if plain else pa.string()))
        query = f"SELECT {', '.join(columns)} FROM {self.table} WHERE ({where})"
        parts = self._parts(spark.sparkContext.defaultParallelism * PARTS_PER_CORE)
        schema = pa.schema(fields)
        task = _Task(dsn=self.dsn, query=query, snapshot=self.snapshot, schema=schema, parts=parts)
        step, made = through or (_as_they_come, from_arrow_schema(schema))

        def run(blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return step(task.run(blocks))

        numbers = spark.range(0, len(parts), 1, len(parts))  # one for each task
        return numbers.mapInArrow(run, made)

    def _parts(self, most: int) -> list[tuple[int, int | None]]:
        """Stretches of pages; the last one has no end, for the table may have grown."""
        count = max(1, min(most, self.pages))
        ends = [self.pages * number // count for number in range(1, count)]
        return list(zip([0, *ends], [*ends, None], strict=True))


def _as_they_come(blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return iter(blocks)


@dataclass(frozen=True, kw_only=True)
class _Task:
    """It travels to the workers."""

    dsn: str
    query: str
    snapshot: str
    schema: pa.Schema
    parts: list[tuple[int, int | None]]

    def run(self, blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for block in blocks:
            for number in block.column("id").to_pylist():
                yield from self._read(*self.parts[number])

    def _read(self, start: int, until: int | None) -> Iterator[pa.RecordBatch]:
        ends = [f"ctid >= '({start},0)'::tid"]
        ends += [] if until is None else [f"ctid < '({until},0)'::tid"]
        with adbc.connect(self.dsn) as connection, connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            cursor.execute(f"SET TRANSACTION SNAPSHOT '{self.snapshot}'")
            cursor.execute(f"{self.query} AND {' AND '.join(ends)}")
            reader = cursor.fetch_record_batch()
            for block in reader:
                yield block.cast(self.schema)
            reader.close()
