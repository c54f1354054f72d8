"""The rows of a table in PostgreSQL, as of the audit's snapshot."""

from collections.abc import Iterable

from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from tallygate.ledger.ranges import Range
from tallygate.sinks.postgres.table import Target

__all__ = ["comparable", "table_rows", "within"]

FETCHED = 20_000


def table_rows(spark: SparkSession, dsn: str, target: Target, snapshot: str) -> DataFrame:
    """The whole table. Each task's transaction begins by taking over the snapshot."""
    parts = conninfo_to_dict(dsn)
    return (
        spark.read.format("jdbc")
        .option("url", f"jdbc:postgresql://{parts['host']}:{parts['port']}/{parts['dbname']}")
        .option("user", str(parts["user"]))
        .option("password", str(parts["password"]))
        .option("driver", "org.postgresql.Driver")
        .option("dbtable", target.quoted)
        .option("fetchsize", FETCHED)
        .option(
            "sessionInitStatement",
            f"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; "
            f"SET TRANSACTION SNAPSHOT '{snapshot}'",
        )
        .load()
    )


def within(ranges: Iterable[Range]) -> Column:
    """Whether a row's record is in one of these ranges."""
    found = f.lit(False)
    for each in ranges:
        found = found | (
            (f.col("_topic") == each.topic)
            & (f.col("_partition") == each.partition)
            & (f.col("_offset") >= each.start)
            & (f.col("_offset") < each.until)
        )
    return found


def comparable(frame: DataFrame, like: t.StructType) -> tuple[DataFrame, list[str]]:
    """The frame with values as both sides can have them, and the columns that are left out: what
    PostgreSQL keeps as jsonb comes back as a text with another order of its keys."""
    chosen, left_out = [], []
    for field in like.fields:
        kind = field.dataType
        if isinstance(kind, t.MapType | t.StructType | t.VariantType | t.ArrayType):
            left_out.append(field.name)
            continue
        name = "`" + field.name.replace("`", "``") + "`"
        if isinstance(kind, t.DayTimeIntervalType | t.YearMonthIntervalType):
            left_out.append(field.name)
            continue
        chosen.append(f.col(name).cast(kind).alias(field.name))
    return frame.select(*chosen), left_out
