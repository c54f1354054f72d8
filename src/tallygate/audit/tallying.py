"""Digests of rows that carry coordinates, made by the workers that read the rows.

They say the same as those of `digests`, without Spark's JVM: rows that come as Arrow and are only
to be compared need not go there. Digests of parts of a stretch add up to the digest of the whole,
so tasks share the rows out as they please.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tallygate.audit.digests import Digests, Stretch
from tallygate.audit.hashing import Numbers, row_hashes
from tallygate.ledger.ranges import Place, Range
from tallygate.records.decoding import COORDINATES

__all__ = ["DDL", "Sums", "Tally", "digests_of", "records_of"]

DDL = "topic string, partition int, number long, records long, rows long, sum long, xor long"
_SCHEMA = pa.schema(
    [("topic", pa.string()), ("partition", pa.int32())]
    + [(name, pa.int64()) for name in ("number", "records", "rows", "sum", "xor")]
)
_MODULUS = 1 << 64
_Offsets = npt.NDArray[np.int64]


@dataclass
class _Sum:
    records: int = 0
    """Records of the source, fit or not."""
    rows: int = 0
    sum: int = 0
    xor: int = 0


@dataclass
class Sums:
    """What one task has seen."""

    inside: dict[Stretch, _Sum] = field(default_factory=dict)
    outside: int = 0
    """Rows whose records the ledger does not claim."""

    def block(self) -> pa.RecordBatch:
        rows = [[*at, *_fields(each)] for at, each in self.inside.items()]
        rows.append([None, None, None, 0, self.outside, 0, 0])
        columns = zip(*rows, strict=True)
        arrays = [pa.array(each, kind) for each, kind in zip(columns, _SCHEMA.types, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _fields(each: _Sum) -> list[int]:
    return [each.records, each.rows, _signed(each.sum), _signed(each.xor)]


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
        for place, rows in _by_place(block):
            mine = offsets[rows]
            inside = _within(mine, self.checked, place)
            named += int(np.count_nonzero(inside | _within(mine, self.claimed, place)))
            chosen = rows[inside]
            for at, part in self._stretches(place, offsets[chosen]):
                sum_ = sums.inside.setdefault(at, _Sum())
                _include(sum_, hashes[chosen[part]])
        sums.outside += block.num_rows - named

    def count(self, place: Place, offsets: _Offsets, sums: Sums) -> None:
        """Take note that there are records at these offsets."""
        for at, part in self._stretches(place, offsets):
            sums.inside.setdefault(at, _Sum()).records += len(part)

    def _stretches(
        self, place: Place, offsets: _Offsets
    ) -> Iterator[tuple[Stretch, npt.NDArray[np.intp]]]:
        """The stretches that the offsets are in, and which of them."""
        if not len(offsets):
            return
        numbers = offsets // self.size
        order = np.argsort(numbers, kind="stable")
        ends = np.flatnonzero(np.diff(numbers[order])) + 1
        for part in np.split(order, ends):
            yield (*place, int(numbers[part[0]])), part


def _include(sum_: _Sum, hashes: Numbers) -> None:
    sum_.rows += len(hashes)
    sum_.sum = (sum_.sum + int(hashes.sum())) % _MODULUS
    sum_.xor ^= int(np.bitwise_xor.reduce(hashes))


def _by_place(block: pa.RecordBatch) -> Iterator[tuple[Place, npt.NDArray[np.intp]]]:
    """The rows of each place; those that name none are in no place."""
    topics, partitions = (block.column(name).dictionary_encode() for name in COORDINATES[:2])
    of_topic, of_partition = (
        np.asarray(each.indices.fill_null(-1)) for each in (topics, partitions)
    )
    for one, topic in enumerate(topics.dictionary.to_pylist()):
        for other, partition in enumerate(partitions.dictionary.to_pylist()):
            rows = np.flatnonzero((of_topic == one) & (of_partition == other))
            if len(rows):
                yield (topic, partition), rows


def _within(offsets: _Offsets, ranges: Sequence[Range], place: Place) -> npt.NDArray[np.bool_]:
    found = np.zeros(len(offsets), bool)
    for each in ranges:
        if each.place == place:
            found |= (offsets >= each.start) & (offsets < each.until)
    return found


def digests_of(rows: Iterable[Mapping[str, Any]]) -> Digests:
    """What all tasks have seen, as digests."""
    inside: dict[Stretch, tuple[int, int | None, int]] = {}
    outside = 0
    for row in rows:
        if row["topic"] is None:
            outside += row["rows"]
        elif row["rows"]:
            at = (row["topic"], row["partition"], row["number"])
            count, sum_, xor = inside.get(at, (0, 0, 0))
            whole = ((sum_ or 0) + row["sum"]) % _MODULUS
            inside[at] = (count + row["rows"], whole, xor ^ row["xor"])
    return Digests(inside, outside)


def records_of(rows: Iterable[Mapping[str, Any]]) -> dict[Stretch, int]:
    """How many records of the source each stretch has."""
    found: dict[Stretch, int] = {}
    for row in rows:
        if row["records"]:
            at = (row["topic"], row["partition"], row["number"])
            found[at] = found.get(at, 0) + row["records"]
    return found
