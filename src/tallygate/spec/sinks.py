"""Where a pipeline's rows go, and which deliveries that allows."""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    SkipValidation,
    Tag,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

from tallygate.spec.part import Names, Part

Delivery = Literal["at-most-once", "at-least-once", "idempotent", "exactly-once"]


def _without(modes: tuple[str, ...], why: str) -> BeforeValidator:
    """Refuse modes that other sinks have and this one cannot take, with the reason."""

    def check(mode: Any) -> Any:
        if mode in modes:
            raise ValueError(f"cannot be {mode}: {why}")
        return mode

    return BeforeValidator(check)


class SinkPart(Part):
    """What differs between sinks and matters elsewhere."""

    keeps_ledger: ClassVar[bool] = True
    is_topic: ClassVar[bool] = False
    decodes: ClassVar[bool] = False
    """Whether it takes raw records, and decodes them next to the write."""
    needs_delta: ClassVar[bool] = False
    instead: ClassVar[str] = "use mode upsert with the groups as the key"
    """What to do with groups that change again and again, in place of appending them."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that rows must have, since the sink tells rows apart by them."""
        return ()

    @property
    def kind(self) -> str:
        return type(self).__name__.lower()

    def check_delivery(self, delivery: str) -> None:
        """Refuse a delivery that the sink cannot honestly give."""
        if delivery == "idempotent":
            raise ValueError("delivery idempotent needs sink.key: the columns that identify a row")

    def strategies(self, *, narrow: bool) -> str:
        """How batches are committed, for people."""
        return "whole batches"


class _Unmanaged(SinkPart):
    """A sink without a ledger: nothing but Spark's checkpoint knows what it was given."""

    keeps_ledger: ClassVar[bool] = False
    instead: ClassVar[str] = "use mode upsert, which gives a group again when it has changed"

    def check_delivery(self, delivery: str) -> None:
        super().check_delivery(delivery)
        if delivery == "exactly-once":
            raise ValueError(
                f"sink {self.kind} keeps no ledger, so exactly-once cannot be given; say "
                "`delivery: at-least-once`"
            )


class Postgres(SinkPart):
    """A table in PostgreSQL, which holds the rows and the ledger."""

    decodes: ClassVar[bool] = True

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
    shared: bool = Field(
        False,
        description="Whether others write to the table too; an audit then leaves their rows out.",
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

    @property
    def keys(self) -> tuple[str, ...]:
        return self.key

    def check_delivery(self, delivery: str) -> None:
        if not self.key:
            super().check_delivery(delivery)

    def strategies(self, *, narrow: bool) -> str:
        used = "by partition" if narrow and self.mode == "append" else "staged"
        return f"{used}; small batches by the driver"


class KafkaSink(SinkPart):
    """A topic that rows are written to in transactions, which hold the ledger too."""

    is_topic: ClassVar[bool] = True
    decodes: ClassVar[bool] = True
    instead: ClassVar[str] = (
        "write to PostgreSQL or Delta, with mode upsert and the groups as the key"
    )

    topic: str = Field(min_length=1, description="The topic.")
    mode: Annotated[
        Literal["append"],
        _without(
            ("upsert", "replace"),
            "a topic keeps every record and cannot take one back; append, or write to PostgreSQL "
            "or Delta, which can",
        ),
    ] = Field("append", description="A topic can only be appended to.")
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

    @property
    def keys(self) -> tuple[str, ...]:
        return () if self.key is None else (self.key,)

    def check_delivery(self, delivery: str) -> None:
        if delivery == "idempotent":
            raise ValueError(
                "delivery idempotent needs a table with a key; a topic keeps every record"
            )

    def strategies(self, *, narrow: bool) -> str:
        return "a transaction a partition" if narrow else "lanes"


class Parquet(SinkPart):
    """A folder of Parquet files in which each batch appears whole, for any reader."""

    instead: ClassVar[str] = KafkaSink.instead

    parquet: str = Field(min_length=1, description="The folder, on a file system of this machine.")
    mode: Annotated[
        Literal["append"],
        _without(
            ("upsert", "replace"),
            "a file that readers may have open is never changed; append, or write to PostgreSQL "
            "or Delta, which can change rows",
        ),
    ] = Field("append", description="A folder can only be appended to.")
    coordinates: bool = Field(
        True, description="Whether rows carry `_topic`, `_partition` and `_offset`, if they can."
    )
    driver_rows: int = Field(
        20_000, ge=0, description="Batches of up to so many records become one file."
    )

    def __init__(self, parquet: str | None = None, /, **fields: Any) -> None:
        super().__init__(**({} if parquet is None else {"parquet": parquet}), **fields)

    def check_delivery(self, delivery: str) -> None:
        _check_only_once(self.kind, delivery)


class Delta(SinkPart):
    """A Delta table, whose own transactions hold the rows and the ledger."""

    needs_delta: ClassVar[bool] = True

    delta: str = Field(min_length=1, description="The table's folder.")
    mode: Literal["append", "upsert", "replace"] = Field(
        "append", description="As for a table in PostgreSQL."
    )
    key: Names = Field((), description="The columns that identify a row.")
    coordinates: bool = Field(
        True, description="Whether rows carry `_topic`, `_partition` and `_offset`, if they can."
    )

    def __init__(self, delta: str | None = None, /, **fields: Any) -> None:
        super().__init__(**({} if delta is None else {"delta": delta}), **fields)

    @model_validator(mode="after")
    def _fits(self) -> "Delta":
        if self.mode == "upsert" and not self.key:
            raise ValueError("with mode upsert needs a key: the columns that identify a row")
        if self.mode != "upsert" and self.key:
            raise ValueError(f"with mode {self.mode} has no use for a key; it goes with upsert")
        return self

    @property
    def keys(self) -> tuple[str, ...]:
        return self.key

    def check_delivery(self, delivery: str) -> None:
        _check_only_once(self.kind, delivery)


class Foreach(_Unmanaged):
    """An object of your own for each task: `open(partition, batch)`, `process(row)`, `close()`."""

    foreach: Annotated[str | SkipJsonSchema[Callable[..., Any]], SkipValidation] = Field(
        description="What makes the object, as `module:name`."
    )
    mode: Literal["append", "upsert", "replace"] = Field(
        "append", description="What a batch holds: new rows, changed rows, or all rows."
    )

    def __init__(self, foreach: Any = None, /, **fields: Any) -> None:
        super().__init__(**({} if foreach is None else {"foreach": foreach}), **fields)


class Console(_Unmanaged):
    """The first rows of each batch, printed."""

    console: int = Field(20, ge=1, description="How many rows of each batch.")
    mode: Literal["append", "upsert", "replace"] = Field(
        "append", description="What a batch holds: new rows, changed rows, or all rows."
    )


class Memory(_Unmanaged):
    """A temporary view of the Spark session that holds all rows, for tests and notebooks."""

    instead: ClassVar[str] = "use mode replace"

    memory: str = Field(min_length=1, description="The view's name.")
    mode: Annotated[
        Literal["append", "replace"],
        _without(
            ("upsert",),
            "a view in memory has no key by which to find the row to change; append, replace the "
            "whole view, or write to PostgreSQL or Delta",
        ),
    ] = Field("append", description="append adds rows, replace keeps those of the last batch.")

    def __init__(self, memory: str | None = None, /, **fields: Any) -> None:
        super().__init__(**({} if memory is None else {"memory": memory}), **fields)


_KINDS = {
    "table": "postgres",
    "topic": "kafka",
    "parquet": "parquet",
    "delta": "delta",
    "foreach": "foreach",
    "console": "console",
    "memory": "memory",
}


def _kind(sink: Any) -> str:
    """A sink is told apart by what it names: a table, a topic, a folder."""
    if not isinstance(sink, dict):
        return {"KafkaSink": "kafka"}.get(type(sink).__name__, type(sink).__name__.lower())
    return next((kind for field, kind in _KINDS.items() if field in sink), "postgres")


Sink = Annotated[
    Annotated[Postgres, Tag("postgres")]
    | Annotated[KafkaSink, Tag("kafka")]
    | Annotated[Parquet, Tag("parquet")]
    | Annotated[Delta, Tag("delta")]
    | Annotated[Foreach, Tag("foreach")]
    | Annotated[Console, Tag("console")]
    | Annotated[Memory, Tag("memory")],
    Discriminator(
        _kind,
        custom_error_type="sink",
        custom_error_message="is not a sink; write a mapping, as {table: payments}",
    ),
]


def _check_only_once(kind: str, delivery: str) -> None:
    if delivery != "exactly-once":
        raise ValueError(f"sink {kind} is always written exactly-once; leave delivery out")
