"""Digests of rows that carry coordinates, which say where two frames differ.

For each stretch of offsets there is how many rows there are, and two sums of their hashes, which
need neither a shuffle of the rows nor a sort. Only the stretches whose digests differ are then
compared row by row (see `comparing`), so memory does not grow with the rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tallygate.auditing.comparable import content_hash
from tallygate.core.offsets import Range, TopicPartition
from tallygate.targets.batch_input import within

FEWEST, MOST_STRETCHES = 4096, 20_000
INSIDE, AROUND, OUTSIDE = 0, 1, 2

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
    hashed = content_hash(frame.schema, ("_offset", *content))
    rows = (
        frame.select(
            lies.alias("lies"),
            f.col("_topic").alias("topic"),
            f.col("_partition").alias("partition"),
            f.expr(f"_offset div {size}").alias("number"),
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


def differing(expected: Digests, found: Digests) -> set[Stretch]:
    """The stretches whose digests are not the same."""
    both = expected.inside.keys() | found.inside.keys()
    return {one for one in both if not _equal(expected.inside.get(one), found.inside.get(one))}


def _equal(mine: Digest | None, theirs: Digest | None) -> bool:
    return mine is not None and mine[1] is not None and mine == theirs


def parts_of(stretches: Iterable[Stretch], size: int, checked: Iterable[Range]) -> list[Range]:
    """The parts of the ranges that lie in these stretches; a few large ones, which may hold more
    than the ranges do, rather than many."""
    numbers: dict[TopicPartition, list[int]] = {}
    for topic, partition, number in sorted(stretches):
        numbers.setdefault((topic, partition), []).append(number)
    parts = []
    for each in checked:
        for number in numbers.get(each.topic_partition, ()):
            start, until = max(each.start, number * size), min(each.until, (number + 1) * size)
            if start < until:
                parts.append(Range(*each.topic_partition, start, until))
    return _joined(parts)


def contradict(expected: Digests, found: Digests) -> bool:
    """Whether digests differ for another reason than a sum that was too large to be one."""
    both = expected.inside.keys() | found.inside.keys()
    return any(_apart(expected.inside.get(one), found.inside.get(one)) for one in both)


def _apart(mine: Digest | None, theirs: Digest | None) -> bool:
    if mine is None or theirs is None:
        return True
    sums = {mine[1], theirs[1]}
    return (mine[0], mine[2]) != (theirs[0], theirs[2]) or (None not in sums and len(sums) > 1)


def _joined(parts: Sequence[Range], most: int = 20) -> list[Range]:
    """Neighbours as one range; and if a partition has too many, all of it from the first on."""
    found: list[Range] = []
    for each in sorted(parts):
        if (
            found
            and found[-1].topic_partition == each.topic_partition
            and found[-1].until == each.start
        ):
            found[-1] = Range(*each.topic_partition, found[-1].start, each.until)
        else:
            found.append(each)
    for partition in {each.topic_partition for each in found}:
        mine = [each for each in found if each.topic_partition == partition]
        if len(mine) > most:
            found = [each for each in found if each.topic_partition != partition]
            found.append(Range(*partition, mine[0].start, mine[-1].until))
    return sorted(found)
