"""Rows as records: made by the JVM for a frame, and by Arrow where raw records are decoded next to
the write."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from tallygate.core.blocks import Block
from tallygate.core.decoding import COORDINATES
from tallygate.errors import TargetError
from tallygate.kafka.fetch import HEADERS, HEADERS_DDL
from tallygate.kafka.record_size import Header
from tallygate.quoting import backticked
from tallygate.spec import KafkaSink
from tallygate.targets.base import check_key

LANE = "_tallygate_lane"
"""The column that chooses the lane of a row; no task sees it."""
SOURCE = "tallygate.source"
"""The header that says where a record came from."""


def check_columns(sink: KafkaSink, schema: t.StructType) -> None:
    """Raise if rows of this schema cannot become records."""
    columns = set(schema.fieldNames())
    check_key([] if sink.key is None else [sink.key], columns)
    if sink.format != "value":
        return
    if "value" not in columns:
        raise TargetError("format value needs a column `value`, which the pipeline lacks.")
    if HEADERS.name in columns:
        given = schema[HEADERS.name].dataType.simpleString()
        if given != HEADERS_DDL:
            raise TargetError(
                f"the column `headers`, which becomes the headers of records, is {given} and "
                f"should be {HEADERS_DDL}; rename it if it is something else."
            )


def key_column(sink: KafkaSink, schema: t.StructType) -> str | None:
    """The column that becomes the record's key."""
    given = sink.format == "value" and "key" in schema.fieldNames()
    return sink.key or ("key" if given else None)


def as_records(
    frame: DataFrame,
    *,
    key: str | None,
    format: str,
    added: Sequence[str],
    has_coordinates: bool,
    headers: bool = False,
    lane: Column | None = None,
) -> DataFrame:
    """The frame as key, value, coordinates and headers, made by the JVM; `added` are columns that
    are not the user's. `lane` is what chooses the lane, where there are lanes."""
    own = [name for name in frame.columns if name not in added]
    value = f.to_json(f.struct(*map(backticked, own))) if format == "json" else f.col("value")
    chosen: Any = f.lit(None) if key is None else f.col(backticked(key))
    if format == "value" and key is None and "key" in own:
        chosen = f.col("key")
    coordinates = [f.col(name) for name in COORDINATES] if has_coordinates else []
    return frame.select(
        value.cast("binary").alias("value"),
        chosen.cast("string").cast("binary").alias("key"),
        *coordinates,
        *([f.col(HEADERS.name)] if headers else []),
        *([] if lane is None else [lane.alias(LANE)]),
    )


@dataclass(frozen=True)
class RecordRows:
    """A block of records to send, by columns: that is how Arrow gives them, and it is quickest."""

    values: list[bytes | None]
    keys: list[Any]
    headers: list[list[Header]] | None

    def __iter__(self) -> Iterator[tuple[Any, Any, Any]]:
        none: list[Any] = [None] * len(self.values)
        return zip(self.values, self.keys, self.headers or none, strict=True)

    def without(self, indexes: Collection[int]) -> "RecordRows":
        left = [record for index, record in enumerate(self) if index not in indexes]
        values, keys, headers = ([record[column] for record in left] for column in range(3))
        return RecordRows(values, keys, headers if self.headers else None)


def record_rows(block: Block, key: str | None, *, coordinates: bool) -> RecordRows:
    """The records that a block becomes. One that was decoded passes as it is, with the column `key`
    for a key if one is named; with `coordinates` they say where they are from."""
    given = block.rows if block.raw is None else block.raw
    keys = given.column("key")
    if block.raw is not None and key is not None:
        keys = as_key(block.rows.column(key))
    headers = _own_headers(given)
    if coordinates and block.coordinates is not None:
        where = _where(block.coordinates)
        if headers is None:
            headers = [[each] for each in where]
        else:
            headers = [_located(*each) for each in zip(headers, where, strict=True)]
    return RecordRows(given.column("value").to_pylist(), keys.to_pylist(), headers)


def as_key(column: pa.Array) -> pa.Array:
    """A column as keys of records: bytes as they are, all else as text."""
    binary = pa.types.is_binary(column.type)
    return column if binary else column.cast(pa.string()).cast(pa.binary())


def _own_headers(given: pa.RecordBatch) -> list[list[Header]] | None:
    if HEADERS.name not in given.schema.names:
        return None
    own = given.column(HEADERS.name)
    if own.null_count == len(own):
        return None
    return [[(each["key"], each["value"]) for each in held or ()] for held in own.to_pylist()]


def _where(coordinates: pa.RecordBatch) -> list[Header]:
    """Of a block that is of one partition."""
    topic, partition, offsets = (coordinates.column(name) for name in COORDINATES)
    begin = f"{topic[0].as_py()}/{partition[0].as_py()}@"
    return [(SOURCE, begin + str(offset)) for offset in offsets.to_pylist()]


def _located(own: list[Header], where: Header) -> list[Header]:
    """A record's own headers and where it is from; it may come from a topic of another pipeline,
    and have such a mark already."""
    return [*(each for each in own if each[0] != SOURCE), where]
