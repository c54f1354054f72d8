"""Two runs of one pipeline: the older one commits nothing more, and hears who took over."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress

import pytest

from contract.conftest import Make
from contract.forks import SOON, Child, forked, pause
from contract.harness import Run, Store, keep, letters_of, settled, write
from contract.source import BATCHES, LAST, TOPIC
from contract.twins import without_fence
from contract.ways import Way, cases, ways
from tallygate.core.ledger import Lose, Remember
from tallygate.errors import FencedError, TargetError, UnreachableError
from tallygate.targets.task_report import raise_step_errors

HELD = {"postgres-driver": ("ledger-moved",), "postgres-staged": ("rows-begun",)}
"""Where a run holds what a newer one needs: the pipeline's row, and the staging table."""
MOMENT = 0.5
"""How long a run is waited for that may have to wait for another one."""


def bring(store: Store, at: float = 0) -> None:
    """What a run does, from that moment on."""
    time.sleep(max(0, at - time.time()))
    Run(store).bring(BATCHES)


def _commits(run: Run) -> dict[str, Callable[[], object]]:
    """Everything by which a run changes what is in the store."""
    (next_of_0, *_) = BATCHES[1].ranges
    return {
        "a batch": lambda: run.bring([BATCHES[1]]),
        "a batch planned before": lambda: write(run, BATCHES[1], BATCHES[1].ranges),
        "a lost range": lambda: run.target.amend(run.claim, Lose((next_of_0,), "lost")),
        "a checkpoint": lambda: run.target.amend(run.claim, Remember("another", {TOPIC: "id"})),
    }


@pytest.mark.parametrize("way", ways())
def test_an_older_run_is_fenced_wherever_it_commits_and_hears_by_whom(way: Way, make: Make) -> None:
    store = make(way)
    older = Run(store)
    older.bring(BATCHES[:1])
    newer = Run(store)
    before = settled(store)
    number, epoch = older.claim.run.epoch, newer.claim.run.epoch
    assert epoch > number
    said = (
        rf"run {number} of pipeline '{store.pipeline}' is fenced: run {epoch} took over on "
        rf"{newer.claim.run.host} \(pid {os.getpid()}\)"
    )
    for what, commit in _commits(older).items():
        with pytest.raises(FencedError, match=said):
            _until_answered(commit)
        assert settled(store) == before, what
    newer.bring(BATCHES)
    assert settled(store).state.positions == LAST


@pytest.mark.parametrize("way", ways())
def test_the_heartbeat_of_an_older_run_finds_the_newer_one(way: Way, make: Make) -> None:
    """It may have no batch for a long time, and hold what the newer one needs."""
    store = make(way)
    older = Run(store)
    older.bring(BATCHES[:1])
    assert older.target.beat(older.claim, {}) is False
    newer = Run(store)
    with pytest.raises(FencedError, match=f"run {newer.claim.run.epoch} took over"):
        older.target.beat(older.claim, {})
    assert newer.target.beat(newer.claim, {}) is False


def _until_answered(commit: Callable[[], object]) -> None:
    """A store may say no more than that the batch is to be planned again, and then it is."""
    for _ in range(5):
        try:
            commit()
        except UnreachableError:
            continue
        return


@pytest.mark.parametrize("way", ways(lambda way: not way.letters_with_rows))
def test_dead_letters_that_an_older_run_still_keeps_are_there_once(way: Way, make: Make) -> None:
    """They are found by tasks, which may be at work when another run takes over."""
    store = make(way)
    older = Run(store)
    older.bring(BATCHES[:1])
    newer = Run(store)
    with suppress(FencedError, TargetError), raise_step_errors():
        keep(older, letters_of(BATCHES[1]))
    newer.bring(BATCHES)
    assert settled(store).state.positions == LAST


@pytest.mark.parametrize("way", ways(lambda way: not way.staging))
def test_the_twin_without_a_fence_lets_an_older_run_commit(
    way: Way, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_fence(way.kind, monkeypatch)
    store = make(way)
    older = Run(store)
    older.bring(BATCHES[:1])
    newer = Run(store)
    before = settled(store).state.positions
    _commits(older)["a batch"]()
    seen = store.seen()
    assert seen.state.positions != before, "an older run committed"
    assert newer.bring([BATCHES[1]]) == [None]


@pytest.mark.parametrize(("way", "point"), cases(lambda way: way.points))
def test_a_run_that_was_paused_in_a_commit_while_a_newer_one_wrote_repeats_nothing(
    way: Way, point: str, make: Make
) -> None:
    store = make(way)
    with forked(bring, store, at=f"{point}@1", then=pause) as older, ThreadPoolExecutor(1) as pool:
        older.wait_until_paused()
        newer = pool.submit(bring, store)
        # A store may make it wait for the transaction that is open.
        overtaken = bool(wait([newer], MOMENT).done)
        older.go_on()
        newer.result()
        fenced = _is_fenced(older)
        assert fenced or not overtaken, "it goes on although a newer run is done"
    assert settled(store).state.positions == LAST


@pytest.mark.parametrize(("way", "point"), cases(lambda way: HELD.get(str(way), ())))
def test_a_run_that_hangs_keeps_no_newer_one_from_starting(
    way: Way, point: str, make: Make
) -> None:
    """It holds locks, and its machine still answers. Its transaction is ended, and it is fenced."""
    store = make(way, lock_wait=1.0)
    with forked(bring, store, at=f"{point}@1", then=pause) as older:
        older.wait_until_paused()
        bring(store)
        older.go_on()
        assert _is_fenced(older)
    assert settled(store).state.positions == LAST


@pytest.mark.parametrize("way", ways(lambda way: way.kind == "postgres" and not way.staging))
def test_a_run_that_is_overtaken_in_a_batch_commits_nothing_of_it(way: Way, make: Make) -> None:
    """The newer run has written nothing yet, so only the epoch says so, and only in the transaction
    of the rows: the batch had begun before."""
    store = make(way)
    with (
        forked(bring, store, at="rows-begun@1", then=pause) as older,
        ThreadPoolExecutor(1) as pool,
    ):
        older.wait_until_paused()
        newer = pool.submit(Run, store)
        overtaken = bool(wait([newer], MOMENT).done)
        before = store.seen().state.positions
        older.go_on()
        newer.result()
        assert _is_fenced(older)
    assert not overtaken or settled(store).state.positions == before


@pytest.mark.parametrize(("way", "delivery"), cases(lambda way: way.weaker))
def test_a_run_of_a_weaker_delivery_that_was_paused_does_not_set_the_ledger_back(
    way: Way, delivery: str, make: Make
) -> None:
    """It may repeat or lose rows. The ledger that a stronger delivery goes on with stays right."""
    store = make(way, delivery=delivery)
    with forked(bring, store, at="rows-written@1", then=pause) as older:
        with ThreadPoolExecutor(1) as pool:
            older.wait_until_paused()
            newer = pool.submit(bring, store)
            # In a topic it is not waited for, so it is done before the older one goes on.
            wait([newer], SOON if way.kind == "kafka" else MOMENT)
            older.go_on()
            newer.result()
        with suppress(FencedError, UnreachableError):
            _ = older.answer
    assert store.seen().state.positions == LAST


@pytest.mark.parametrize("way", ways())
def test_of_two_runs_that_start_at_the_same_moment_one_goes_on(way: Way, make: Make) -> None:
    store = make(way)
    at = time.time() + 0.3
    with forked(bring, store, at) as one, forked(bring, store, at) as other:
        fenced = [_is_fenced(one), _is_fenced(other)]
    assert fenced != [True, True]
    assert settled(store).state.positions == LAST


@pytest.mark.parametrize("way", ways())
def test_of_two_runs_that_begin_before_anything_is_written_one_goes_on(
    way: Way, make: Make
) -> None:
    store = make(way)
    runs = [Run(store), Run(store)]
    going = set(range(2))
    for batch in BATCHES:
        for number in sorted(going):
            try:
                runs[number].bring([batch])
            except FencedError:
                going.remove(number)
    assert len(going) == 1
    assert settled(store).state.positions == LAST


def _is_fenced(child: Child) -> bool:
    try:
        assert child.answer is None
    except FencedError:
        return True
    return False
