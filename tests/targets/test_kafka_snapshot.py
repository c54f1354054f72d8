"""What several lanes of a topic say together: the ledger is what all of them have done."""

from tallygate.core.ledger import Run
from tallygate.core.offsets import Range
from tallygate.targets.kafka.marks import Mark, Position
from tallygate.targets.kafka.snapshot import ledger_of

AT = ("t", 0)


def _lane(offset: int, first: int | None = 5) -> dict[tuple[str, int], Position]:
    mark = Mark(run=Run(epoch=1), lanes=2, first=first, topic_id="id", lost=((6, 7),))
    return {AT: Position(offset, mark)}


def test_the_ledger_is_what_all_lanes_have_done_and_later_what_any_has() -> None:
    lanes = [_lane(20), _lane(30)]
    found = ledger_of(lanes, lanes, [("t", 0, 19), ("t", 0, 20)], forgotten=2)
    assert found.ranges == {AT: Range("t", 0, 5, 20)}
    assert found.reached == {AT: Range("t", 0, 5, 30)}
    assert found.letters == {("t", 0, 19)}
    assert (found.lost, found.topic_ids) == ((Range("t", 0, 6, 7),), {"t": "id"})
    assert (found.unknown, found.forgotten) == ((), 2)


def test_what_was_committed_meanwhile_is_later() -> None:
    found = ledger_of([_lane(20)], [_lane(30)], ())
    assert found.ranges == {AT: Range("t", 0, 5, 20)}
    assert found.reached == {AT: Range("t", 0, 5, 30)}
    begun_since = ledger_of([{}], [_lane(30)], ())
    assert begun_since.ranges == {AT: Range("t", 0, 5, 5)}
    assert begun_since.reached == {AT: Range("t", 0, 5, 30)}


def test_a_lane_that_lacks_a_partition_has_done_nothing_of_it() -> None:
    for lanes in ([_lane(20), {}], [{}, _lane(20)]):
        found = ledger_of(lanes, lanes, [("t", 0, 7)])
        assert found.ranges == {AT: Range("t", 0, 5, 5)}
        assert found.reached == {AT: Range("t", 0, 5, 20)}
        assert found.letters == frozenset()


def test_where_a_partition_began_is_unknown_if_no_mark_says_it() -> None:
    found = ledger_of([_lane(20, None)], [_lane(20, None)], ())
    assert found.ranges == {AT: Range("t", 0, 0, 20)}
    assert found.unknown == (
        "where the pipeline began in t/0 is not in its ledger; 0 was taken for it",
    )
