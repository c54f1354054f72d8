"""Where a pipeline's records come from."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from tallygate.spec.part import Names, Options, Part, refusing
from tallygate.units import size_bytes, time_ms


class SourcePart(Part):
    """What differs between sources and matters elsewhere."""

    read_once: ClassVar[bool] = False
    """Whether what was read is gone, so that each run begins by itself."""

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that it names."""
        return ()

    @property
    def said(self) -> str:
        """What it is called, for people."""
        return "rows by rate"

    def from_the_start(self) -> "SourcePart":
        """The same, read from its earliest record."""
        return self


class Kafka(SourcePart):
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
    start: Annotated[str | dict[str, dict[int, int]], refusing(time_ms, "earliest", "latest")] = (
        Field(
            "earliest",
            description="Where a new pipeline starts: earliest, latest, a time, or offsets "
            "as {topic: {partition: offset}}.",
        )
    )
    max_records: int | None = Field(None, gt=0, description="The most records in one batch.")
    max_record: Annotated[str, refusing(size_bytes)] = Field(
        "32MB",
        description="The most bytes of a record, as 32MB, or unlimited; a larger one becomes a "
        "dead letter.",
    )
    headers: bool = Field(False, description="Whether the transform sees `_headers`.")
    bootstrap_servers: str | None = Field(
        None, description="Brokers other than the configured ones."
    )
    options: Options = Field(
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
        if isinstance(self.start, dict) and self.pattern:
            raise ValueError("by pattern cannot start at given offsets; name the topics")
        return self

    @property
    def topics(self) -> tuple[str, ...]:
        return self.topic

    @property
    def said(self) -> str:
        return ", ".join(self.topic) or f"pattern {self.pattern}"

    def from_the_start(self) -> "Kafka":
        return self.model_copy(update={"start": "earliest"})


class Files(SourcePart):
    """Files in a folder, each read once, as they come."""

    folder: str = Field(min_length=1, description="The folder.")
    format: Literal["text", "csv", "json", "parquet"] = Field(
        "json", description="What the files hold; json means an object a line."
    )
    schema_: str | None = Field(
        None, alias="schema", description="The fields, as in SQL: `id long, name string`."
    )
    max_files: int | None = Field(None, gt=0, description="The most files in one batch.")
    options: Options = Field(
        {}, description="Options of Spark's reader for the format, as `header`."
    )

    def __init__(self, folder: str | None = None, /, **fields: Any) -> None:
        super().__init__(**({} if folder is None else {"folder": folder}), **fields)

    @model_validator(mode="after")
    def _fits(self) -> "Files":
        if self.format == "text" and self.schema_:
            raise ValueError("of format text has a schema by itself; leave schema out")
        if self.format != "text" and not self.schema_:
            raise ValueError(f"of format {self.format} needs a schema, as `id long, name string`")
        return self

    @property
    def said(self) -> str:
        return f"{self.format} files in {self.folder}"


class Socket(SourcePart):
    """Lines of text from a TCP server. They cannot be read twice."""

    read_once: ClassVar[bool] = True

    port: int = Field(gt=0, le=65535, description="The server's port.")
    host: str = Field("127.0.0.1", description="The server's host.")

    @property
    def said(self) -> str:
        return f"socket {self.host}:{self.port}"


class Rate(SourcePart):
    """Rows that Spark makes by itself, `timestamp` and `value`, for trying things out."""

    rate: int = Field(gt=0, description="Rows a second.")


def _kind(source: Any) -> str:
    """A source is told apart by what it names."""
    if not isinstance(source, dict):
        return type(source).__name__.lower()
    for field, kind in (("folder", "files"), ("port", "socket"), ("rate", "rate")):
        if field in source:
            return kind
    return "kafka"


Source = Annotated[
    Annotated[Kafka, Tag("kafka")]
    | Annotated[Files, Tag("files")]
    | Annotated[Socket, Tag("socket")]
    | Annotated[Rate, Tag("rate")],
    Discriminator(
        _kind,
        custom_error_type="source",
        custom_error_message="is not a source; write a mapping, as {topic: payments, schema: …}",
    ),
]
