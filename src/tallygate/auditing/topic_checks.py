"""What readings of a topic show that single rows do not: order, and what was aborted.

The frames hold `key`, `value`, the coordinates of the source's record if they are known, and
`_at_partition` and `_at_offset`, which say where in the topic the record is.
"""

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from tallygate.auditing.comparing import EXAMPLES
from tallygate.auditing.verdict import Anomaly
from tallygate.core.decoding import COORDINATES
from tallygate.core.offsets import Range
from tallygate.targets.batch_input import within
from tallygate.targets.snapshot import Snapshot

_AT = ("_at_partition", "_at_offset")


def read_twice(snapshot: Snapshot, expected: DataFrame, checked: Sequence[Range]) -> list[Anomaly]:
    """What Jepsen's workload looks for and rows alone do not tell; `expected` is what should be
    there of the ranges that could be read again."""
    readings = snapshot.readings()
    if readings is None:
        return []
    seen, everything = readings
    found, reached = two_readings(seen, everything), snapshot.ledger.reached.values()
    if set(COORDINATES) <= set(seen.columns):
        found += disordered(seen)
        known = seen.where(within(checked) | ~f.coalesce(within(reached), f.lit(False)))
        return found + aborted_twins(
            known, seen, everything, expected, ["key", "value", *COORDINATES]
        )
    if set(checked) == set(filter(len, reached)):
        found += aborted_twins(seen, seen, everything, expected, ["key", "value"])
    return found


def two_readings(committed: DataFrame, everything: DataFrame) -> list[Anomaly]:
    """A reading of what was committed is a part of a reading of everything."""
    mine = committed.select(*_AT, _content().alias("mine"))
    theirs = everything.select(*_AT, _content().alias("theirs"))
    both = mine.join(theirs, list(_AT), "left")
    found = []
    for kind, wrong in (
        ("skipped", f.col("theirs").isNull()),
        ("inconsistent", f.col("mine") != f.col("theirs")),
    ):
        found += _anomaly(kind, both.where(wrong), _AT)
    return found


def disordered(rows: DataFrame) -> list[Anomaly]:
    """Records of one key from one partition of the source must come in the order of their offsets.
    Of a row that is there twice the first counts: that it is there twice is said elsewhere."""
    key = ("key", "_topic", "_partition", "_at_partition")
    first = rows.where("key IS NOT NULL AND _offset IS NOT NULL").groupBy(*key, "_offset")
    placed = first.agg(f.min("_at_offset").alias("_at_offset"))
    before = f.max("_offset").over(
        Window.partitionBy(*key).orderBy("_at_offset").rowsBetween(Window.unboundedPreceding, -1)
    )
    wrong = placed.withColumn("before", before).where("before > _offset")
    return _anomaly("disordered", wrong, COORDINATES)


def aborted_twins(
    known: DataFrame,
    committed: DataFrame,
    everything: DataFrame,
    expected: DataFrame,
    by: Sequence[str],
) -> list[Anomaly]:
    """Rows that are one too many, and of which an aborted write is there too. An aborted write
    alone is nothing: what is tried again is often sent again. `known` are the committed rows of
    which it is known how many there should be."""
    gone = everything.join(committed.select(*_AT), list(_AT), "left_anti").select(*by).distinct()
    if gone.isEmpty():
        return []
    wanted = expected.groupBy(*by).agg(f.count(f.lit(1)).alias("wanted"))
    there = known.groupBy(*by).agg(f.count(f.lit(1)).alias("there"))
    twins = _joined(there, gone, by, "left_semi")
    both = _joined(twins, wanted, by, "left")
    surplus = f.col("there") - f.coalesce("wanted", f.lit(0))
    wrong = both.select(*(f.col(f"left.{name}") for name in by), surplus.alias("surplus")).where(
        "surplus > 0"
    )
    shown = COORDINATES if set(COORDINATES) <= set(by) else ("key",)
    return _anomaly("aborted", wrong, shown, f.sum("surplus"))


def _joined(left: DataFrame, right: DataFrame, by: Sequence[str], how: str) -> DataFrame:
    """By columns that may be null."""
    same = [f.col(f"left.{name}").eqNullSafe(f.col(f"right.{name}")) for name in by]
    condition = reduce(Column.__and__, same)
    joined = left.alias("left").join(right.alias("right"), condition, how)
    if how == "left_semi":
        return joined
    return joined.select("left.*", "right.wanted").alias("left")


def _anomaly(
    kind: str, wrong: DataFrame, shown: Sequence[str], size: Column | None = None
) -> list[Anomaly]:
    counted = wrong.agg((f.count(f.lit(1)) if size is None else size).alias("count")).collect()
    count = int(counted[0]["count"] or 0)
    if not count:
        return []
    texts = [f.col(name).cast("string").alias(name) for name in shown]
    places = wrong.select(f.to_json(f.struct(*texts)).alias("place")).limit(EXAMPLES).collect()
    return [Anomaly(kind, count, tuple(sorted(row["place"] for row in places)))]


def _content() -> Column:
    return f.xxhash64(f.col("key").isNull(), "key", f.col("value").isNull(), "value")
