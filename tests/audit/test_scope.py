"""Which records are looked at, and what a sample says of the others."""

import itertools
import random
from datetime import UTC, datetime, timedelta

import pytest

from tallygate.auditing.scope import (
    Sample,
    Scope,
    held_here,
    since_time,
    sureness,
    unchecked,
    windows,
)
from tallygate.core.ledger_snapshot import LedgerSnapshot
from tallygate.core.offsets import Range
from tallygate.errors import ConfigError
from tallygate.spark.records import rounds

RANGES = (Range("t", 0, 100, 50_100), Range("t", 1, 0, 30_000), Range("u", 0, 7, 8))


def test_windows_lie_in_the_ranges_and_apart() -> None:
    for seed in range(20):
        found = windows(RANGES, Sample(records=4000), random.Random(seed))
        assert 3900 <= sum(map(len, found)) <= 4000
        assert len(found) == 40
        for each in found:
            (whole,) = [one for one in RANGES if one.topic_partition == each.topic_partition]
            assert whole.start <= each.start < each.until <= whole.until
        for one, other in itertools.pairwise(found):
            assert one.topic_partition != other.topic_partition or one.until <= other.start


def test_every_window_can_be_chosen() -> None:
    lot = random.Random(1)
    seen = {each for _ in range(300) for each in windows(RANGES, Sample(records=4000), lot)}
    assert len(seen) == 801


def test_a_sample_of_all_is_all() -> None:
    found = windows(RANGES, Sample(share=1.0), random.Random(1))
    assert sum(map(len, found)) == sum(map(len, RANGES))


def test_a_sample_is_a_number_or_a_share() -> None:
    assert Sample.parse("10000") == Sample(records=10_000)
    assert Sample.parse("0.5%") == Sample(share=0.005)
    assert Sample.parse(10_000) == Sample(records=10_000)
    with pytest.raises(ConfigError, match="is not a sample"):
        Sample.parse(-1)
    for text in ("", "0", "101%", "0.5", "many"):
        with pytest.raises(ConfigError, match="is not a sample"):
            Sample.parse(text)


def test_since_is_a_time_or_a_duration() -> None:
    new_year = datetime(2026, 1, 1, tzinfo=UTC)
    for given in ("2026-01-01T00:00:00Z", "1767225600000", new_year, datetime(2026, 1, 1)):
        assert since_time(given) == new_year
    two_hours = timedelta(hours=2)
    for ago in ("2h", two_hours):
        assert abs(datetime.now(UTC) - two_hours - since_time(ago)) < timedelta(seconds=5)
    for wrong in ("yesterday", "1e9", "9" * 20, "999999999d", timedelta(days=999_999)):
        with pytest.raises(ConfigError, match="is not a time"):
            since_time(wrong)


def test_a_sample_says_how_sure_it_is() -> None:
    """The rule of three: nothing among n means with 95 % confidence fewer than about 3 in n."""
    said = sureness(30_000, 40, 1_000_000)
    assert "with 95% confidence fewer than 100 in a million" in said
    assert "fewer than 7 % of all windows" in said
    assert "nothing is said" in sureness(0, 0, 0)


def _nothing_of(until: int, *, partial: bool) -> tuple[str, ...]:
    ledger = LedgerSnapshot(ranges={("t", 0): Range("t", 0, 5, until)})
    return unchecked(Scope(), ledger, partial=partial)


def test_a_check_of_nothing_that_is_claimed_is_unknown() -> None:
    (said,) = _nothing_of(10, partial=True)
    assert said.startswith("no offset that the ledger claims lies in what was asked for")
    assert "ask for an earlier --since" in said
    assert len(_nothing_of(10, partial=False)) == 1
    some = Scope(ranges=RANGES)
    assert unchecked(some, LedgerSnapshot(ranges={("t", 0): RANGES[0]}), partial=True) == ()


def test_a_ledger_that_claims_nothing_can_be_checked() -> None:
    assert _nothing_of(5, partial=False) == ()
    assert _nothing_of(5, partial=True) == ()
    assert unchecked(Scope(), LedgerSnapshot(), partial=False) == ()


REMOVED = Range("t", 0, 0, 45)
LEFT = Range("t", 0, 45, 60)


def _since(begin: int, first: int, *ranges: Range) -> Scope:
    scope = Scope(ranges=ranges, removed=(REMOVED,))
    begins = {each.topic_partition: begin for each in ranges}
    return scope.beginning(begins, {each.topic_partition: first for each in ranges})


def test_what_retention_removed_is_no_doubt_if_an_older_record_is_left() -> None:
    found = _since(50, 45, LEFT)
    assert (found.ranges, found.unknown) == ((Range("t", 0, 50, 60),), ())
    none = _since(-1, 45, LEFT)
    assert (none.ranges, none.unknown) == ((), ())


@pytest.mark.parametrize(
    ("begin", "first"),
    [(45, 45), (47, 47), (-1, -1)],
    ids=["no older record", "a marker before the first record", "no record"],
)
def test_what_retention_removed_may_belong_to_what_was_asked_for(begin: int, first: int) -> None:
    (said,) = _since(begin, first, LEFT).unknown
    assert said == "t/0 [0, 45) cannot be read again: retention removed 45 records"


def test_what_the_target_never_got_at_its_beginning_is_not_claimed() -> None:
    """Lost before it was read, or written to another target: nothing of it can be missing here."""
    claimed = Range("t", 0, 5, 50)
    gone = (Range("t", 0, 20, 30), Range("t", 0, 5, 20), Range("t", 1, 30, 40))
    assert held_here(claimed, gone) == Range("t", 0, 30, 50)
    assert held_here(claimed, [Range("t", 0, 6, 20)]) == claimed
    assert held_here(claimed, [Range("t", 0, 5, 60)]) == Range("t", 0, 50, 50)
    assert held_here(claimed, [Range("t", 0, 5, 20), Range("t", 0, 5, 30)]).start == 30


def test_other_partitions_say_nothing_of_what_retention_removed() -> None:
    other = Range("t", 1, 0, 60)
    assert len(_since(50, 0, other).unknown) == 1
    kept = Scope(doubts=("the topic was removed",)).beginning({}, {})
    assert kept.unknown == ("the topic was removed",)


def test_a_partition_is_read_once_in_each_round() -> None:
    ranges = [Range("t", 0, 0, 1), Range("t", 0, 5, 6), Range("t", 1, 0, 1)]
    assert rounds(ranges) == [[ranges[0], ranges[2]], [ranges[1]]]
