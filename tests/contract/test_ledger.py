"""The ledger beside the rows: who wrote last, what is lost, what is remembered, and whose it is."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from contract.conftest import Make
from contract.harness import Run, Store, settled
from contract.source import BATCHES, FILES, FIRST, LAST, TOPIC, Batch, batch
from contract.ways import Way, ways
from tallygate.core.blocks import Blocks
from tallygate.core.ledger import (
    CutOff,
    Forget,
    LedgerState,
    Lose,
    OtherTargetError,
    Remember,
    Retarget,
)
from tallygate.core.offsets import MovedError, Range, forgotten_as
from tallygate.errors import FencedError, LedgerError, UnreachableError
from tallygate.targets.base import Task, TaskReport
from tallygate.targets.batch_input import BlockInput
from tallygate.waiting import wait_until


def _ledger(run: Run) -> LedgerState:
    state = run.target.ledger()
    assert state is not None
    return state


@pytest.mark.parametrize("way", ways())
def test_the_ledger_names_the_run_that_wrote_last(way: Way, make: Make) -> None:
    store = make(way)
    assert store.target().ledger() is None
    for epoch in (1, 2):
        run = Run(store)
        run.bring(BATCHES[epoch - 1 : epoch])
        assert run.claim.pipeline == store.pipeline
        assert run.claim.run.epoch == epoch
        held = _ledger(run).run
        mine = run.claim.run
        assert (held.epoch, held.host, held.pid) == (mine.epoch, mine.host, mine.pid)


@pytest.mark.parametrize("way", ways())
def test_where_partitions_were_begun_is_kept(way: Way, make: Make) -> None:
    store = make(way)
    for _ in range(2):
        run = Run(store)
        run.bring(BATCHES)
        assert _ledger(run).begun == {(TOPIC, p): first for p, first in FIRST.items()}


@pytest.mark.parametrize("way", ways())
def test_a_lost_range_is_passed_over_and_kept_as_lost(way: Way, make: Make) -> None:
    store = make(way)
    run = Run(store)
    run.bring(BATCHES[:1])
    gone = BATCHES[1].ranges[:2]
    run.target.amend(run.claim, Lose(gone, "retention"))
    assert _ledger(run).positions[gone[0].topic_partition] == gone[0].until
    run.bring([replace(BATCHES[1], ranges=BATCHES[1].ranges[2:]), BATCHES[2]])
    state = settled(store).state
    assert state.positions == LAST
    assert sorted(each.range for each in state.lost) == sorted(gone)
    Run(store)
    assert len(store.seen().state.lost) == 2


@pytest.mark.parametrize("way", ways())
def test_a_range_is_given_up_only_from_where_the_ledger_is(way: Way, make: Make) -> None:
    store = make(way)
    run = Run(store)
    run.bring(BATCHES[:1])
    before = settled(store)
    at = BATCHES[1].ranges[0]
    for wrong in (replace(at, start=at.start - 1), replace(at, start=at.start + 1)):
        with pytest.raises((MovedError, UnreachableError)):
            run.target.amend(run.claim, Lose((wrong,), "retention"))
    assert settled(store) == before
    run.bring(BATCHES)
    assert settled(store).state.positions == LAST


@pytest.mark.parametrize("way", ways())
def test_what_a_start_compares_is_remembered(way: Way, make: Make) -> None:
    """A ledger that has no partition yet may have no place for it, so it is said again."""
    store = make(way)
    run = Run(store)
    said = Remember("checkpoint-1", {TOPIC: "id-1"})
    run.target.amend(run.claim, said)
    run.bring(BATCHES[:1])
    run.target.amend(run.claim, said)
    run.bring(BATCHES[1:2])
    assert (_ledger(run).checkpoint_id, _ledger(run).topic_ids) == ("checkpoint-1", {TOPIC: "id-1"})
    run = Run(store)
    run.bring(BATCHES)
    assert (_ledger(run).checkpoint_id, _ledger(run).topic_ids) == ("checkpoint-1", {TOPIC: "id-1"})
    run.target.amend(run.claim, Remember("checkpoint-2", {}))
    assert _ledger(run).checkpoint_id == "checkpoint-2"
    assert _ledger(run).topic_ids == {TOPIC: "id-1"}
    assert settled(store).state.positions == LAST


def _forget(run: Run) -> Forget:
    state = _ledger(run)
    read = tuple(
        Range(*at, state.begun[at], until)
        for at, until in sorted(state.positions.items())
        if at[0] == TOPIC
    )
    return Forget(forgotten_as(TOPIC, datetime.now(UTC)), read)


@pytest.mark.parametrize("way", ways())
def test_a_topic_that_is_forgotten_is_kept_under_another_name(way: Way, make: Make) -> None:
    """Its positions, what was lost of it, and its dead letters; and a topic of that name that comes
    later is a new one, with dead letters and losses of its own at the same offsets."""
    store, gone = make(way), Lose(BATCHES[1].ranges, "retention")
    run = Run(store)
    run.target.amend(run.claim, Remember(None, {TOPIC: "id-1"}))
    run.bring(BATCHES[:1])
    run.target.amend(run.claim, Remember(None, {TOPIC: "id-1"}))
    run.target.amend(run.claim, gone)
    before, letters = settled(store).state, store.letters()
    change = _forget(run)
    run.target.amend(run.claim, change)
    for _ in range(2):
        wait_until(lambda: _kept(store) == _expected(change, before), 10, "it was not forgotten")
        assert sorted(store.letters()) == sorted(letters)
        run = Run(store)
    run.bring(BATCHES[:1])
    run.target.amend(run.claim, gone)
    twice = Counter([*letters, *letters])
    wait_until(lambda: Counter(store.letters()) == twice, 10, lambda: str(store.letters()))
    state = _ledger(run)
    assert {
        at: until for at, until in state.positions.items() if at[0] == TOPIC
    } == before.positions
    assert len(state.lost) == 2 * len(gone.ranges)


def _kept(store: Store) -> tuple[object, ...]:
    state = store.target().ledger()
    assert state is not None
    return state.positions, state.begun, state.topic_ids, {each.range for each in state.lost}


def _expected(change: Forget, before: LedgerState) -> tuple[object, ...]:
    after = change.applied(before)
    return after.positions, after.begun, after.topic_ids, {each.range for each in after.lost}


@pytest.mark.parametrize("way", ways())
def test_a_topic_is_forgotten_only_where_the_ledger_is_and_by_the_newest_run(
    way: Way, make: Make
) -> None:
    store = make(way)
    run = Run(store)
    run.bring(BATCHES[:1])
    before, change = settled(store), _forget(run)
    beyond = tuple(replace(each, until=each.until + 1) for each in change.ranges)
    with pytest.raises((MovedError, UnreachableError)):
        run.target.amend(run.claim, replace(change, ranges=beyond))
    newer = Run(store)
    with pytest.raises((FencedError, UnreachableError)):
        run.target.amend(run.claim, change)
    newer.bring(BATCHES)
    assert before.state.positions != settled(store).state.positions == LAST


@pytest.mark.parametrize("way", ways())
def test_what_rows_were_made_by_is_kept_in_its_order(way: Way, make: Make) -> None:
    store = make(way)
    for batches, spec in ((BATCHES[:1], "first"), (BATCHES[1:2], "second"), (BATCHES, "first")):
        run = Run(store)
        run.target.amend(run.claim, Remember("checkpoint-1", {TOPIC: "id-1"}, spec))
        run.bring(batches)
    assert _ledger(Run(store)).specs == ("first", "second")


@pytest.mark.parametrize("way", ways())
def test_the_id_of_a_topic_is_there_with_its_first_batch(way: Way, make: Make) -> None:
    """A run that is killed then says nothing more, and the topic may be another one by the next."""
    store = make(way)
    run = Run(store)
    run.target.amend(run.claim, Remember("checkpoint-1", {TOPIC: "id-1"}))
    run.bring(BATCHES[:1])
    assert _ledger(Run(store)).topic_ids == {TOPIC: "id-1"}


EPOCHS = {(TOPIC, p): 4 + p for p in FIRST}


@pytest.mark.parametrize("way", ways())
def test_the_epochs_of_leaders_are_kept_with_the_positions_that_they_are_of(
    way: Way, make: Make
) -> None:
    """They say nothing of what comes after these."""
    store = make(way)
    Run(store).bring([replace(BATCHES[0], epochs=EPOCHS)])
    run = Run(store)
    assert _ledger(run).leader_epochs == EPOCHS
    run.bring([replace(batch(1, partitions=[0, 1]), epochs={(TOPIC, 0): 9})])
    assert _ledger(run).leader_epochs == {(TOPIC, 0): 9, (TOPIC, 2): 6}
    gone = batch(2, partitions=[0]).ranges
    run.target.amend(run.claim, Lose(gone, "retention"))
    assert _ledger(run).leader_epochs == {(TOPIC, 2): 6}


@pytest.mark.parametrize("way", ways())
def test_what_was_cut_off_below_a_position_is_kept_as_lost(way: Way, make: Make) -> None:
    store = make(way)
    run = Run(store)
    run.bring([replace(each, epochs=EPOCHS) for each in BATCHES[:2]])
    at = BATCHES[1].ranges[0]
    before = _ledger(run)
    for wrong in (replace(at, until=at.until - 1), replace(at, until=at.until + 1)):
        with pytest.raises((MovedError, UnreachableError)):
            run.target.amend(run.claim, CutOff((wrong,), "an election"))
    assert _ledger(run) == before
    cut = replace(at, start=at.start + 3)
    run.target.amend(run.claim, CutOff((cut,), "an election"))
    state = _ledger(run)
    assert state.positions == before.positions
    assert state.leader_epochs == {(TOPIC, 1): 5, (TOPIC, 2): 6}
    assert [each.range for each in state.lost] == [cut]
    run.bring(BATCHES)
    assert [each.range for each in _ledger(Run(store)).lost] == [cut]
    assert store.seen().state.positions == LAST


def _written_before(way: Way, make: Make, batches: Sequence[Batch]) -> None:
    """By a run that is over: Kafka shows the offsets of a transaction a moment after its end."""
    store = make(way, pipeline="p")
    Run(store).bring(batches)
    settled(store)


@pytest.mark.parametrize("way", ways())
def test_a_ledger_is_not_taken_for_that_of_another_place(way: Way, make: Make) -> None:
    """The same pipeline into another table, topic or folder: it is refused, or begins there."""
    _written_before(way, make, BATCHES)
    moved = make(way, pipeline="p", place="p_elsewhere")
    try:
        Run(moved).bring(BATCHES)
    except LedgerError as refused:
        assert "of another" in str(refused)
        return
    assert settled(moved).state.positions == LAST


@pytest.mark.parametrize("way", ways(lambda way: way.kind in ("postgres", "kafka")))
def test_another_target_that_is_accepted_holds_what_comes_next(way: Way, make: Make) -> None:
    """And the ledger keeps that what came before is not in it, however often it is said."""
    _written_before(way, make, BATCHES[:2])
    moved = make(way, pipeline="p", place="p_elsewhere")
    run = Run(moved, accepts=True)
    run.bring(BATCHES[:2])
    for _ in range(2):
        target = run.target.identity()
        assert target is not None
        run.target.amend(run.claim, Retarget(target))
        assert _ledger(run).target == target
    run.bring(BATCHES)
    seen = Run(moved).store.seen()
    assert seen.state.positions == LAST
    assert {each.range for each in seen.state.lost} == {
        Range(TOPIC, p, first, LAST[TOPIC, p] - 10) for p, first in FIRST.items()
    }
    assert not seen.missing | seen.repeated | seen.beyond


@dataclass(frozen=True)
class Disturbed(BlockInput):
    """Something happens once, when a batch is planned and not read yet."""

    left: list[Callable[[], None]] = field(default_factory=list)

    def blocks(self) -> Blocks:
        self._disturb()
        return super().blocks()

    def run(self, task: Task, *, one_partition: bool = False) -> list[TaskReport]:
        self._disturb()
        return super().run(task, one_partition=one_partition)

    def run_in_lanes(self, task: Task, lanes: int, by: str) -> list[TaskReport]:
        self._disturb()
        return super().run_in_lanes(task, lanes, by)

    def _disturb(self) -> None:
        if self.left:
            self.left.pop()()


@pytest.mark.parametrize("way", ways(lambda way: way.kind in ("postgres", "kafka")))
def test_a_target_that_is_made_again_under_a_run_is_not_written_on(way: Way, make: Make) -> None:
    """It would begin in the middle. If it is accepted, what comes next is in it, and counts."""
    store: Any = make(way)
    left: list[Callable[[], None]] = []
    run = Run(store, lambda plan, tasks: Disturbed(plan, tasks, left))
    run.bring(BATCHES[:1])
    before = settled(store).state.positions
    left.append(store.make_again)
    with pytest.raises(OtherTargetError, match="made again"):
        run.bring(BATCHES[1:])
    assert store.rows() == []
    assert _ledger(run).positions == before
    again = Run(store, accepts=True)
    target = again.target.identity()
    assert target is not None
    again.target.amend(again.claim, Retarget(target))
    again.bring(BATCHES)
    seen = settled(store)
    assert seen.state.positions == LAST
    assert seen.rows
    assert {each.range for each in seen.state.lost} == set(BATCHES[0].ranges)


@pytest.mark.parametrize("way", ways(lambda way: str(way) in ("postgres-driver", "kafka-narrow")))
def test_the_twin_that_does_not_look_leaves_out_what_came_before(way: Way, make: Make) -> None:
    _written_before(way, make, BATCHES[:2])
    moved = make(way, pipeline="p", place="p_elsewhere")
    Run(moved, accepts=True).bring(BATCHES)
    assert moved.seen().missing


@pytest.mark.parametrize("way", ways())
def test_positions_of_other_sources_than_topics_are_kept_too(way: Way, make: Make) -> None:
    """Of files or lines, say, under a name that no topic can have."""
    store = make(way)
    run = Run(store)
    counted = Range(FILES, 0, 0, 3)
    mixed = replace(BATCHES[0], ranges=(*BATCHES[0].ranges, counted))
    run.bring([mixed])
    assert Run(store).bring([mixed, *BATCHES[1:]])[0] is None
    assert settled(store).state.positions == {**LAST, (FILES, 0): 3}
