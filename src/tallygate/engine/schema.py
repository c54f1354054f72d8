"""Schemas that a pipeline declares: whether they can be read, and whether data fit them.

`check` looks at the first rows of files that are there already. Records of a topic are not looked
at: those that do not fit become dead letters.
"""

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import types as t

from tallygate.errors import ConfigError
from tallygate.spark.error_text import reason

__all__ = ["check_sample", "declared"]

SAMPLE = 1000


def declared(ddl: str, where: str) -> t.StructType:
    """The fields that a text declares; `where` says where it stands."""
    try:
        schema: t.DataType = t.StructType.fromDDL(ddl)
    except PySparkException as error:
        raise ConfigError(
            f"{where}: {ddl!r} cannot be read: {reason(error)}. Write it as `id long, name string`."
        ) from None
    if not isinstance(schema, t.StructType):
        raise ConfigError(f"{where}: {ddl!r} names no field. Write it as `id long, name string`.")
    return schema


def check_sample(rows: DataFrame, where: str) -> None:
    """Raise if the first of the rows do not fit the schema that they are read with."""
    try:
        rows.limit(SAMPLE).collect()
    except (PySparkException, Py4JJavaError) as error:
        raise ConfigError(
            f"{where} does not fit the data: {reason(error)}. Change the schema, or mend the file."
        ) from None
