"""Avro without a registry: one schema, in a file, for every record of a topic."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from tallygate.errors import ConfigError, InputError
from tallygate.extras import extra_module

__all__ = ["arrow_schema", "decoder", "encoder"]


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
    fastavro, schema = _fastavro(), _load(schema_file)

    def decode(value: bytes) -> Any:
        buffer = io.BytesIO(value)
        try:
            decoded = fastavro.schemaless_reader(buffer, schema, None)
        except Exception as error:
            raise InputError(f"is not of the Avro schema: {error}") from error
        if buffer.tell() != len(value):
            raise InputError("is not of the Avro schema: it has bytes left over")
        return decoded

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
    schema = _load(schema_file)
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
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
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


def _named(kind: str) -> pa.DataType:
    if kind not in _PRIMITIVE:
        raise ConfigError(f"the Avro type {kind!r} has no column type here; write it out in full.")
    return _PRIMITIVE[kind]
