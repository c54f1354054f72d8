"""A ledger's history must lead to what it says."""

from tallygate.auditing.history import wrong_moves
from tallygate.core.ledger_snapshot import Commit, LedgerSnapshot
from tallygate.core.offsets import Range

LOST = (Range("t", 0, 10, 15),)


def _ledger(
    *moves: tuple[int, int], until: int, unfinished: tuple[Range, ...] = ()
) -> LedgerSnapshot:
    history = tuple(
        Commit(number=number, run=1, batch=number, ranges=(Range("t", 0, *move),))
        for number, move in enumerate(moves)
    )
    ranges = {("t", 0): Range("t", 0, 0, until)}
    return LedgerSnapshot(ranges=ranges, lost=LOST, history=history, unfinished=unfinished)


def test_a_topic_that_was_forgotten_may_be_followed_by_another_of_its_name() -> None:
    moves = [
        Commit(number=n, run=1, batch=n, ranges=(Range("t", 0, *at),))
        for n, at in enumerate([(0, 5), (5, 9), (0, 3)])
    ]
    name = "forgotten:20260102T030405Z:t"
    old = {(name, 0): Range(name, 0, 0, 12)}
    lost = (Range(name, 0, 9, 12),)
    assert _found(LedgerSnapshot(ranges=old, lost=lost, history=tuple(moves[:2]))) == {}
    new = {**old, ("t", 0): Range("t", 0, 0, 3)}
    assert _found(LedgerSnapshot(ranges=new, lost=lost, history=tuple(moves))) == {}
    assert _found(LedgerSnapshot(ranges=old, history=tuple(moves[:2]))) == {
        "overlap": ("t/0 [0, 9)",)
    }
    whole = {(name, 0): Range(name, 0, 0, 9)}
    assert _found(LedgerSnapshot(ranges=whole, history=tuple(moves[:2]))) == {}
    followed = {**whole, ("t", 0): Range("t", 0, 0, 3)}
    assert _found(LedgerSnapshot(ranges=followed, history=tuple(moves))) == {}


def _found(ledger: LedgerSnapshot) -> dict[str, tuple[str, ...]]:
    return {each.kind: each.examples for each in wrong_moves(ledger)}


def test_moves_that_follow_each_other_are_right() -> None:
    assert _found(_ledger((0, 5), (5, 10), until=10)) == {}
    assert _found(_ledger((7, 9), (9, 10), until=10)) == {}, "older commits are not kept"
    assert _found(_ledger(until=10)) == {}, "some ledgers keep no history"


def test_what_was_lost_is_no_gap() -> None:
    assert _found(_ledger((0, 10), (15, 20), until=20)) == {}
    assert _found(_ledger((0, 8), (17, 20), until=20)) == {"gap": ("t/0 [8, 10)", "t/0 [15, 17)")}


def test_gaps_and_overlaps_are_found_with_their_offsets() -> None:
    assert _found(_ledger((0, 5), (6, 10), until=10)) == {"gap": ("t/0 [5, 6)",)}
    assert _found(_ledger((0, 5), (3, 10), until=10)) == {"overlap": ("t/0 [3, 5)",)}
    assert _found(_ledger((0, 9), until=10)) == {"gap": ("t/0 [9, 10)",)}
    assert _found(_ledger((0, 10), until=9)) == {"overlap": ("t/0 [9, 10)",)}


def test_a_batch_that_was_interrupted_explains_gaps_and_nothing_else() -> None:
    """Which of its partitions had moved is not known."""
    begun = (Range("t", 0, 5, 8), Range("t", 1, 0, 99))
    assert _found(_ledger((0, 5), (8, 10), until=10, unfinished=begun)) == {}
    assert _found(_ledger((0, 5), until=8, unfinished=begun)) == {}
    assert _found(_ledger((0, 5), (5, 8), until=8, unfinished=begun)) == {}
    assert _found(_ledger((0, 5), (9, 10), until=10, unfinished=begun)) == {"gap": ("t/0 [8, 9)",)}
    assert _found(_ledger((0, 5), until=9, unfinished=begun)) == {"gap": ("t/0 [8, 9)",)}
    beyond = _found(_ledger((0, 5), (4, 9), until=8, unfinished=begun))
    assert beyond == {"overlap": ("t/0 [4, 5)", "t/0 [8, 9)")}
