"""Schemas that a pipeline declares: whether they can be read, and whether data fit them.

`check` looks at the first rows of files that are there already. Records of a topic are not looked
at: those that do not fit become dead letters.
"""

from collections.abc import Mapping, Sequence

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from tallygate.errors import ConfigError
from tallygate.spark.error_text import reason

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
            f"{where} does not fit the data: {reason(error)}. Change the schema, or mend the file; "
            "if the first line of each CSV names the columns, say `options: {header: true}`."
        ) from None


def refuse_header(
    spark: SparkSession, path: str, schema: t.StructType, options: Mapping[str, str], where: str
) -> None:
    """Raise if the first line of CSV names the columns, and no option says so: it would be taken
    for a row. A file that cannot be read says why when it is."""
    said = {name.lower(): value for name, value in options.items()}
    if "header" in said:
        return
    listing = {
        name: said[name] for name in ("pathglobfilter", "recursivefilelookup") if name in said
    }
    try:
        first = (
            spark.read.options(**listing).text(path).select("value", "_metadata.file_path").first()
        )
    except (PySparkException, Py4JJavaError):
        return
    separator = said.get("sep", said.get("delimiter", ","))
    if first is not None and names_columns(first[0], schema.fieldNames(), separator):
        file = first[1].removeprefix("file://").removeprefix("file:")
        raise ConfigError(
            f"{where}: the first line of {file} names the columns; say `options: {{header: true}}`."
        )


def names_columns(line: str, fields: Sequence[str], separator: str = ",") -> bool:
    """Whether a line of CSV holds the names of the fields, in whatever case."""
    cells = line.removeprefix("\ufeff").strip().split(separator)
    return [each.strip().strip('"').lower() for each in cells] == [each.lower() for each in fields]
