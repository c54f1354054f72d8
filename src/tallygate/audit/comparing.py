"""Two frames compared, row by row or key by key, by Spark: memory does not grow with the rows."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from tallygate.audit.verdict import Anomaly
from tallygate.quoting import backticked

__all__ = ["Compared", "compared"]

EXAMPLES = 5


@dataclass(frozen=True)
class Compared:
    rows: int
    """Rows of the sink that were looked at."""
    anomalies: tuple[Anomaly, ...]


def compared(
    expected: DataFrame, found: DataFrame, by: Sequence[str], content: Sequence[str]
) -> Compared:
    """Group both by the columns `by`, and compare how many rows there are and what they hold."""
    joined = _summed(expected, by, content, "expected").join(
        _summed(found, by, content, "found"), list(by), "full_outer"
    )
    wanted, there = f.coalesce("expected_rows", f.lit(0)), f.coalesce("found_rows", f.lit(0))
    kind = (
        f.when(there == 0, "missing")
        .when(wanted == 0, "unexpected")
        .when(there > wanted, "duplicate")
        .when(there < wanted, "missing")
        .when(f.col("expected_hash") != f.col("found_hash"), "different")
    )
    size = f.when(kind == "different", 1).otherwise(f.abs(there - wanted))
    place = f.to_json(f.struct(*(f.col(backticked(name)) for name in by)))
    judged = joined.select(
        kind.alias("kind"), size.alias("size"), place.alias("place"), there.alias("there")
    )
    totals = judged.groupBy("kind").agg(f.sum("size").alias("count"), f.sum("there").alias("rows"))
    rows = totals.collect()
    anomalies = tuple(
        Anomaly(row["kind"], int(row["count"]), _examples(judged, row["kind"]))
        for row in rows
        if row["kind"] is not None
    )
    return Compared(sum(int(row["rows"]) for row in rows), anomalies)


def _examples(judged: DataFrame, kind: str) -> tuple[str, ...]:
    """Looked for in a second pass, and only where there are some."""
    rows = judged.where(f.col("kind") == kind).select("place").limit(EXAMPLES).collect()
    return tuple(sorted(row["place"] for row in rows))


def _summed(frame: DataFrame, by: Sequence[str], content: Sequence[str], side: str) -> DataFrame:
    return frame.groupBy(*(f.col(backticked(name)) for name in by)).agg(
        f.count(f.lit(1)).alias(f"{side}_rows"),
        f.sum(_hash(frame, content).cast("decimal(20, 0)")).alias(f"{side}_hash"),
    )


def _hash(frame: DataFrame, content: Sequence[str]) -> Column:
    """Of the content, nulls and their places included: xxhash64 alone passes them over."""
    parts: list[Column] = []
    for name in content:
        column = f.col(backticked(name))
        parts += [column.isNull(), column]
    return f.xxhash64(*parts) if parts else f.lit(0).cast("long")
