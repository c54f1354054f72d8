"""Digests of rows that carry coordinates, made by the workers that see the rows.

They say the same as those of `digests`. Digests of parts of a stretch add up to the digest of the
whole, so tasks share the rows out as they please. Where records are read there are digests of their
offsets too, which tell whether another reader sees the same records.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from tallygate.auditing.digests import Digest, Digests, Stretch
from tallygate.auditing.hashing import Numbers, row_hashes
from tallygate.core.decoding import COORDINATES
from tallygate.core.offsets import Range, TopicPartition

RECORDS, ROWS, OUTSIDE = "records", "rows", "outside"
DDL = "what string, topic string, partition int, number long, count long, sum long, xor long"
_SCHEMA = pa.schema(
    [("what", pa.string()), ("topic", pa.string()), ("partition", pa.int32())]
    + [(name, pa.int64()) for name in ("number", "count", "sum", "xor")]
)
_MODULUS = 1 << 64
_SPREAD = 2654435761
"""What an offset's place in its stretch is multiplied by, so that others do not add up to it."""
_Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Tallied:
    """What all tasks have seen."""

    rows: Digests
    records: Mapping[Stretch, Digest]


@dataclass
class Sums:
    """What one task has seen: for each stretch a count, a sum and an xor."""

    inside: dict[tuple[str, Stretch], tuple[int, int, int]] = field(default_factory=dict)
    outside: int = 0
    """Rows whose records the ledger does not claim."""

    def add(self, what: str, at: Stretch, numbers: Numbers) -> None:
        count, sum_, xor = self.inside.get((what, at), (0, 0, 0))
        self.inside[what, at] = (
            count + len(numbers),
            (sum_ + int(numbers.sum())) % _MODULUS,
            xor ^ int(np.bitwise_xor.reduce(numbers)),
        )

    def block(self) -> pa.RecordBatch:
        rows: list[list[Any]] = [
            [what, *at, count, _signed(sum_), _signed(xor)]
            for (what, at), (count, sum_, xor) in self.inside.items()
        ]
        rows.append([OUTSIDE, None, None, None, self.outside, 0, 0])
        columns = zip(*rows, strict=True)
        arrays = [pa.array(each, kind) for each, kind in zip(columns, _SCHEMA.types, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _signed(number: int) -> int:
    return number - _MODULUS if number >= _MODULUS // 2 else number


@dataclass(frozen=True)
class Tally:
    """Which rows count, and what of them; it travels to the workers."""

    content: tuple[str, ...]
    """The columns whose values are compared, in the order of the other side's."""
    size: int
    checked: tuple[Range, ...]
    claimed: tuple[Range, ...]
    """Rows of records that are claimed, and not to be checked, are passed over."""

    def run(self, blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """A task that sees rows go by."""
        sums = Sums()
        for block in blocks:
            self.add(block, sums)
        yield sums.block()

    def add(self, block: pa.RecordBatch, sums: Sums) -> None:
        if not block.num_rows:
            return
        hashes = row_hashes([block.column(name) for name in ("_offset", *self.content)])
        offsets = np.asarray(block.column("_offset").fill_null(-1))
        named = 0
        for partition, rows in _by_partition(block):
            mine = offsets[rows]
            inside = _within(mine, self.checked, partition)
            named += int(np.count_nonzero(inside | _within(mine, self.claimed, partition)))
            chosen = rows[inside]
            for at, part in self._stretches(partition, offsets[chosen]):
                sums.add(ROWS, at, hashes[chosen[part]])
        sums.outside += block.num_rows - named

    def note(self, partition: TopicPartition, offsets: _Offsets, sums: Sums) -> None:
        """Take note that there are records at these offsets."""
        for at, part in self._stretches(partition, offsets):
            sums.add(RECORDS, at, ((offsets[part] % self.size) * _SPREAD).view(np.uint64))

    def _stretches(
        self, partition: TopicPartition, offsets: _Offsets
    ) -> Iterator[tuple[Stretch, npt.NDArray[np.intp]]]:
        """The stretches that the offsets are in, and which of them."""
        if not len(offsets):
            return
        numbers = offsets // self.size
        order = np.argsort(numbers, kind="stable")
        ends = np.flatnonzero(np.diff(numbers[order])) + 1
        for part in np.split(order, ends):
            yield (*partition, int(numbers[part[0]])), part


def _by_partition(block: pa.RecordBatch) -> Iterator[tuple[TopicPartition, npt.NDArray[np.intp]]]:
    """The rows of each partition; rows that name none are left out."""
    topics, partitions = (block.column(name).dictionary_encode() for name in COORDINATES[:2])
    of_topic, of_partition = (
        np.asarray(each.indices.fill_null(-1)) for each in (topics, partitions)
    )
    for one, topic in enumerate(topics.dictionary.to_pylist()):
        for other, partition in enumerate(partitions.dictionary.to_pylist()):
            rows = np.flatnonzero((of_topic == one) & (of_partition == other))
            if len(rows):
                yield (topic, partition), rows


def _within(
    offsets: _Offsets, ranges: Sequence[Range], partition: TopicPartition
) -> npt.NDArray[np.bool_]:
    found = np.zeros(len(offsets), bool)
    for each in ranges:
        if each.topic_partition == partition:
            found |= (offsets >= each.start) & (offsets < each.until)
    return found


def tallied(frame: DataFrame) -> Tallied:
    """What the blocks of all tasks come to. Rows of a stretch may be in many tasks, so they are
    added up before they are brought here."""
    summed = frame.groupBy("what", "topic", "partition", "number").agg(*_summed(f.col("sum")))
    kinds: dict[str, dict[Stretch, Digest]] = {RECORDS: {}, ROWS: {}}
    outside = 0
    for what, topic, partition, number, count, sum_, xor in summed.collect():
        if what == OUTSIDE:
            outside = count
        else:
            kinds[what][topic, partition, number] = _digest(count, sum_, xor)
    return Tallied(Digests(kinds[ROWS], outside), kinds[RECORDS])


def offset_digests(records: DataFrame, size: int) -> dict[Stretch, Digest]:
    """The digests of the offsets of records, as another reader sees them; the columns are those of
    coordinates."""
    spread = f.expr(f"_offset % {size} * {_SPREAD}")
    placed = records.select(
        f.col("_topic").alias("topic"),
        f.col("_partition").alias("partition"),
        f.expr(f"_offset div {size}").alias("number"),
        f.lit(1).alias("count"),
        spread.alias("xor"),
    )
    summed = placed.groupBy("topic", "partition", "number").agg(*_summed(f.col("xor")))
    return {
        (topic, partition, number): _digest(count, sum_, xor)
        for topic, partition, number, count, sum_, xor in summed.collect()
    }


def _summed(sum_: Column) -> list[Column]:
    """A sum of 64 bits may be of more."""
    return [f.sum("count"), f.sum(sum_.cast("decimal(38, 0)")), f.bit_xor("xor")]


def _digest(count: int, sum_: Any, xor: int) -> Digest:
    return count, int(sum_) % _MODULUS, xor % _MODULUS
