"""The rules by which a batch is done, applied, trimmed or refused."""

import pytest

from tallygate.core.offsets import Range, count, part, remaining
from tallygate.errors import LedgerError, LostRangeError

BATCH = (Range("t", 0, 10, 20), Range("t", 1, 5, 5), Range("t", 2, 0, 7))


def test_a_batch_at_the_ledgers_position_is_applied_whole() -> None:
    left = remaining(BATCH, {("t", 0): 10, ("t", 1): 5, ("t", 2): 0}, divisible=False)
    assert left == (BATCH[0], BATCH[2])
    assert count(left) == 17


def test_a_batch_that_the_ledger_has_is_skipped() -> None:
    assert remaining(BATCH, {("t", 0): 20, ("t", 1): 5, ("t", 2): 9}, divisible=False) == ()


def test_a_batch_that_leaves_a_gap_is_refused() -> None:
    with pytest.raises(LedgerError, match=r"t/0 \[10, 20\).*only up to 8: 2 offsets would be"):
        remaining(BATCH, {("t", 0): 8, ("t", 1): 5, ("t", 2): 0}, divisible=True)


def test_a_batch_that_goes_back_is_refused() -> None:
    with pytest.raises(LostRangeError, match="goes back from 50 to 20 in t/0.*Start again"):
        remaining([Range("t", 0, 50, 20)], {("t", 0): 50}, divisible=True)


def test_a_batch_in_part_is_trimmed_if_rows_can_be_told_apart() -> None:
    positions = {("t", 0): 15, ("t", 1): 5, ("t", 2): 7}
    assert remaining(BATCH, positions, divisible=True) == (Range("t", 0, 15, 20),)
    with pytest.raises(LedgerError, match=r"still needs t/0 \[15, 20\).*tallygate rebuild"):
        remaining(BATCH, positions, divisible=False)


def test_a_wide_batch_of_which_one_partition_is_done_is_refused() -> None:
    with pytest.raises(LedgerError, match="holds a part of this batch"):
        remaining(BATCH, {("t", 0): 20, ("t", 1): 5, ("t", 2): 0}, divisible=False)


def test_a_new_pipeline_starts_anywhere_and_a_new_partition_at_its_beginning() -> None:
    first = (Range("t", 0, 100, 110),)
    assert remaining(first, {}, divisible=False) == first
    nothing_yet = (Range("t", 0, 100, 100),)
    assert remaining(nothing_yet, {}, divisible=False) == nothing_yet
    assert remaining(nothing_yet, {("t", 0): 100}, divisible=False) == ()
    assert remaining(first, {("other", 0): 3}, divisible=False) == first
    with pytest.raises(LedgerError, match="only up to 0: 100 offsets"):
        remaining(first, {("t", 1): 3}, divisible=False)


def test_offsets_are_numbered_from_one_range_to_the_next() -> None:
    assert part(BATCH, 0, 17) == [BATCH[0], BATCH[2]]
    assert part(BATCH, 8, 12) == [Range("t", 0, 18, 20), Range("t", 2, 0, 2)]
    assert part(BATCH, 10, 11) == [Range("t", 2, 0, 1)]
    assert part(BATCH, 3, 3) == []
