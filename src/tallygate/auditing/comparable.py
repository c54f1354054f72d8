"""Rows of two origins as values that can be compared, and which of their columns cannot."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from tallygate.core.decoding import COORDINATES
from tallygate.quoting import backticked
from tallygate.spark.unsteady import unsteady_in

_DOUBLES = (t.DoubleType, t.FloatType)
_NESTED = (t.ArrayType, t.MapType, t.StructType)
_INTERVALS = (t.DayTimeIntervalType, t.YearMonthIntervalType)


@dataclass(frozen=True)
class Sides:
    """What should be there and what is there, in the same columns."""

    expected: DataFrame
    found: DataFrame
    content: tuple[str, ...]
    """The columns to compare value by value; coordinates are none of them."""
    close: tuple[str, ...]
    """Those whose last bits depend on the order in which they were added up."""
    left_out: tuple[str, ...]
    """Those whose types cannot be compared."""
    absent: tuple[str, ...]
    """Those that the sink does not have."""

    @property
    def unknown(self) -> tuple[str, ...]:
        return tuple(
            f"the sink has no column {name}, so what it should hold was not compared"
            for name in self.absent
        )


def sides_of(expected: DataFrame, found: DataFrame, *, summed: bool = False) -> Sides:
    """Both with the expected columns that both have; `summed` says that floating-point numbers may
    be sums over several records."""
    there = {field.name.lower(): field.dataType for field in found.schema.fields}
    absent = [name for name in expected.columns if name.lower() not in there]
    shared = [field for field in expected.schema.fields if field.name not in absent]
    left_out = [
        field.name
        for field in shared
        if not _fits(field.dataType, there[field.name.lower()], summed=summed)
    ]
    columns = [
        _plain(f.col(backticked(field.name)).cast(field.dataType), field.dataType).alias(field.name)
        for field in shared
        if field.name not in left_out
    ]
    passed = {*COORDINATES, *left_out, *unsteady_in(expected).columns}
    content = [field for field in shared if field.name not in passed]
    close = [field.name for field in content if summed and isinstance(field.dataType, _DOUBLES)]
    return Sides(
        expected.select(*columns),
        found.select(*columns),
        tuple(field.name for field in content if field.name not in close),
        tuple(close),
        tuple(left_out),
        tuple(name for name in absent if name not in COORDINATES),
    )


def content_hash(schema: t.StructType, names: Sequence[str]) -> Column:
    """Of what rows hold in these columns, nulls and their places included."""
    parts = [
        part for name in names for part in _marked(f.col(backticked(name)), schema[name].dataType)
    ]
    return f.xxhash64(*parts) if parts else f.lit(0).cast("long")


def _marked(column: Column, kind: t.DataType) -> list[Column]:
    """A value after whether it is null: xxhash64 alone passes nulls over, nested ones too, and does
    not see where one value ends and the next begins."""
    inside = column
    if isinstance(kind, t.ArrayType):
        inner = kind.elementType
        inside = f.transform(column, lambda item: f.struct(*_marked(item, inner)))
    elif isinstance(kind, t.StructType):
        fields = [_marked(column[each.name], each.dataType) for each in kind]
        inside = f.struct(*(part for parts in fields for part in parts))
    return [column.isNull(), inside]


def _fits(mine: t.DataType, theirs: t.DataType, *, summed: bool) -> bool:
    """Whether values can be compared. A table in PostgreSQL gives nested ones and intervals back
    as texts, with keys in another order; a variant has no order of its keys at all; and sums are
    compared closely only where they are columns."""
    if _holds(mine, (t.VariantType,)):
        return False
    if isinstance(mine, _NESTED) and summed and _holds(mine, _DOUBLES):
        return False
    same = mine.simpleString() == theirs.simpleString()
    return same or not isinstance(mine, (*_NESTED, *_INTERVALS))


def _plain(column: Column, kind: t.DataType) -> Column:
    """The value without maps, which have no order and therefore no hash."""
    if not _holds(kind, (t.MapType,)):
        return column
    if isinstance(kind, t.ArrayType):
        return f.transform(column, lambda item: _plain(item, kind.elementType))
    if isinstance(kind, t.StructType):
        fields = [_plain(column[each.name], each.dataType).alias(each.name) for each in kind]
        return f.when(column.isNotNull(), f.struct(*fields))
    assert isinstance(kind, t.MapType)
    inner = kind.valueType
    entries = f.transform(
        f.map_entries(column),
        lambda entry: f.struct(entry["key"], _plain(entry["value"], inner).alias("value")),
    )
    return f.sort_array(entries)


def _holds(kind: t.DataType, what: tuple[type[t.DataType], ...]) -> bool:
    """Whether a type is one of these, or has one inside."""
    inside: list[t.DataType] = []
    if isinstance(kind, t.ArrayType):
        inside = [kind.elementType]
    elif isinstance(kind, t.MapType):
        inside = [kind.keyType, kind.valueType]
    elif isinstance(kind, t.StructType):
        inside = [field.dataType for field in kind.fields]
    return isinstance(kind, what) or any(_holds(each, what) for each in inside)
