"""A process that is killed by SIGKILL at every step of every way to write, and started again."""

from collections.abc import Sequence

import pytest

from contract.conftest import Make
from contract.forks import forked
from contract.harness import SPINE, Run, Store, settled
from contract.source import BATCHES, LAST, Batch, batch
from contract.ways import Way, cases, ways

KILLED = 1
"""The batch in which it happens; the first one is where a ledger begins, and is tried too."""


def bring(store: Store, batches: Sequence[Batch]) -> None:
    """What a run does: in a process of its own, or here."""
    Run(store).bring(batches)


def _is_killed(store: Store, batches: Sequence[Batch], point: str) -> None:
    with forked(bring, store, batches, at=point) as child:
        assert child.died, f"it was not killed at {point}, and answers {child.answer}"


@pytest.mark.parametrize(("way", "point"), cases(lambda way: (*SPINE, *way.points)))
def test_what_is_killed_is_whole_at_once_and_finished_by_the_next_run(
    way: Way, point: str, make: Make
) -> None:
    store = make(way)
    _is_killed(store, BATCHES, f"{point}@{KILLED}")
    settled(store)
    bring(store, BATCHES)
    assert settled(store).state.positions == LAST


@pytest.mark.parametrize(("way", "point"), cases(lambda way: way.points))
def test_a_first_batch_that_is_killed_is_finished_where_it_began(
    way: Way, point: str, make: Make
) -> None:
    store = make(way)
    _is_killed(store, BATCHES, f"{point}@0")
    settled(store)
    bring(store, BATCHES)
    assert settled(store).state.positions == LAST


@pytest.mark.parametrize(("way", "point"), cases(lambda way: way.divisible * way.points))
def test_batches_that_are_cut_otherwise_after_a_kill_are_trimmed(
    way: Way, point: str, make: Make
) -> None:
    """The checkpoint is lost with the process, and the next run reads all from the start."""
    store = make(way)
    _is_killed(store, BATCHES, f"{point}@{KILLED}")
    bring(store, [batch(0, upto=2)])
    assert settled(store).state.positions == LAST


@pytest.mark.parametrize("way", ways())
def test_a_run_that_is_killed_again_and_again_gets_there(way: Way, make: Make) -> None:
    """Each run finishes what the one before left, and is killed at the next step."""
    store = make(way)
    for point in way.points:
        for number in (0, 1, 2):
            with forked(bring, store, BATCHES, at=f"{point}@{number}") as child:
                _ = child.died
            settled(store)
    bring(store, BATCHES)
    assert settled(store).state.positions == LAST


@pytest.mark.parametrize(("way", "delivery"), cases(lambda way: way.weaker))
def test_the_twins_killed_between_the_two_commits_repeat_or_lose_rows(
    way: Way, delivery: str, make: Make
) -> None:
    store = make(way, delivery=delivery)
    _is_killed(store, BATCHES, f"committed@{KILLED}")
    bring(store, BATCHES)
    seen = store.seen()
    assert seen.state.positions == LAST
    assert bool(seen.missing) == (delivery == "at-most-once")
    assert bool(seen.repeated) == (delivery == "at-least-once")
