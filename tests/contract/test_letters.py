"""Records that nobody can read and rows that a store refuses: the others arrive, and each of these
is a dead letter, once, with where it came from and why."""

import pytest

from contract.conftest import Make
from contract.forks import forked
from contract.harness import Run, Store, keep, letters_of, settled
from contract.source import (
    BATCHES,
    FAILING,
    FIRST,
    LAST,
    REFUSED,
    TOPIC,
    Batch,
    batch,
    is_bad,
)
from contract.ways import Way, cases, ways
from tallygate.core.letters import Letter
from tallygate.core.offsets import Range, lies_in
from tallygate.waiting import wait_until


def bring(store: Store) -> None:
    Run(store).bring(BATCHES)


@pytest.mark.parametrize("way", ways())
def test_a_letter_says_where_the_record_is_from_and_why(way: Way, make: Make) -> None:
    store = make(way)
    run = Run(store)
    run.bring(BATCHES)
    seen = settled(store)
    assert seen.letters
    assert all(is_bad(at) and cause for at, cause in store.causes())
    assert run.target.letter_count() == seen.letters.total()


@pytest.mark.parametrize("way", ways())
def test_a_target_says_why_records_of_the_newest_batch_are_letters(way: Way, make: Make) -> None:
    store = make(way)
    run = Run(store)
    run.bring(BATCHES[:1])
    run.target.letter_count()
    run.bring(BATCHES[1:])
    run.target.letter_count()
    settled(store)
    newest = BATCHES[-1].ranges
    causes = {cause for at, cause in store.causes() if lies_in(newest, TOPIC, *at)}
    found = run.target.first_causes(newest, 2)
    assert 0 < len(found) == len(set(found)) <= 2
    assert set(found) <= causes
    assert len(run.target.first_causes(newest, 1)) == 1


@pytest.mark.parametrize("way", ways(lambda way: way.refuses))
def test_rows_that_are_refused_are_letters_and_the_others_arrive(way: Way, make: Make) -> None:
    store = make(way, refuses=True)
    run = Run(store)
    run.bring(BATCHES)
    seen = settled(store)
    assert seen.state.positions == LAST
    refused = {at: cause for at, cause in store.causes() if not is_bad(at)}
    assert {at[1] % 10 for at in refused} == {REFUSED}
    assert all(refused.values())
    assert run.target.letter_count() == seen.letters.total()


@pytest.mark.parametrize("way", ways(lambda way: way.refuses))
def test_a_batch_of_which_every_row_is_refused_moves_the_ledger(way: Way, make: Make) -> None:
    store = make(way, refuses=True, begin=tuple((p, REFUSED) for p in FIRST))
    run = Run(store)
    run.bring([Batch(0, tuple(Range(TOPIC, p, REFUSED, REFUSED + 1) for p in FIRST))])
    seen = settled(store)
    assert not seen.rows
    assert sorted(seen.letters) == [(p, REFUSED) for p in FIRST]
    assert seen.state.positions == {(TOPIC, p): REFUSED + 1 for p in FIRST}


@pytest.mark.parametrize(("way", "delivery"), cases(lambda way: way.refuses * way.weaker))
def test_a_row_that_is_refused_costs_no_other_record_whatever_the_delivery(
    way: Way, delivery: str, make: Make
) -> None:
    """Nothing crashed: at most once that would be no excuse."""
    store = make(way, delivery=delivery, refuses=True)
    Run(store).bring(BATCHES)
    may_be = {"repeated", "letters repeated"} if delivery == "at-least-once" else set()
    last: dict[str, object] = {}

    def is_right() -> bool:
        last.clear()
        last.update(store.seen().wrong)
        return last.keys() <= may_be

    wait_until(is_right, 10, lambda: f"{last}")
    assert store.seen().state.positions == LAST


@pytest.mark.parametrize(("way", "point"), cases(lambda way: way.refuses * way.points))
def test_a_batch_with_refused_rows_that_is_killed_is_finished(
    way: Way, point: str, make: Make
) -> None:
    """What is refused takes another path: rows are written again with more care."""
    store = make(way, refuses=True)
    with forked(bring, store, at=f"{point}@1") as child:
        assert child.died, child.answer
    settled(store)
    bring(store)
    assert settled(store).state.positions == LAST


def _sets_aside(way: Way) -> bool:
    """Rows in lanes are not of one record each, so no run looks for records that fail."""
    return str(way) != "kafka-lanes"


@pytest.mark.parametrize("way", ways(_sets_aside))
def test_records_on_which_a_transform_fails_are_letters(way: Way, make: Make) -> None:
    """They come with their batch, which holds no row of theirs."""
    store = make(way, fails=True)
    run = Run(store)
    run.bring([BATCHES[0], batch(1, upto=2)] if way.divisible else BATCHES)
    seen = settled(store)
    assert seen.state.positions == LAST
    assert {at[1] % 10 for at in seen.letters if not is_bad(at)} == {FAILING}
    assert run.target.letter_count() == seen.letters.total()


@pytest.mark.parametrize("way", ways(_sets_aside))
def test_a_batch_on_which_a_transform_fails_throughout_moves_the_ledger(
    way: Way, make: Make
) -> None:
    store = make(way, fails=True, begin=tuple((p, FAILING) for p in FIRST))
    run = Run(store)
    run.bring([Batch(0, tuple(Range(TOPIC, p, FAILING, FAILING + 1) for p in FIRST))])
    seen = settled(store)
    assert not seen.rows
    assert sorted(seen.letters) == [(p, FAILING) for p in FIRST]
    assert seen.state.positions == {(TOPIC, p): FAILING + 1 for p in FIRST}


@pytest.mark.parametrize(
    ("way", "point"), cases(lambda way: way.points if _sets_aside(way) else ())
)
def test_a_batch_on_which_a_transform_fails_that_is_killed_is_finished(
    way: Way, point: str, make: Make
) -> None:
    store = make(way, fails=True)
    with forked(bring, store, at=f"{point}@1") as child:
        assert child.died, child.answer
    settled(store)
    bring(store)
    assert settled(store).state.positions == LAST


@pytest.mark.parametrize("way", ways(lambda way: not way.letters_with_rows))
def test_letters_that_are_found_again_are_kept_once(way: Way, make: Make) -> None:
    """As when the task that found them is repeated."""
    store = make(way)
    run = Run(store)
    found = letters_of(BATCHES[0])
    for so_far in (1, len(found), len(found)):
        keep(run, found[:so_far])
    run.bring(BATCHES)
    assert settled(store).state.positions == LAST


@pytest.mark.parametrize("way", ways(lambda way: not way.letters_with_rows))
def test_letters_of_a_batch_that_was_given_up_do_not_count(way: Way, make: Make) -> None:
    """A run finds the last record of a batch unfit, and fails. The next one has another schema, by
    which that record is fit, and others before it are not."""
    store = make(way)
    run = Run(store)
    run.bring(BATCHES[:1])
    last = [Letter(TOPIC, each.partition, each.until - 1, "?") for each in BATCHES[1].ranges]
    assert not any(is_bad((each.partition, each.offset)) for each in last)
    for found in (last, last[:1]):
        keep(run, found)
        run = Run(store)
    run.bring(BATCHES)
    seen = settled(store)
    assert seen.state.positions == LAST
    assert run.target.letter_count() == seen.letters.total()


@pytest.mark.parametrize("way", ways(lambda way: not way.letters_with_rows))
def test_nor_do_they_if_the_next_run_finds_all_records_fit(way: Way, make: Make) -> None:
    store = make(way, begin=((0, 0),))
    run = Run(store)
    run.bring([batch(0, partitions=[0])])
    keep(run, [Letter(TOPIC, 0, 14, "?")])
    run = Run(store)
    run.bring([Batch(1, (Range(TOPIC, 0, 10, 15),))])
    assert settled(store).letters == {(0, 7): 1}
    assert run.target.letter_count() == 1


@pytest.mark.parametrize("way", ways(lambda way: way.kind != "kafka"))
def test_a_letter_counts_once_its_batch_does(way: Way, make: Make) -> None:
    """In a topic letters may be seen before."""
    store = make(way)
    run = Run(store)
    run.bring(BATCHES[:1])
    before = store.letters()
    keep(run, letters_of(BATCHES[1]))
    assert store.letters() == before
    assert run.target.letter_count() == len(before)
    later = Run(store)
    assert store.letters() == before
    later.bring([batch(1, upto=2)] if way.divisible else BATCHES[1:])
    assert settled(store).state.positions == LAST
    assert later.target.letter_count() == len(store.letters())
