"""A first pipeline for a topic: the schema is guessed from a sample of its records."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import yaml

from tallygate.errors import InputError
from tallygate.kafka.connection import Connection
from tallygate.kafka.read import From, Reading, read
from tallygate.quoting import backticked

__all__ = ["infer_schema", "new_pipeline"]

SAMPLE = 1000


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
        source["schema"] = infer_schema(map(_parsed, sample))
    except InputError as error:
        note(f"The records are taken as text, since {str(error).rstrip('.')}.")
        source["format"] = "text"
    document = {"name": name, "source": source, "sink": {"table": table}}
    return yaml.safe_dump(document, sort_keys=False, width=100)


def _parsed(value: bytes) -> Any:
    try:
        return json.loads(value)
    except ValueError:
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
    """The fields of some rows, as in SQL: `id long, name string`."""
    fields: dict[str, str | None] = {}
    for row in rows:
        if not isinstance(row, dict):
            raise InputError(f"{row!r:.60} is not a JSON object")
        for name, value in row.items():
            fields[name] = _wider(fields.get(name), _type(value), name)
    if not fields:
        raise InputError("the records have no fields")
    return ", ".join(f"{_quoted(name)} {type_ or 'string'}" for name, type_ in fields.items())


def _type(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "long"
    if isinstance(value, float):
        return "double"
    if isinstance(value, list):
        inner = None
        for each in value:
            inner = _wider(inner, _type(each), "a list's member")
        return f"array<{inner or 'string'}>"
    if isinstance(value, dict):
        members = ", ".join(f"{_quoted(k)}: {_type(v) or 'string'}" for k, v in value.items())
        return f"struct<{members}>"
    return "string"


def _wider(one: str | None, other: str | None, name: str) -> str | None:
    """A type that holds both."""
    if one is None or other is None or one == other:
        return one or other
    if {one, other} == {"long", "double"}:
        return "double"
    raise InputError(f"{name} is {one} in one record and {other} in another")


def _quoted(name: str) -> str:
    return name if name.isidentifier() else backticked(name)
