"""Two frames compared, by Spark: memory does not grow with the rows.

Rows that carry coordinates are first compared by digests: for each stretch of offsets how many rows
there are, and two sums of their hashes, which need neither a shuffle of the rows nor a sort. Only
the stretches whose digests differ are then compared row by row.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from tallygate.audit.verdict import Anomaly
from tallygate.ledger.ranges import Place, Range
from tallygate.quoting import backticked
from tallygate.records.decoding import COORDINATES
from tallygate.sinks.tasks import within

__all__ = ["EXAMPLES", "Compared", "Digests", "compared", "differing", "digests", "stretch"]

EXAMPLES = 5
FEWEST, MOST_STRETCHES = 4096, 20_000
INSIDE, AROUND, OUTSIDE = 0, 1, 2


@dataclass(frozen=True)
class Compared:
    rows: int
    """Rows of the sink that were looked at."""
    anomalies: tuple[Anomaly, ...]


Stretch = tuple[str, int, int]
"""A topic, a partition, and the number of the stretch in it."""
Digest = tuple[int, int | None, int]


@dataclass(frozen=True)
class Digests:
    inside: Mapping[Stretch, Digest]
    """Of rows whose records are to be checked."""
    outside: int
    """Rows whose records the ledger does not claim."""

    @property
    def rows(self) -> int:
        return sum(count for count, *_ in self.inside.values())


def stretch(ranges: Iterable[Range]) -> int:
    """How many offsets have one digest: so many that there are never too many digests."""
    return max(FEWEST, sum(map(len, ranges)) // MOST_STRETCHES)


def digests(
    frame: DataFrame,
    content: Sequence[str],
    size: int,
    checked: Sequence[Range],
    claimed: Sequence[Range],
) -> Digests:
    """The digests of a frame's rows; those of records that are claimed, and not to be checked, are
    passed over."""
    lies = (
        f.when(within(checked), INSIDE)
        .when(f.coalesce(within(claimed), f.lit(False)), AROUND)
        .otherwise(OUTSIDE)
    )
    topic, partition, offset = (f.col(name) for name in COORDINATES)
    hashed = _hash(("_offset", *content))
    rows = (
        frame.select(
            lies.alias("lies"),
            topic.alias("topic"),
            partition.alias("partition"),
            f.floor(offset / size).cast("long").alias("number"),
            hashed.alias("hash"),
        )
        .groupBy("lies", "topic", "partition", "number")
        .agg(
            f.count(f.lit(1)).alias("rows"),
            f.try_sum(f.shiftright("hash", 20)).alias("sum"),
            f.bit_xor("hash").alias("xor"),
        )
        .collect()
    )
    inside = {
        (row["topic"], row["partition"], row["number"]): (row["rows"], row["sum"], row["xor"])
        for row in rows
        if row["lies"] == INSIDE
    }
    return Digests(inside, sum(row["rows"] for row in rows if row["lies"] == OUTSIDE))


def differing(
    expected: Digests, found: Digests, size: int, checked: Iterable[Range]
) -> list[Range]:
    """The parts of the ranges in which the digests are not the same."""
    wrong: dict[Place, set[int]] = {}
    for one in expected.inside.keys() | found.inside.keys():
        mine, theirs = expected.inside.get(one), found.inside.get(one)
        if mine != theirs or mine is None or mine[1] is None:
            wrong.setdefault(one[:2], set()).add(one[2])
    parts = []
    for each in checked:
        for number in sorted(wrong.get(each.place, ())):
            start, until = max(each.start, number * size), min(each.until, (number + 1) * size)
            if start < until:
                parts.append(Range(*each.place, start, until))
    return _joined(parts)


def _joined(parts: Sequence[Range], most: int = 20) -> list[Range]:
    """Neighbours as one range; and if a partition has too many, all of it from the first on."""
    found: list[Range] = []
    for each in sorted(parts):
        if found and found[-1].place == each.place and found[-1].until == each.start:
            found[-1] = Range(*each.place, found[-1].start, each.until)
        else:
            found.append(each)
    for place in {each.place for each in found}:
        mine = [each for each in found if each.place == place]
        if len(mine) > most:
            found = [each for each in found if each.place != place]
            found.append(Range(*place, mine[0].start, mine[-1].until))
    return sorted(found)


def compared(
    expected: DataFrame, found: DataFrame, by: Sequence[str], content: Sequence[str]
) -> Compared:
    """Group both by the columns `by`, and compare how many rows there are and what they hold."""
    same = [f.col(f"mine.by{n}").eqNullSafe(f.col(f"theirs.by{n}")) for n in range(len(by))]
    mine = _summed(expected, by, content, "expected").alias("mine")
    theirs = _summed(found, by, content, "found").alias("theirs")
    joined = mine.join(theirs, reduce(Column.__and__, same, f.lit(True)), "full_outer")
    wanted, there = f.coalesce("expected_rows", f.lit(0)), f.coalesce("found_rows", f.lit(0))
    kind = (
        f.when(there == 0, "missing")
        .when(wanted == 0, "unexpected")
        .when(there > wanted, "duplicate")
        .when(there < wanted, "missing")
        .when(f.col("expected_hash") != f.col("found_hash"), "different")
    )
    size = f.when(kind == "different", 1).otherwise(f.abs(there - wanted))
    place = f.to_json(
        f.struct(
            *(
                f.coalesce(f"mine.by{number}", f"theirs.by{number}").alias(name)
                for number, name in enumerate(by)
            )
        )
    )
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
    keys = [f.col(backticked(name)).alias(f"by{number}") for number, name in enumerate(by)]
    return frame.groupBy(*keys).agg(
        f.count(f.lit(1)).alias(f"{side}_rows"),
        f.sum(_hash(content).cast("decimal(20, 0)")).alias(f"{side}_hash"),
    )


def _hash(content: Sequence[str]) -> Column:
    """Of the content, nulls and their places included: xxhash64 alone passes them over."""
    parts: list[Column] = []
    for name in content:
        column = f.col(backticked(name))
        parts += [column.isNull(), column]
    return f.xxhash64(*parts) if parts else f.lit(0).cast("long")
