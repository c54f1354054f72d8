"""Avro without a registry: one schema, in a file, for every record of a topic.

The bytes of a record are of unknown origin, so they are read by a reader of our own
(`core.avro_reading`), and a schema by which a few bytes could stand for millions of items, or for
levels without end, is refused.
"""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from tallygate.core.avro_reading import reader_of
from tallygate.errors import ConfigError, InputError
from tallygate.extras import extra_module


def encoder(schema_file: str) -> Callable[[Any], bytes]:
    fastavro, schema = _fastavro(), _load(schema_file)

    def encode(row: Any) -> bytes:
        buffer = io.BytesIO()
        try:
            fastavro.schemaless_writer(buffer, schema, row)
        except Exception as error:  # fastavro raises whatever the wrong value provokes
            raise InputError(f"does not fit the Avro schema: {error}") from error
        return buffer.getvalue()

    return encode


def decoder(schema_file: str) -> Callable[[bytes], Any]:
    try:
        read = reader_of(_load_bounded(schema_file))
    except RecursionError as error:
        raise ConfigError(f"{schema_file} cannot be read safely: it nests too deep.") from error

    def decode(value: bytes) -> Any:
        try:
            return read(value)
        except (InputError, ValueError, ArithmeticError, RecursionError) as error:
            raise InputError(f"is not of the Avro schema: {error}") from error

    return decode


def _fastavro() -> Any:
    return extra_module("fastavro", "Avro")


def _load(path: str) -> Any:
    fastavro = _fastavro()
    try:
        return fastavro.parse_schema(json.loads(Path(path).read_text()))
    except OSError as error:
        raise ConfigError(f"the Avro schema {path} cannot be read: {error.strerror}.") from error
    except Exception as error:
        raise ConfigError(f"{path} is not an Avro schema: {error}.") from error


def _load_bounded(path: str) -> Any:
    """A schema by which no record can stand for more than its bytes do."""
    schema = _load(path)
    try:
        _takes_bytes(schema, {}, frozenset())
    except RecursionError as error:
        raise ConfigError(f"{path} cannot be read safely: it nests too deep.") from error
    except ConfigError as error:
        raise ConfigError(f"{path} cannot be read safely: {error}") from None
    return schema


def _takes_bytes(schema: Any, named: dict[str, bool], around: frozenset[str]) -> bool:
    """Whether each value takes a byte at least; `around` are the records that it is part of."""
    if isinstance(schema, list):
        for each in schema:
            _takes_bytes(each, named, around)
        return True
    if isinstance(schema, str):
        if schema in around:
            raise ConfigError(
                f"the record {schema} holds itself, so a record of a few kB could nest deeper than "
                "the memory for it; write out as many levels as there are."
            )
        return named.get(schema, schema != "null")
    kind = schema["type"]
    if kind == "array" and not _takes_bytes(schema["items"], named, around):
        raise ConfigError(
            "an array has items that take no bytes, so 5 bytes could stand for millions of them; "
            "give the items a type with a value, or write how many there are as a long."
        )
    if kind == "map":
        _takes_bytes(schema["values"], named, around)
    if "fields" in schema:
        inside = around | {schema["name"]}
        taken = [_takes_bytes(each["type"], named, inside) for each in schema["fields"]]
        named[schema["name"]] = any(taken)
        return any(taken)
    if kind == "fixed":
        named[schema["name"]] = schema["size"] > 0
        return named[schema["name"]]
    return _takes_bytes(kind, named, around)


_LOGICAL = {
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "date": pa.date32(),
}
_PRIMITIVE = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}


def arrow_schema(schema_file: str) -> pa.Schema:
    """The columns that records of this schema have."""
    schema = _load_bounded(schema_file)
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ConfigError(f"{schema_file} describes no record, so it has no columns.")
    return pa.schema([(field["name"], _arrow(field["type"])) for field in schema["fields"]])


def _arrow(schema: Any) -> pa.DataType:
    if isinstance(schema, list):
        kinds = [each for each in schema if each != "null"]
        if len(kinds) != 1:
            raise ConfigError(f"an Avro union of {kinds} has no single column type.")
        return _arrow(kinds[0])
    if isinstance(schema, str):
        return _named(schema)
    logical = schema.get("logicalType")
    if logical == "decimal":
        return _decimal_type(schema)
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    kind = schema["type"]
    if kind == "record":
        return pa.struct([(field["name"], _arrow(field["type"])) for field in schema["fields"]])
    if kind == "array":
        return pa.list_(_arrow(schema["items"]))
    if kind == "map":
        return pa.map_(pa.string(), _arrow(schema["values"]))
    return _named(kind) if isinstance(kind, str) else _arrow(kind)


def _decimal_type(schema: Any) -> pa.DataType:
    precision = schema.get("precision", 0)
    if not 1 <= precision <= 38:
        raise ConfigError(f"an Avro decimal of precision {precision} has no column type: 1 to 38.")
    return pa.decimal128(precision, schema.get("scale", 0))


def _named(kind: str) -> pa.DataType:
    if kind not in _PRIMITIVE:
        raise ConfigError(f"the Avro type {kind!r} has no column type here; write it out in full.")
    return _PRIMITIVE[kind]
