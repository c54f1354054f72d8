"""Digests lead to the stretches that differ, and to no others."""

from tallygate.audit.comparing import Digests, differing, stretch
from tallygate.ledger.ranges import Range

CHECKED = [Range("t", 0, 50, 350)]


def test_only_stretches_that_differ_are_looked_at() -> None:
    same = {("t", 0, 0): (50, 1, 1), ("t", 0, 1): (100, 2, 2), ("t", 0, 3): (50, 3, 3)}
    mine, theirs = Digests(same, 0), Digests({**same, ("t", 0, 1): (100, 2, 9)}, 0)
    assert differing(mine, mine, 100, CHECKED) == []
    assert differing(mine, theirs, 100, CHECKED) == [Range("t", 0, 100, 200)]
    more = Digests({**same, ("t", 0, 2): (1, 0, 0)}, 0)
    assert differing(mine, more, 100, CHECKED) == [Range("t", 0, 200, 300)]
    assert differing(mine, Digests({}, 0), 100, CHECKED) == [
        Range("t", 0, 50, 200),
        Range("t", 0, 300, 350),
    ]


def test_a_sum_that_overflowed_proves_nothing() -> None:
    broken = Digests({("t", 0, 0): (50, None, 1)}, 0)
    assert differing(broken, broken, 100, CHECKED) == [Range("t", 0, 50, 100)]


def test_there_are_never_too_many_digests() -> None:
    assert stretch(CHECKED) == 4096
    assert stretch([Range("t", 0, 0, 10**12)]) == 50_000_000
