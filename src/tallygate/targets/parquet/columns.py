"""The columns of a folder: every file of it has the same, so that any reader can take them all."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from tallygate.errors import TargetError
from tallygate.spark.error_text import reason
from tallygate.targets.parquet.folder import PARTITION


def arrow_columns(schema: t.StructType) -> pa.Schema:
    """The Arrow types of a frame's columns. All may be null: what Spark knows of that changes with
    the query, and a folder's columns must not."""
    seen: dict[str, str] = {}
    fields = []
    for column in schema.fields:
        name = column.name.lower()
        if name == PARTITION:
            raise TargetError(
                f"the pipeline makes a column {column.name!r}; in a Parquet folder that name "
                "stands for the commits. Give it another."
            )
        if name in seen:
            raise TargetError(
                f"the pipeline makes the columns {seen[name]!r} and {column.name!r}, which readers "
                "of Parquet cannot tell apart. Rename one."
            )
        seen[name] = column.name
        fields.append(pa.field(column.name, _arrow_type(column)))
    return pa.schema(fields)


def _arrow_type(column: t.StructField) -> pa.DataType:
    try:
        found = to_arrow_type(_nullable(column.dataType), timestamp_utc=True)
        pq.ParquetWriter(io.BytesIO(), pa.schema([pa.field(column.name, found)])).close()
    except (PySparkException, pa.ArrowException, NotImplementedError) as error:
        raise TargetError(
            f"column {column.name!r} ({column.dataType.simpleString()}) cannot be kept in Parquet: "
            f"{reason(error)}. Cast it to another type."
        ) from None
    return found


def _nullable(kind: t.DataType) -> t.DataType:
    if isinstance(kind, t.StructType):
        fields = [t.StructField(f.name, _nullable(f.dataType), True) for f in kind.fields]
        return t.StructType(fields)
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(_nullable(kind.elementType), True)
    if isinstance(kind, t.MapType):
        return t.MapType(_nullable(kind.keyType), _nullable(kind.valueType), True)
    return kind


def described(schema: pa.Schema) -> tuple[tuple[str, str], ...]:
    """Columns as the ledger keeps them."""
    return tuple((field.name, str(field.type)) for field in schema)


def differences(held: tuple[tuple[str, str], ...], given: tuple[tuple[str, str], ...]) -> list[str]:
    """How the columns of the pipeline differ from those of the folder; their order does not."""
    there, here = dict(held), dict(given)
    found = [f"it has no column {name!r} ({here[name]})" for name in here if name not in there]
    found += [
        f"the pipeline has no column {name!r} ({there[name]})" for name in there if name not in here
    ]
    return found + [
        f"{name!r} is {there[name]} there and {here[name]} here"
        for name in here
        if name in there and there[name] != here[name]
    ]
