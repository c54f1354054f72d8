"""A first pipeline for a topic: the schema is guessed from a sample of its records."""

import json
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, TypeAlias

import yaml

from tallygate.errors import InputError
from tallygate.kafka.connection import Connection
from tallygate.kafka.read import From, Reading, read
from tallygate.quoting import backticked

SAMPLE = 1000

_Type: TypeAlias = "str | list[_Type] | dict[str, _Type] | None"
"""A simple type, the one of a list's members, those of an object's, or not known from a null."""

_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"(?P<clock>[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:?[0-9]{2})?)?"
)
_WIDER = (
    ({"long", "double"}, "double"),
    ({"date", "timestamp"}, "timestamp"),
    ({"date", "timestamp", "string"}, "string"),
)
"""Types of which the last holds each of the first."""


def new_pipeline(
    name: str,
    topic: str,
    table: str,
    connection: Connection,
    note: Callable[[str], None] = lambda _: None,
) -> str:
    """The text of a pipeline file for this topic; `note` hears why its records are not JSON."""
    sample = [value for value in _sample(topic, connection) if value is not None]
    source: dict[str, Any] = {"topic": topic}
    try:
        source["schema"] = infer_schema(map(parsed, sample))
    except InputError as error:
        note(f"The records are taken as text, since {str(error).rstrip('.')}.")
        source["format"] = "text"
    document = {"name": name, "source": source, "sink": {"table": table}}
    return yaml.safe_dump(document, sort_keys=False, width=100)


def parsed(value: bytes) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise InputError(f"{value[:60]!r} is not JSON") from None


def _sample(topic: str, connection: Connection) -> list[bytes | None]:
    """Some of the newest records of each partition."""
    what = Reading([topic], From.tail, SAMPLE, exit_at_end=True, limit=SAMPLE)
    found = [m.value() for batch in read(what, connection) for m in batch]
    if not found:
        raise InputError(
            f"topic {topic!r} is empty, so there is no sample to guess a schema from; write the "
            "pipeline's file by hand, with the schema in it."
        )
    return [value.encode() if isinstance(value, str) else value for value in found]


def infer_schema(rows: Iterable[Any]) -> str:
    """The fields of some rows, as in SQL: `id long, at timestamp, name string`."""
    fields: dict[str, _Type] = {}
    for row in rows:
        if not isinstance(row, dict):
            raise InputError(f"{row!r:.60} is not a JSON object")
        for name, value in row.items():
            fields[name] = _wider(fields.get(name), _type(value), name)
    if not fields:
        raise InputError("the records have no fields")
    return ", ".join(f"{_quoted(name)} {_said(type_)}" for name, type_ in fields.items())


def _type(value: Any) -> _Type:
    if value is None:
        return None
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "long"
    if isinstance(value, float):
        return "double"
    if isinstance(value, list):
        inner: _Type = None
        for each in value:
            inner = _wider(inner, _type(each), "a list's member")
        return [inner]
    if isinstance(value, dict):
        return {name: _type(each) for name, each in value.items()}
    return _type_of_text(value)


def _type_of_text(text: str) -> str:
    """A time if it is one as in ISO 8601, and Spark can keep all of it."""
    match = _TIME.fullmatch(text)
    if match is None:
        return "string"
    try:
        datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return "string"
    return "timestamp" if match["clock"] else "date"


def _wider(one: _Type, other: _Type, name: str) -> _Type:
    """A type that holds both."""
    if one is None or other is None or one == other:
        return one if other is None else other
    if isinstance(one, list) and isinstance(other, list):
        return [_wider(one[0], other[0], name)]
    if isinstance(one, dict) and isinstance(other, dict):
        members = {**one, **other}
        return {each: _wider(one.get(each), other.get(each), f"{name}.{each}") for each in members}
    if isinstance(one, str) and isinstance(other, str):
        for together, holds_both in _WIDER:
            if {one, other} <= together:
                return holds_both
    raise InputError(f"{name} is {_said(one)} in one record and {_said(other)} in another")


def _said(type_: _Type) -> str:
    """A type as in SQL."""
    if isinstance(type_, list):
        return f"array<{_said(type_[0])}>"
    if isinstance(type_, dict):
        members = ", ".join(f"{_quoted(name)}: {_said(each)}" for name, each in type_.items())
        return f"struct<{members}>"
    return type_ or "string"


def _quoted(name: str) -> str:
    return name if name.isidentifier() else backticked(name)
