"""Batches into every target: each record once, and the ledger where they end."""

from contextlib import suppress

import pytest

from contract.conftest import Make
from contract.harness import Run, Store, settled, write
from contract.source import BATCHES, FIRST, LAST, TOPIC, Batch, batch
from contract.twins import without_comparison
from contract.ways import Way, cases, ways
from tallygate.core.offsets import MovedError, Range
from tallygate.errors import LedgerError, UnreachableError


@pytest.mark.parametrize("way", ways())
def test_batches_arrive_whole_by_the_strategy_that_was_asked_for(way: Way, make: Make) -> None:
    store = make(way)
    run = Run(store)
    done = run.bring(BATCHES)
    assert {each.strategy for each in done if each} == {way.reported or way.strategy}
    seen = settled(store)
    assert seen.state.positions == LAST
    assert seen.rows
    assert seen.letters
    assert run.target.letter_count() == seen.letters.total()
    if not store.keyed:
        assert sum(each.rows for each in done if each) == seen.rows.total()


@pytest.mark.parametrize(("way", "delivery"), cases(lambda way: way.weaker))
def test_batches_arrive_by_the_weaker_deliveries_too(way: Way, delivery: str, make: Make) -> None:
    store = make(way, delivery=delivery)
    Run(store).bring(BATCHES)
    assert settled(store).state.positions == LAST


@pytest.mark.parametrize("way", ways())
def test_a_batch_that_is_done_is_skipped(way: Way, make: Make) -> None:
    store = make(way)
    run = Run(store)
    run.bring(BATCHES)
    assert run.bring(BATCHES[1:]) == [None, None]
    assert Run(store).bring(BATCHES) == [None, None, None]
    assert settled(store).state.positions == LAST


@pytest.mark.parametrize("way", ways())
def test_of_a_batch_that_is_half_done_the_rest_is_written(way: Way, make: Make) -> None:
    """As with a lost checkpoint, after which batches are cut otherwise."""
    store = make(way)
    run = Run(store)
    run.bring(BATCHES[:1])
    longer = batch(0, upto=2)
    if way.divisible:
        run.bring([longer])
        assert settled(store).state.positions == LAST
    else:
        with pytest.raises(LedgerError, match="holds a part of this batch"):
            run.bring([longer])
        settled(store)


@pytest.mark.parametrize("way", ways())
def test_a_batch_that_would_leave_a_gap_is_not_written(way: Way, make: Make) -> None:
    store = make(way)
    run = Run(store)
    run.bring(BATCHES[:1])
    with pytest.raises(LedgerError, match="would be skipped"):
        run.bring([BATCHES[2]])
    _is_not_written(store, run, BATCHES[2])


@pytest.mark.parametrize("way", ways())
def test_a_batch_that_would_overlap_is_not_written_again(way: Way, make: Make) -> None:
    """Planned by a ledger that has moved since."""
    store = make(way)
    run = Run(store)
    run.bring(BATCHES[:2])
    _is_not_written(store, run, BATCHES[1])
    _is_not_written(store, run, batch(1, upto=2))


@pytest.mark.parametrize("way", ways())
def test_a_batch_of_which_a_partition_is_done_is_not_written_there_again(
    way: Way, make: Make
) -> None:
    store = make(way)
    run = Run(store)
    run.bring([BATCHES[0], batch(1, partitions=[1])])
    _is_not_written(store, run, BATCHES[1])
    if way.divisible:
        run.bring(BATCHES)
        assert settled(store).state.positions == LAST


def _is_not_written(store: Store, run: Run, given: Batch) -> None:
    """Whether the target says so, or finds that it has all."""
    with suppress(UnreachableError, MovedError):
        write(run, given, given.ranges)
    settled(store)


@pytest.mark.parametrize("way", ways())
def test_without_the_comparison_the_checker_sees_gaps_and_overlaps(
    way: Way, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_comparison(way.kind, monkeypatch)
    store = make(way)
    run = Run(store)
    run.bring(BATCHES[:1])
    write(run, BATCHES[2], BATCHES[2].ranges)
    seen = store.seen()
    assert seen.missing or seen.wrong["letters missing"]
    if not store.keyed:
        write(run, BATCHES[2], BATCHES[2].ranges)
        assert store.seen().repeated


@pytest.mark.parametrize("way", ways())
def test_a_batch_without_rows_moves_the_ledger(way: Way, make: Make) -> None:
    """All of its records are unfit, or its ranges are empty."""
    store = make(way)
    run = Run(store)
    unfit = Batch(0, tuple(Range(TOPIC, p, 7, 8) for p in FIRST))
    empty = Batch(1, tuple(Range(TOPIC, p, 8, 8) for p in FIRST))
    run.bring([unfit, empty])
    state = run.target.ledger()
    assert state is not None
    assert state.positions == {(TOPIC, p): 8 for p in FIRST}
    assert store.rows() == []
    assert sorted(store.letters()) == [(p, 7) for p in FIRST]


@pytest.mark.parametrize("way", ways())
def test_where_a_partition_begins_is_kept_although_nothing_was_read_there(
    way: Way, make: Make
) -> None:
    """Or "latest" would move on with every start, and a partition that is not known when others of
    its topic are would be taken for one that was added, and begin at 0."""
    store = make(way)
    empty = tuple(Range(TOPIC, p, first, first) for p, first in FIRST.items() if p)
    Run(store).bring([Batch(0, (*batch(0, partitions=[0]).ranges, *empty))])
    run = Run(store)
    state = run.target.ledger()
    assert state is not None
    assert state.positions == {(TOPIC, 0): 10, (TOPIC, 1): 5, (TOPIC, 2): 50}
    run.bring([Batch(1, (*batch(1, partitions=[0]).ranges, *batch(0, partitions=[1, 2]).ranges))])
    settled(store)


@pytest.mark.parametrize("way", ways())
def test_a_partition_that_was_added_begins_at_0(way: Way, make: Make) -> None:
    store = make(way, begin=((0, 0), (1, 0)))
    run = Run(store)
    run.bring([batch(0, partitions=[0])])
    with pytest.raises(LedgerError, match="would be skipped"):
        run.bring([Batch(1, (Range(TOPIC, 1, 5, 10),))])
    run.bring([Batch(1, (Range(TOPIC, 1, 0, 10),))])
    assert settled(store).state.positions == {(TOPIC, 0): 10, (TOPIC, 1): 10}
