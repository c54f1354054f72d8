"""Nested values as JSON, made in two places that must agree.

With a transform the JVM makes it, without one the task that reads does. Whether a pipeline has a
transform must not change what its table holds, so both follow the same rules: nulls are kept, maps
are objects, decimals are numbers with all their digits, bytes are base64, times are ISO 8601 to the
microsecond, and UTC.
"""

import base64
from collections.abc import Callable
from typing import Any

import orjson
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as f

VERSION = "\x01"
"""What jsonb's binary form begins with; the text follows."""
_OPTIONS = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}


def to_json(column: Column) -> Column:
    """By the JVM."""
    return f.concat(f.lit(VERSION), f.to_json(column, _OPTIONS))


def as_json(column: pa.Array) -> pa.Array:
    """By Python."""
    plain = _plain(column.type)
    values = [
        None if item is None else VERSION + orjson.dumps(plain(item)).decode()
        for item in column.to_pylist()
    ]
    return pa.array(values, pa.string())


def _plain(type_: pa.DataType) -> Callable[[Any], Any]:
    """What turns a value of Arrow's into one that becomes JSON by itself."""
    if pa.types.is_map(type_):
        key, value = _plain(type_.key_type), _optional(type_.item_type)
        return lambda pairs: {_name(key(k)): value(v) for k, v in pairs}
    if pa.types.is_list(type_):
        inner = _optional(type_.value_type)
        return lambda items: [inner(item) for item in items]
    if pa.types.is_struct(type_):
        members = {each.name: _optional(each.type) for each in type_}
        return lambda item: {name: member(item[name]) for name, member in members.items()}
    if pa.types.is_decimal(type_):
        return lambda number: orjson.Fragment(format(number, "f"))
    if pa.types.is_binary(type_):
        return lambda value: base64.b64encode(value).decode()
    if pa.types.is_timestamp(type_):
        return lambda at: at.isoformat(timespec="microseconds").replace("+00:00", "Z")
    if pa.types.is_date(type_):
        return lambda day: day.isoformat()
    return lambda value: value


def _optional(type_: pa.DataType) -> Callable[[Any], Any]:
    plain = _plain(type_)
    return lambda item: None if item is None else plain(item)


def _name(key: Any) -> str:
    """A map's key, which in JSON is a text."""
    return key if isinstance(key, str) else orjson.dumps(key).decode().strip('"')
