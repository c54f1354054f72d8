"""A store that hangs up in the middle of a commit. What became of it is asked of the ledger, by the
run itself: it goes on, and nothing is repeated on a guess."""

import os
from typing import Any

import pytest

from contract.conftest import Make
from contract.forks import forked
from contract.harness import Run, settled
from contract.source import BATCHES, LAST
from contract.ways import Way, cases


def bring(store: Any) -> None:
    os.environ["PGAPPNAME"] = store.pipeline
    Run(store).bring(BATCHES)


@pytest.mark.parametrize(("way", "point"), cases(lambda way: way.hangs_up * way.points))
def test_a_run_goes_on_when_the_store_hung_up_in_a_commit(way: Way, point: str, make: Make) -> None:
    store: Any = make(way)
    with forked(bring, store, at=f"{point}@1", then=store.hang_up) as run:
        assert run.answer is None
    assert settled(store).state.positions == LAST


@pytest.mark.parametrize(("way", "delivery"), cases(lambda way: way.hangs_up * way.weaker))
def test_the_twins_repeat_or_lose_what_was_under_way(way: Way, delivery: str, make: Make) -> None:
    store: Any = make(way, delivery=delivery)
    with forked(bring, store, at="committed@1", then=store.hang_up) as run:
        assert run.answer is None
    seen = store.seen()
    assert seen.state.positions == LAST
    assert bool(seen.missing) == (delivery == "at-most-once")
    assert bool(seen.repeated) == (delivery == "at-least-once")
