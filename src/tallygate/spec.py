"""A pipeline as data: one model, written in Python or in YAML.

What is wrong is said before anything starts, with the place in the file and the nearest name that
would be right. `${NAME}` and `${NAME:default}` in a YAML text stand for the environment.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    SkipValidation,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

from tallygate.errors import ConfigError
from tallygate.settings import nearest
from tallygate.units import duration_ms, time_ms

__all__ = [
    "NAME",
    "DeadLetters",
    "Delivery",
    "Kafka",
    "KafkaSink",
    "PipelineSpec",
    "Postgres",
    "load_spec",
    "validated",
]

Delivery = Literal["at-most-once", "at-least-once", "idempotent", "exactly-once"]
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_list)]


class _Part(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, protected_namespaces=()
    )


class Kafka(_Part):
    """Where records come from: topics by name or by pattern, and how their values are decoded."""

    topic: Names = Field((), description="A topic, or a list of topics.")
    pattern: str | None = Field(None, description="A regular expression for topics, in Java's way.")
    format: Literal["json", "csv", "text", "bytes", "avro"] = Field(
        "json", description="How a record's value is decoded."
    )
    schema_: str | None = Field(
        None, alias="schema", description="The fields, as in SQL: `id long, name string`."
    )
    avro_schema: str | None = Field(None, description="The file of the schema, for Avro.")
    start: str | dict[str, dict[int, int]] = Field(
        "earliest",
        description="Where a new pipeline starts: earliest, latest, a time, or offsets "
        "as {topic: {partition: offset}}.",
    )
    max_records: int | None = Field(None, gt=0, description="The most records in one batch.")
    headers: bool = Field(False, description="Whether the transform sees `_headers`.")
    bootstrap_servers: str | None = Field(
        None, description="Brokers other than the configured ones."
    )
    options: dict[str, str] = Field(
        {}, description="Options of Spark's Kafka source, passed on as they are."
    )

    def __init__(self, topic: str | Sequence[str] = (), /, **fields: Any) -> None:
        super().__init__(**({"topic": topic} if topic else {}), **fields)

    @model_validator(mode="after")
    def _fits(self) -> "Kafka":
        if bool(self.topic) == (self.pattern is not None):
            raise ValueError("needs either topic or pattern")
        if self.format in ("json", "csv") and not self.schema_:
            raise ValueError(
                f"of format {self.format} needs a schema, as `id long, name string`; "
                "`tallygate init` writes one from a sample of the topic"
            )
        if (self.format == "avro") != (self.avro_schema is not None):
            raise ValueError("format avro and avro_schema go together")
        if self.format in ("text", "bytes", "avro") and self.schema_:
            raise ValueError(f"of format {self.format} has a schema by itself; leave schema out")
        if isinstance(self.start, str) and self.start not in ("earliest", "latest"):
            time_ms(self.start)
        if isinstance(self.start, dict) and self.pattern:
            raise ValueError("by pattern cannot start at given offsets; name the topics")
        return self


class Postgres(_Part):
    """A table in PostgreSQL, which holds the rows and the ledger."""

    table: str = Field(min_length=1, description="The table, as `name` or `schema.name`.")
    mode: Literal["append", "upsert", "replace"] = Field(
        "append",
        description="append adds rows, upsert replaces rows of the same key, replace replaces "
        "the whole table with each batch.",
    )
    key: Names = Field((), description="The columns that identify a row.")
    dsn: str | None = Field(None, description="The database, if not the configured one.")
    coordinates: bool = Field(
        True, description="Whether rows carry `_topic`, `_partition` and `_offset`, if they can."
    )

    driver_rows: int = Field(
        20_000,
        ge=0,
        description="Batches of up to so many records are written by the driver, in one "
        "transaction; larger ones by the tasks.",
    )

    def __init__(self, table: str | None = None, /, **fields: Any) -> None:
        super().__init__(**({} if table is None else {"table": table}), **fields)

    @model_validator(mode="after")
    def _fits(self) -> "Postgres":
        if self.mode == "upsert" and not self.key:
            raise ValueError("with mode upsert needs a key: the columns that identify a row")
        if self.mode == "replace" and self.key:
            raise ValueError("with mode replace has no use for a key")
        return self


class KafkaSink(_Part):
    """A topic that rows are written to in transactions, which hold the ledger too."""

    topic: str = Field(min_length=1, description="The topic.")
    key: str | None = Field(None, description="The column whose text becomes the record's key.")
    format: Literal["json", "value"] = Field(
        "json", description="json: a row as an object; value: the column `value` as it is."
    )
    bootstrap_servers: str | None = Field(
        None, description="Brokers other than the source's: another cluster."
    )
    dead_letters: str | None = Field(
        None, description="The topic for dead letters; NAME.dead-letters if none is given."
    )
    coordinates: bool = Field(
        True, description="Whether records carry the header `tallygate.source`, if they can."
    )

    def __init__(self, topic: str | None = None, /, **fields: Any) -> None:
        super().__init__(**({} if topic is None else {"topic": topic}), **fields)


def _kind(sink: Any) -> str:
    """A sink is told apart by what it names: a table or a topic."""
    if isinstance(sink, dict):
        return "kafka" if "topic" in sink and "table" not in sink else "postgres"
    return "kafka" if isinstance(sink, KafkaSink) else "postgres"


Sink = Annotated[
    Annotated[Postgres, Tag("postgres")] | Annotated[KafkaSink, Tag("kafka")], Discriminator(_kind)
]


class DeadLetters(_Part):
    """How many records may be unfit before the pipeline stops."""

    limit: int | None = Field(None, ge=0, description="Stop when there are more than this many.")
    share: float | None = Field(
        None, ge=0, le=1, description="Stop when more than this share of a batch are unfit."
    )


class PipelineSpec(_Part):
    """source → transform → sink, with a delivery."""

    name: str = Field(description="Names the pipeline in the ledger: letters, digits, `._-`.")
    source: Kafka
    transform: Annotated[str | SkipJsonSchema[Callable[..., Any]] | None, SkipValidation] = Field(
        None, description="SQL over the view `source`, or in Python a function of DataFrames."
    )
    sink: Sink = Field(description="A table (Postgres) or a topic (KafkaSink).")
    delivery: Delivery = Field("exactly-once", description="What a crash may do to a record.")
    trigger: str = Field(
        "as fast as possible",
        description="When batches start: `as fast as possible`, or an interval such as `10s`.",
    )
    checkpoint: str | None = Field(None, description="The folder of Spark's checkpoint.")
    dead_letters: DeadLetters = DeadLetters()

    @model_validator(mode="after")
    def _fits(self) -> "PipelineSpec":
        if not NAME.fullmatch(self.name):
            raise ValueError(f"name {self.name!r}: use letters, digits, dots, dashes, underscores")
        made = self.transform
        if not (made is None or callable(made) or isinstance(made, str)):
            raise ValueError("transform must be SQL text or a function")
        check_delivery(self.delivery, self.sink)
        if self.trigger != "as fast as possible":
            duration_ms(self.trigger)
        return self


def check_delivery(delivery: str, sink: Postgres | KafkaSink) -> None:
    """Refuse a delivery that the sink cannot honestly give."""
    if delivery == "idempotent" and isinstance(sink, KafkaSink):
        raise ValueError("delivery idempotent needs a table with a key; a topic keeps every record")
    if delivery == "idempotent" and not (isinstance(sink, Postgres) and sink.key):
        raise ValueError("delivery idempotent needs sink.key: the columns that identify a row")


def load_spec(path: Path, environment: Mapping[str, str] | None = None) -> PipelineSpec:
    """Read a pipeline from a YAML file."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no text: {error.reason}.") from error
    try:
        document = yaml.safe_load(text)
        nodes = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or "it cannot be parsed"
        raise ConfigError(f"{path}{line} is not valid YAML: {reason}.") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path} is no pipeline: it must say name, source and sink.")
    document = _expanded(document, os.environ if environment is None else environment, path)
    return validated(PipelineSpec, document, str(path), nodes)


def validated(
    model: type[PipelineSpec], fields: Mapping[str, Any], where: str, nodes: Any = None
) -> PipelineSpec:
    """The model of these fields, or the first thing wrong with them, in one sentence."""
    try:
        return model(**fields)
    except ValidationError as error:
        problems = error.errors()
        strange = [each for each in problems if each["type"] == "extra_forbidden"]
        problem = (strange or problems)[0]  # a name that is wrong explains one that is missing
        path = [part for part in problem["loc"] if part not in ("postgres", "kafka")]
        line = _line(nodes, path)
        place = f"{where}{f', line {line}' if line else ''}"
        raise ConfigError(f"{place}: {_sentence(problem, path, model)}") from None


def _expanded(value: Any, environment: Mapping[str, str], path: Path) -> Any:
    if isinstance(value, dict):
        return {key: _expanded(each, environment, path) for key, each in value.items()}
    if isinstance(value, list):
        return [_expanded(each, environment, path) for each in value]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        name, default = match["name"], match["default"]
        if name in environment:
            return environment[name]
        if default is None:
            raise ConfigError(
                f"{path} uses ${{{name}}}, which the environment does not set; set it, or give a "
                f"default as ${{{name}:default}}."
            )
        return default

    return re.sub(r"\$\{(?P<name>[A-Za-z_]\w*)(?::(?P<default>[^}]*))?\}", replace, value)


def _line(nodes: Any, path: Sequence[Any]) -> int | None:
    """The line on which the value at `path` stands, or that of the last part there is."""
    if nodes is None:
        return None
    line = nodes.start_mark.line + 1
    for part in path:
        found = None
        for key, value in nodes.value if isinstance(nodes, yaml.MappingNode) else ():
            if key.value == str(part):
                found, line = value, key.start_mark.line + 1
        if isinstance(nodes, yaml.SequenceNode) and isinstance(part, int):
            found = nodes.value[part]
            line = found.start_mark.line + 1
        if found is None:
            break
        nodes = found
    return int(line)


def _sentence(problem: Any, path: Sequence[Any], model: type[BaseModel]) -> str:
    name = ".".join(str(part) for part in path) or "the pipeline"
    if problem["type"] == "extra_forbidden":
        return f"{name} is no field{nearest(str(path[-1]), _fields(model, path[:-1]))}"
    if problem["type"] == "missing":
        return f"{name} is missing."
    message = str(problem["msg"]).removeprefix("Value error, ")
    return f"{name} {message[0].lower()}{message[1:].rstrip('.')}."


def _fields(model: type[BaseModel], path: Sequence[Any]) -> list[str]:
    parts: dict[str, list[type[BaseModel]]] = {
        "source": [Kafka],
        "sink": [Postgres, KafkaSink],
        "dead_letters": [DeadLetters],
    }
    models = parts.get(str(path[0]), [model]) if path else [model]
    return [field.alias or name for m in models for name, field in m.model_fields.items()]
