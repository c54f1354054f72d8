"""Avro without a registry: one schema, in a file, for every record of a topic."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro

from tallygate.errors import ConfigError, InputError

__all__ = ["decoder", "encoder"]


def encoder(schema_file: str) -> Callable[[Any], bytes]:
    schema = _load(schema_file)

    def encode(row: Any) -> bytes:
        buffer = io.BytesIO()
        try:
            fastavro.schemaless_writer(buffer, schema, row)
        except Exception as error:  # fastavro raises whatever the wrong value provokes
            raise InputError(f"does not fit the Avro schema: {error}") from error
        return buffer.getvalue()

    return encode


def decoder(schema_file: str) -> Callable[[bytes], Any]:
    schema = _load(schema_file)

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


def _load(path: str) -> Any:
    try:
        return fastavro.parse_schema(json.loads(Path(path).read_text()))
    except OSError as error:
        raise ConfigError(f"the Avro schema {path} cannot be read: {error.strerror}.") from error
    except Exception as error:
        raise ConfigError(f"{path} is no Avro schema: {error}.") from error
