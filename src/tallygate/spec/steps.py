"""What happens to records between source and sink, declared as named steps.

Each step makes a view that later steps can use by name; the last one is the result. A step does
one thing: SQL, a function, or one of the operations that streams know.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SkipValidation, model_validator
from pydantic.json_schema import SkipJsonSchema

from tallygate.spec.part import Names, Options, Part, PlacedError, refusing
from tallygate.units import interval_ms


def _one(value: Mapping[str, str]) -> Mapping[str, str]:
    if len(value) != 1:
        raise ValueError("names one column and its delay, as `{at: 10 minutes}`")
    return value


Watermark = Annotated[dict[str, str], AfterValidator(_one)]


class Window(Part):
    """Windows of event time: tumbling by size, sliding by size and slide, sessions by gap."""

    on: str = Field(description="The column of the event's time.")
    size: str | None = Field(None, description="How long a window is, as `15 minutes`.")
    slide: str | None = Field(None, description="How far apart windows begin.")
    gap: str | None = Field(None, description="How long a pause ends a session.")

    @model_validator(mode="after")
    def _fits(self) -> "Window":
        if (self.size is None) == (self.gap is None):
            raise ValueError("needs either size (and slide) or gap")
        if self.slide is not None and self.size is None:
            raise ValueError("has a slide, which needs a size")
        return self


class Pivot(Part):
    """Values of one column as columns of their own, known in advance."""

    on: str = Field(description="The column whose values become columns.")
    values: tuple[str, ...] = Field(
        min_length=1, description="The values; a stream cannot add columns later."
    )
    aggregate: str = Field("count(*)", description="What each of them holds.")
    other: bool = Field(True, description="Whether all other values go to a column `other`.")

    @model_validator(mode="before")
    @classmethod
    def _is_closed(cls, given: Any) -> Any:
        """Refuse open columns; a field that is misspelt is another matter."""
        known = isinstance(given, dict) and set(given) <= set(cls.model_fields)
        if known and not given.get("values"):
            raise PlacedError(
                "must list the values that become columns, since the columns of a stream are "
                "fixed before it starts; all other values go to the column `other`",
                "values",
            )
        return given


class Join(Part):
    """A join with a static side, or with another stream within a bound of time."""

    with_: str = Field(alias="with", description="The name of the other side.")
    on: str = Field(description="The condition, as SQL over the two sides by their names.")
    how: Literal["inner", "left", "right", "full"] = Field("inner", description="inner or left.")


class Static(Part):
    """A table that does not stream: from a file, PostgreSQL or Delta."""

    file: str | None = Field(None, description="A file, or a folder of files.")
    format: Literal["csv", "json", "parquet"] = Field("csv", description="What the file holds.")
    schema_: str | None = Field(
        None, alias="schema", description="The fields, as in SQL: `id long, name string`."
    )
    table: str | None = Field(None, description="A table in PostgreSQL.")
    dsn: str | None = Field(None, description="Its database, if not the configured one.")
    delta: str | None = Field(None, description="The folder of a Delta table.")
    refresh: Annotated[str, refusing(interval_ms, "never", "on change")] = Field(
        "never", description="never, `on change`, or an interval such as `10m` to look for changes."
    )
    options: Options = Field({}, description="Options of Spark's reader, as `header`.")

    @model_validator(mode="after")
    def _fits(self) -> "Static":
        if sum(place is not None for place in (self.file, self.table, self.delta)) != 1:
            raise ValueError("needs one of file, table and delta")
        if self.file is not None and self.format != "parquet" and not self.schema_:
            raise ValueError(f"of format {self.format} needs a schema, as `id long, name string`")
        return self


OPERATIONS = ("sql", "function", "watermark", "dedup", "aggregate", "pivot", "join")


class Step(Part):
    """One step of a transform."""

    name: str | None = Field(None, description="What later steps call the result.")
    from_: str | None = Field(
        None, alias="from", description="The view to begin with, if not the step before."
    )
    sql: str | None = Field(None, description="SQL over the views so far.")
    function: Annotated[str | SkipJsonSchema[Callable[..., Any]] | None, SkipValidation] = Field(
        None, description="A function of a DataFrame, as `module:function`."
    )
    watermark: Watermark | None = Field(
        None, description="How late a record may be, as `{at: 10 minutes}`."
    )
    dedup: Names = Field(
        (), description="Keep the first record of these columns, within the watermark."
    )
    window: Window | None = Field(None, description="Windows to aggregate by.")
    group_by: Names = Field((), description="Columns to aggregate by.")
    aggregate: dict[str, str] = Field(
        {}, description="Columns of the result, as `{total: sum(amount)}`."
    )
    pivot: Pivot | None = Field(None, description="A pivot of the groups.")
    join: Join | None = Field(None, description="A join with another view.")

    @model_validator(mode="after")
    def _fits(self) -> "Step":
        given = [name for name in OPERATIONS if getattr(self, name)]
        grouped = [name for name in ("window", "group_by") if getattr(self, name)]
        if grouped and not given:
            raise ValueError(
                f"has {' and '.join(grouped)}, and no aggregate that says what to compute of each "
                "group; add one, as `aggregate: {count: count(*)}`"
            )
        if len(given) != 1:
            said = " and ".join(given) if given else "nothing"
            raise ValueError(f"does {said}; a step does one of {', '.join(OPERATIONS)}")
        if (self.window or self.group_by) and given[0] not in ("aggregate", "pivot"):
            raise ValueError("has window or group_by, which go with aggregate or pivot")
        return self
