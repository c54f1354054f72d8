"""What is put through a drill: our own payments, or a user's pipeline with records made for it.

A user's pipeline keeps its transform, its schema, its mode and its key. Its topic, table and
checkpoint are the drill's own, on the drill's own stack: nothing of the user's is touched. What it
filters or adds up is its own affair, so what is lost or repeated is the audit's to say.
"""

import base64
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import types as t

from tallygate.errors import ConfigError
from tallygate.spec import Kafka, Postgres, load_spec

SCHEMA = "id long, account string, amount double, at timestamp"
ACCOUNTS = 50
BATCH = 2000
ELSEWHERE = ("start", "pattern", "bootstrap_servers", "options")
"""What a source says of where it is, which is not where the drill is."""


class Subject(Protocol):
    @property
    def counted(self) -> bool:
        """Whether its rows have the ids of the load, so that they can be counted."""

    def spec(self, name: str, topic: str) -> dict[str, Any]:
        """The pipeline as a file has it, under this name and over this topic."""

    def value(self, number: int) -> str:
        """A record of the load."""


def payment(number: int) -> str:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    row = {"id": number, "account": f"a{number % ACCOUNTS}", "amount": number / 4, "at": at}
    return json.dumps(row)


@dataclass(frozen=True)
class Payments:
    counted = True

    def spec(self, name: str, topic: str) -> dict[str, Any]:
        source = {"topic": topic, "schema": SCHEMA, "max_records": BATCH}
        return {"name": name, "source": source, "sink": {"table": name}}

    def value(self, number: int) -> str:
        return payment(number)


@dataclass(frozen=True)
class OwnPipeline:
    fields: dict[str, Any]
    make: Callable[[int], str]
    counted = False

    @classmethod
    def load(cls, path: Path, sample: Path | None = None) -> "OwnPipeline":
        """From a pipeline's file; the records are made from its schema, or taken from the lines of
        a file, over and over."""
        spec = load_spec(path)
        source, sink = spec.source, spec.sink
        if not (isinstance(source, Kafka) and isinstance(sink, Postgres)) or spec.sources:
            raise ConfigError(
                f"{path}: a drill takes pipelines from one Kafka source into PostgreSQL."
            )
        foreign = [name for name, side in spec.static.items() if side.file is None]
        if foreign:
            raise ConfigError(
                f"{path}: static.{foreign[0]} is not a file, and a drill touches no database "
                "but its own; put it into a file for the drill."
            )
        if sample is not None:
            lines = _lines(sample)
            return cls(_fields(spec), lambda number: lines[number % len(lines)])
        if source.format != "json" or not source.schema_:
            raise ConfigError(
                f"{path}: records of format {source.format} cannot be made up; give some, one a "
                "line, with --sample."
            )
        return cls(_fields(spec), _Maker(source.schema_))

    def spec(self, name: str, topic: str) -> dict[str, Any]:
        source = {"max_records": BATCH, **self.fields["source"], "topic": topic}
        return {
            **self.fields,
            "name": name,
            "source": {k: v for k, v in source.items() if k not in ELSEWHERE},
            "sink": {k: v for k, v in self.fields["sink"].items() if k != "dsn"} | {"table": name},
        }

    def value(self, number: int) -> str:
        return self.make(number)


class _Maker:
    """Makes records of a schema, which is read with the first one: Spark must run for that."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self._shape: t.DataType | None = None

    def __call__(self, number: int) -> str:
        if self._shape is None:
            self._shape = t.StructType.fromDDL(self._schema)
        return json.dumps(_made(self._shape, random.Random(number)))


def _fields(spec: Any) -> dict[str, Any]:
    given = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {name: value for name, value in given.items() if name != "checkpoint"}


def _lines(path: Path) -> Sequence[str]:
    try:
        lines = [line for line in path.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as lines of text: {error}.") from None
    if not lines:
        raise ConfigError(f"{path} has no lines; each is to be one record.")
    return lines


def _made(kind: t.DataType, chance: random.Random) -> Any:
    """A value of a type, as JSON has it."""
    if isinstance(kind, t.StructType):
        return {field.name: _made(field.dataType, chance) for field in kind.fields}
    if isinstance(kind, t.ArrayType):
        return [_made(kind.elementType, chance) for _ in range(chance.randrange(3))]
    if isinstance(kind, t.MapType):
        return {f"k{n}": _made(kind.valueType, chance) for n in range(chance.randrange(3))}
    if isinstance(kind, t.BooleanType):
        return chance.random() < 0.5
    if isinstance(kind, t.IntegralType):
        return chance.randrange(100)
    if isinstance(kind, t.DecimalType | t.FractionalType):
        return chance.randrange(1000) / 4
    if isinstance(kind, t.DateType):
        return time.strftime("%Y-%m-%d", time.gmtime())
    if isinstance(kind, t.TimestampType | t.TimestampNTZType):
        zone = "Z" if isinstance(kind, t.TimestampType) else ""
        return time.strftime(f"%Y-%m-%dT%H:%M:%S{zone}", time.gmtime())
    if isinstance(kind, t.BinaryType):
        return base64.b64encode(chance.randbytes(6)).decode()
    return f"v{chance.randrange(100)}"
