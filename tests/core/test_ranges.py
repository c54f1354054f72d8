"""A range holds the offsets from its start up to, and not with, its `until`."""

from tallygate.core.offsets import Range, lies_in


def test_a_range_holds_its_start_and_not_its_end() -> None:
    held = Range("t", 0, 3, 6)
    assert [offset for offset in range(10) if held.holds(offset)] == [3, 4, 5]
    assert not any(Range("t", 0, 3, 3).holds(offset) for offset in range(10))


def test_a_record_lies_in_the_ranges_of_its_own_partition() -> None:
    ranges = [Range("t", 0, 3, 6), Range("u", 0, 6, 9), Range("t", 1, 6, 9)]
    assert [offset for offset in range(10) if lies_in(ranges, "t", 0, offset)] == [3, 4, 5]
