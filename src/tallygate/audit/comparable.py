"""Rows of two origins as values that can be compared."""

from collections.abc import Collection

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from tallygate.quoting import backticked

__all__ = ["comparable", "only"]

_LEFT_OUT = (
    t.MapType,
    t.StructType,
    t.VariantType,
    t.ArrayType,
    t.DayTimeIntervalType,
    t.YearMonthIntervalType,
)


def comparable(frame: DataFrame, like: t.StructType) -> tuple[DataFrame, list[str]]:
    """The frame with values as both sides can have them, and the columns that are left out: what
    PostgreSQL keeps as jsonb comes back as a text with another order of its keys."""
    left_out = [field.name for field in like.fields if isinstance(field.dataType, _LEFT_OUT)]
    chosen = [
        f.col(backticked(field.name)).cast(field.dataType).alias(field.name)
        for field in like.fields
        if field.name not in left_out
    ]
    return frame.select(*chosen), left_out


def only(schema: t.StructType, names: Collection[str]) -> t.StructType:
    """The fields that have one of these names."""
    return t.StructType([field for field in schema.fields if field.name in names])
