"""What rows are made by: a number that changes when the transform, a schema or the time zone does.

The ledger keeps those that the pipeline has run with. An audit recomputes all rows by the present
one, so it can judge only rows that were made by it.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from tallygate.spec import PipelineSpec

DIGITS = 12
_OF_SOURCE = {"format", "schema_", "avro_schema", "headers", "max_record"}
_OF_SINK = {"mode", "key", "format", "coordinates"}


def fingerprint_of(spec: PipelineSpec, time_zone: str) -> str:
    made_by = {
        "sources": {
            name: each.model_dump(include=_OF_SOURCE) | {"avro": _text(each)}
            for name, each in spec.streams.items()
        },
        "static": {name: each.model_dump() for name, each in spec.static.items()},
        "transform": _plain(spec.transform),
        "parameters": spec.parameters,
        "sink": spec.sink.model_dump(include=_OF_SINK),
        "time zone": time_zone,
    }
    text = json.dumps(made_by, sort_keys=True, default=_said)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def _plain(transform: Any) -> Any:
    if isinstance(transform, tuple):
        return [step.model_dump() for step in transform]
    return transform


def _text(source: Any) -> str:
    """What is in the file of a schema, where there is one: it may change under its name."""
    name = getattr(source, "avro_schema", None)
    try:
        return "" if name is None else Path(name).read_text()
    except OSError:
        return ""  # a run says so


def _said(value: Any) -> Any:
    """A function by its name and what it does, as far as it says that by itself."""
    if callable(value):
        code = getattr(value, "__code__", None)
        name = f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', value)}"
        if code is None:
            return name
        plain = [each for each in code.co_consts if isinstance(each, str | int | float | None)]
        return [name, code.co_code.hex(), list(code.co_names), plain]
    return str(value)
