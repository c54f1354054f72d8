"""Digests that workers make: the same however rows are shared out, others for other rows."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tallygate.auditing.digest_sums import Sums, Tally, offset_digests, tallied
from tallygate.auditing.digests import Digest, Digests, Stretch
from tallygate.core.offsets import Range

CHECKED = (Range("t", 0, 10, 50), Range("t", 1, 0, 30))
CLAIMED = (Range("t", 0, 0, 60), Range("t", 1, 0, 30))
TALLY = Tally(("id",), 16, CHECKED, CLAIMED)
Row = tuple[int | None, str | None, int | None, int | None]


def rows() -> list[Row]:
    return [(at, "t", number, at) for number, most in ((0, 60), (1, 30)) for at in range(most)]


def digests(*blocks: Sequence[Row]) -> Digests:
    """Of blocks that one task has seen after each other."""
    names = ("id", "_topic", "_partition", "_offset")
    kinds = (pa.int64(), pa.string(), pa.int32(), pa.int64())
    sums = Sums()
    for block in blocks:
        columns = [pa.array([row[n] for row in block], kind) for n, kind in enumerate(kinds)]
        TALLY.add(pa.RecordBatch.from_arrays(columns, names), sums)
    return Digests({at: each for (_, at), each in sums.inside.items()}, sums.outside)


@given(st.permutations(rows()), st.integers(0, 90))
def test_neither_the_order_nor_the_blocks_matter(shuffled: list[Row], cut: int) -> None:
    assert digests(shuffled[:cut], shuffled[cut:]) == digests(rows())


def test_only_what_is_to_be_checked_counts() -> None:
    whole = digests(rows())
    assert (whole.rows, whole.outside) == (70, 0)
    assert sorted(whole.inside) == [("t", 0, n) for n in range(4)] + [("t", 1, 0), ("t", 1, 1)]
    around = [row for row in rows() if row[2] == 1 or 10 <= (row[3] or 0) < 50]
    assert digests(around) == whole


def test_rows_of_no_record_that_is_claimed_are_outside() -> None:
    strangers: list[Row] = [
        (1, "t", 0, 60),
        (1, "t", 0, -1),
        (1, "t", 2, 5),
        (1, "other", 0, 15),
        (1, None, 0, 15),
        (1, "t", None, 15),
        (1, "t", 0, None),
        (1, "t", 0, 2**62),
    ]
    found = digests([*rows(), *strangers])
    assert found.outside == len(strangers)
    assert found.inside == digests(rows()).inside


def test_each_change_is_seen_in_its_stretch_alone() -> None:
    whole = digests(rows())
    for changed, stretch in (
        ([row for row in rows() if row != (20, "t", 0, 20)], ("t", 0, 1)),
        ([*rows(), (20, "t", 0, 20)], ("t", 0, 1)),
        ([(99, *row[1:]) if row == (29, "t", 1, 29) else row for row in rows()], ("t", 1, 1)),
        ([(None, *row[1:]) if row == (0, "t", 1, 0) else row for row in rows()], ("t", 1, 0)),
    ):
        found = digests(changed)
        assert {at for at in whole.inside if whole.inside[at] != found.inside.get(at)} == {stretch}


def test_two_rows_that_change_places_are_seen() -> None:
    swapped = {20: 21, 21: 20}
    changed = [(swapped.get(row[0] or 0, row[0]), *row[1:]) for row in rows()]
    assert digests(changed).inside[("t", 0, 1)] != digests(rows()).inside[("t", 0, 1)]


def test_what_tasks_have_seen_adds_up(spark: SparkSession) -> None:
    """Three tasks, whose sums are too large for 64 bits together."""
    offsets = np.arange(0, 48, dtype=np.int64)
    parts = []
    whole = Sums()
    for share in (offsets[:5], offsets[5:40], offsets[40:]):
        sums = Sums(outside=2)
        TALLY.note(("t", 0), share, sums)
        TALLY.note(("t", 0), share, whole)
        for number in range(3):
            large = np.full(len(share), 2**64 - 1 - number, np.uint64)
            sums.add("rows", ("t", 0, number), large)
            whole.add("rows", ("t", 0, number), large)
        parts.append(sums.block())
    frame = spark.createDataFrame(pa.Table.from_batches(parts)).repartition(3)
    found = tallied(frame)
    expected: dict[str, dict[Stretch, Digest]] = {"records": {}, "rows": {}}
    for (what, at), each in whole.inside.items():
        expected[what][at] = each
    assert found.rows == Digests(expected["rows"], 6)
    assert found.records == expected["records"]


def test_another_reader_must_see_the_same_offsets(spark: SparkSession) -> None:
    """As many others are not the same, also if they add up to as much."""

    def seen(*offsets: int) -> object:
        frame = spark.createDataFrame(
            [("t", 0, at) for at in offsets], "_topic string, _partition int, _offset long"
        )
        return offset_digests(frame, 16)

    sums = Sums()
    TALLY.note(("t", 0), np.array([16, 19, 40], np.int64), sums)
    assert seen(16, 19, 40) == {at: each for (_, at), each in sums.inside.items()}
    assert seen(16, 19, 40) != seen(17, 18, 40)
    assert seen(16, 19, 40) != seen(16, 19, 41)
