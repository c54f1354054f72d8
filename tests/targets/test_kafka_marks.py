"""What a pipeline writes with the offsets of its groups, and the names that it goes by in Kafka."""

from dataclasses import replace
from typing import Any

from tallygate.core.ledger import Claim, Run
from tallygate.core.offsets import Range
from tallygate.targets.kafka.lanes import LaneChoice
from tallygate.targets.kafka.ledger import LOST_KEPT, GroupLedger, Names
from tallygate.targets.kafka.marks import Mark, Position, count_known, forgotten_in


def test_a_mark_is_read_as_it_was_written_and_as_other_versions_write_it() -> None:
    mark = Mark(run=Run.mine(3), lanes=2, topic_id="t", checkpoint_id="c", first=5, lost=((1, 2),))
    mark = replace(mark, target="u", by="key 'a', or 'a', 'b'", known=3, leader_epoch=4)
    assert Mark.read(mark.text()) == mark
    before = '{"epoch":3,"host":"h","pid":1,"started":"s","lanes":0,"lost":[[1,2]],"first":5}'
    run = Run(epoch=3, host="h", pid=1, started="s")
    assert Mark.read(before) == Mark(run=run, first=5, lost=((1, 2),))
    assert Mark.read('{"epoch":3,"later":true}').run.epoch == 3
    for other in (None, "", "no JSON", "[1]", '"text"', "7"):
        assert Mark.read(other) == Mark()


def test_the_marks_of_a_group_are_small_enough_for_kafka() -> None:
    """It takes 4096 bytes with an offset, and a long history is cut."""
    lost = tuple((10**15 + 2 * at, 10**15 + 2 * at + 1) for at in range(LOST_KEPT))
    run = Run(epoch=10**6, host="h" * 255, pid=2**22, started="2026-01-01", id=2**62)
    by = LaneChoice(key="é" * 99, columns=("é" * 99,) * 99).text()
    ids: dict[str, Any] = {"topic_id": "i" * 36, "checkpoint_id": "i" * 36, "target": "i" * 36}
    numbers: dict[str, Any] = {"known": 10**5, "leader_epoch": 2**31, "specs": ("x" * 12,) * 8}
    mark = Mark(run=run, lanes=200, first=1, lost=lost, by=by, **numbers, **ids)
    assert len(mark.text()) < 2048


def test_how_many_partitions_are_known_is_handed_on() -> None:
    ledger = GroupLedger(group="g", claim=Claim("p", Run.mine(2)), stand_in=False, known={"t": 3})
    done = Range("t", 0, 5, 9)
    for before, known in ((2, 3), (4, 4)):
        old = Position(5, Mark(run=Run(epoch=1), known=before))
        assert ledger.next_mark(done, old).known == known
        assert replace(ledger, known={}).next_mark(done, old).known == before
    assert ledger.next_mark(done, None).known == 3


def test_partitions_that_a_group_had_are_missed_and_others_are_not() -> None:
    marks = {at: Position(1, Mark(run=Run(epoch=1), known=3)) for at in (("t", 0), ("u", 2))}
    assert forgotten_in(marks) == {("t", 1), ("t", 2), ("u", 0), ("u", 1)}
    older = {("t", 1): Position(1, Mark(run=Run(epoch=1)))}
    assert forgotten_in(older) == set()
    assert count_known([("t", 0), ("t", 1), ("t", 3), ("u", 1)]) == {"t": 2, "u": 0}


def test_the_ids_of_transactions_are_the_partitions() -> None:
    names = Names("p")
    assert names.partition_id(("t", 1)) == "tallygate.p/t/1"
    assert names.letters_id(("t", 1)) == "tallygate.p/letters/t/1"
    assert names.lane_id(1) == names.lane_group(1) == "tallygate.p/lane-1"
