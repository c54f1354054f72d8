"""Two frames compared by Spark, in groups of rows: memory does not grow with the rows.

**Sums of floating-point numbers are close, not equal.** A stream adds them up batch by batch, an
audit in one go, and their last bits depend on the order. So they are no part of a hash, and two of
them are the same if the order can be all that makes them differ. It is unsure near zero, where what
is left of large numbers that cancel out may be anything, and where rows cannot be told apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from tallygate.auditing.comparable import content_hash
from tallygate.auditing.verdict import Anomaly
from tallygate.quoting import backticked

EXAMPLES = 5
UNSURE = "unsure"
TOLERANCE: dict[type[t.DataType], float] = {t.DoubleType: 1e-9, t.FloatType: 1e-6}


@dataclass(frozen=True)
class Compared:
    rows: int
    """Rows of the sink that were looked at."""
    anomalies: tuple[Anomaly, ...]
    unsure: int = 0
    """Rows with sums that may be the same or not."""


def compared(
    expected: DataFrame,
    found: DataFrame,
    by: Sequence[str],
    content: Sequence[str],
    close: Sequence[str] = (),
) -> Compared:
    """Group both by the columns `by`, and compare how many rows there are and what they hold: the
    columns `content` to the last bit, the columns `close` nearly."""
    mine = _summed(expected, by, content, close).alias("mine")
    theirs = _summed(found, by, content, close).alias("theirs")
    joined = mine.join(theirs, same([f"by{n}" for n in range(len(by))]), "full_outer")
    wanted, there = f.coalesce("mine.rows", f.lit(0)), f.coalesce("theirs.rows", f.lit(0))
    kind = _kind(wanted, there)
    if close:
        kind = _kind_of_sums(kind, wanted, expected, close)
    size = f.when(kind.isin("different", UNSURE), 1).otherwise(f.abs(there - wanted))
    place = _place({name: f.coalesce(f"mine.by{n}", f"theirs.by{n}") for n, name in enumerate(by)})
    return _counted(
        joined.select(
            kind.alias("kind"), size.alias("size"), place.alias("place"), there.alias("there")
        )
    )


def _kind(wanted: Column, there: Column) -> Column:
    return (
        f.when(there == 0, "missing")
        .when(wanted == 0, "unexpected")
        .when(there > wanted, "duplicate")
        .when(there < wanted, "missing")
        .when(f.col("mine.hash") != f.col("theirs.hash"), "different")
    )


def _kind_of_sums(kind: Column, wanted: Column, like: DataFrame, close: Sequence[str]) -> Column:
    """Of several rows in a group only the smallest and the largest numbers are known."""
    bounds = {name: (f"low{n}", f"high{n}") for n, name in enumerate(close)}
    tightly, loosely = (_near(like, bounds, least) for least in (0.0, 1.0))
    known = same([f"known{n}" for n in range(len(close))])
    exactly = f.col("mine.exact") == f.col("theirs.exact")
    kind = kind.when(~(known & loosely), "different")
    return kind.when(~exactly & ((wanted > 1) | ~tightly), UNSURE)


def _counted(judged: DataFrame) -> Compared:
    totals = judged.groupBy("kind").agg(f.sum("size").alias("count"), f.sum("there").alias("rows"))
    rows = totals.collect()
    counts = {row["kind"]: int(row["count"]) for row in rows if row["kind"] is not None}
    unsure = counts.pop(UNSURE, 0)
    anomalies = tuple(
        Anomaly(kind, count, _examples(judged.where(f.col("kind") == kind)))
        for kind, count in counts.items()
    )
    return Compared(sum(int(row["rows"]) for row in rows), anomalies, unsure)


def strangers(
    expected: DataFrame,
    found: DataFrame,
    by: Sequence[str],
    content: Sequence[str],
    close: Sequence[str] = (),
) -> list[Anomaly]:
    """Rows whose key should be there, and that equal no row that the transform gives for it."""
    mine, theirs = expected.alias("mine"), found.alias("theirs")
    like = same([*by, *content]) & _near(expected, {name: (name,) for name in close}, 1.0)
    wrong = theirs.join(mine, same(by), "left_semi").join(mine, like, "left_anti")
    count = wrong.count()
    if not count:
        return []
    place = _place({name: f.col(backticked(name)) for name in by})
    return [Anomaly("different", count, _examples(wrong.select(place.alias("place"))))]


def _examples(places: DataFrame) -> tuple[str, ...]:
    """Looked for in a second pass, and only where there are some."""
    rows = places.select("place").limit(EXAMPLES).collect()
    return tuple(sorted(row["place"] for row in rows))


def _place(columns: Mapping[str, Column]) -> Column:
    parts = [column.alias(name) for name, column in columns.items()]
    return f.to_json(f.struct(*parts)) if parts else f.lit("{}")


def same(names: Sequence[str]) -> Column:
    """Whether both sides, `mine` and `theirs`, have the same in these columns; nothing is the same
    as nothing."""
    pairs = [_pair(name) for name in names]
    return reduce(Column.__and__, (a.eqNullSafe(b) for a, b in pairs), f.lit(True))


def _near(like: DataFrame, parts: Mapping[str, Sequence[str]], least: float) -> Column:
    """Whether numbers differ by no more than the order in which they were added up can explain;
    those that are smaller than `least` count as that large. `parts` are the columns that stand for
    each of the frame's."""
    found = f.lit(True)
    for name, columns in parts.items():
        tolerance = TOLERANCE[type(like.schema[name].dataType)]
        for mine, theirs in map(_pair, columns):
            gap = f.abs(mine - theirs)
            size = f.greatest(f.abs(mine), f.abs(theirs), f.lit(least)) * tolerance
            near = (gap <= size) & (gap < f.lit(float("inf")))
            found = found & (mine.eqNullSafe(theirs) | f.coalesce(near, f.lit(False)))
    return found


def _pair(name: str) -> tuple[Column, Column]:
    return f.col(f"mine.{backticked(name)}"), f.col(f"theirs.{backticked(name)}")


def _summed(
    frame: DataFrame, by: Sequence[str], content: Sequence[str], close: Sequence[str]
) -> DataFrame:
    keys = [f.col(backticked(name)).alias(f"by{number}") for number, name in enumerate(by)]
    bounds: list[Column] = []
    for number, name in enumerate(close):
        value = f.col(backticked(name))
        bounds += [f.min(value).alias(f"low{number}"), f.max(value).alias(f"high{number}")]
        bounds.append(f.count(value).alias(f"known{number}"))
    return frame.groupBy(*keys).agg(
        f.count(f.lit(1)).alias("rows"),
        f.sum(content_hash(frame.schema, content).cast("decimal(20, 0)")).alias("hash"),
        f.sum(content_hash(frame.schema, close).cast("decimal(20, 0)")).alias("exact"),
        *bounds,
    )
