"""What an audit takes from a ledger: up to where it is, and which dead letters count by then."""

from tallygate.core.ledger import LedgerState, Lost
from tallygate.core.ledger_snapshot import LedgerSnapshot
from tallygate.core.offsets import Range

AT = ("t", 0)
STATE = LedgerState(
    positions={AT: 10, ("t", 1): 7},
    begun={AT: 3},
    topic_ids={"t": "id"},
    lost=(Lost(Range("t", 0, 4, 6), "retention"),),
)


def test_a_ledger_stands_for_what_lies_between_its_start_and_its_position() -> None:
    found = LedgerSnapshot.of(STATE, ())
    assert found.ranges == {AT: Range("t", 0, 3, 10), ("t", 1): Range("t", 1, 7, 7)}
    assert (found.lost, found.topic_ids) == ((Range("t", 0, 4, 6),), {"t": "id"})


def test_a_dead_letter_counts_once_the_ledger_is_past_it() -> None:
    letters = [("t", 0, 9), ("t", 0, 10), ("t", 1, 6), ("t", 2, 0)]
    assert LedgerSnapshot.of(STATE, letters).letters == {("t", 0, 9), ("t", 1, 6)}


def test_a_ledger_that_moved_while_rows_were_read_reaches_further() -> None:
    still = LedgerSnapshot.of(STATE, (), later=STATE.positions)
    assert not still.moved
    moved = LedgerSnapshot.of(STATE, (), later={AT: 12})
    assert moved.moved
    assert moved.reached == {AT: Range("t", 0, 3, 12), ("t", 1): Range("t", 1, 7, 7)}
