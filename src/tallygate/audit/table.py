"""The rows of a table in PostgreSQL, as of the audit's snapshot."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from tallygate.postgres.connecting import jdbc
from tallygate.quoting import backticked
from tallygate.sinks.postgres.table import Target

__all__ = ["comparable", "table_rows"]

FETCHED = 20_000


def table_rows(spark: SparkSession, dsn: str, target: Target, snapshot: str) -> DataFrame:
    """The whole table. Each task's transaction begins by taking over the snapshot."""
    url, access = jdbc(dsn)
    return (
        spark.read.format("jdbc")
        .option("url", url)
        .options(**access)
        .option("dbtable", target.quoted)
        .option("fetchsize", FETCHED)
        .option(
            "sessionInitStatement",
            f"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; "
            f"SET TRANSACTION SNAPSHOT '{snapshot}'",
        )
        .load()
    )


def comparable(frame: DataFrame, like: t.StructType) -> tuple[DataFrame, list[str]]:
    """The frame with values as both sides can have them, and the columns that are left out: what
    PostgreSQL keeps as jsonb comes back as a text with another order of its keys."""
    chosen, left_out = [], []
    for field in like.fields:
        kind = field.dataType
        if isinstance(kind, t.MapType | t.StructType | t.VariantType | t.ArrayType):
            left_out.append(field.name)
            continue
        if isinstance(kind, t.DayTimeIntervalType | t.YearMonthIntervalType):
            left_out.append(field.name)
            continue
        chosen.append(f.col(backticked(field.name)).cast(kind).alias(field.name))
    return frame.select(*chosen), left_out
