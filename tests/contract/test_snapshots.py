"""What a target shows to an audit: its rows and its ledger, both of one moment."""

import json
from collections import Counter
from contextlib import AbstractContextManager

import pytest
from pyspark.sql import DataFrame, SparkSession

from contract.conftest import Make
from contract.harness import Run, Seen, Store, settled
from contract.source import BATCHES, FIRST, LAST, TOPIC, At, place_of
from contract.ways import Way, ways
from tallygate.core.ledger import LedgerState
from tallygate.errors import LedgerError
from tallygate.targets.snapshot import Snapshot


def _places(rows: DataFrame) -> list[At]:
    if "id" in rows.columns:
        return [place_of(row.id) for row in rows.select("id").collect()]
    return [place_of(json.loads(row.value)["id"]) for row in rows.select("value").collect()]


def _snapshot(store: Store, spark: SparkSession) -> AbstractContextManager[Snapshot]:
    return store.target().snapshot(spark, lambda: store.shape)


def _seen(store: Store, snapshot: Snapshot) -> Seen:
    ledger = snapshot.ledger
    state = LedgerState(positions={at: each.until for at, each in ledger.ranges.items()})
    letters = Counter((partition, offset) for _, partition, offset in ledger.letters)
    return Seen(store, Counter(_places(snapshot.rows())), letters, state)


@pytest.mark.parametrize("way", ways())
def test_a_snapshot_is_of_one_moment(way: Way, make: Make, spark: SparkSession) -> None:
    """Whatever is written while it is looked at."""
    store = make(way)
    run = Run(store)
    run.bring(BATCHES[:2])
    before = settled(store)
    with _snapshot(store, spark) as snapshot:
        run.bring(BATCHES[2:])
        seen = _seen(store, snapshot)
    assert seen == Seen(store, before.rows, before.letters, seen.state)
    assert seen.state.positions == before.state.positions
    assert seen.wrong == {}
    assert {at: each.start for at, each in snapshot.ledger.ranges.items()} == {
        (TOPIC, p): first for p, first in FIRST.items()
    }
    assert settled(store).state.positions == LAST


@pytest.mark.parametrize("way", ways())
def test_dead_letters_are_listed_with_their_causes(
    way: Way, make: Make, spark: SparkSession
) -> None:
    store = make(way)
    Run(store).bring(BATCHES)
    settled(store)
    known = dict(store.causes())
    assert {(each.partition, each.offset): each.cause for each in store.target().letters()} == known
    (partition, offset), cause = known.popitem()
    with _snapshot(store, spark) as snapshot:
        assert snapshot.letter((TOPIC, partition, offset)) == cause
        assert snapshot.letter((TOPIC, partition, offset + 1)) is None
        named = f"{store.pipeline}.dead-letters" in snapshot.lists_letters
        assert named is (way.kind == "kafka")


@pytest.mark.parametrize("way", ways(lambda way: way.kind not in ("kafka", "sqlite")))
def test_the_history_leads_to_the_ledger(way: Way, make: Make, spark: SparkSession) -> None:
    store = make(way)
    for each in BATCHES:
        Run(store).bring([each])
    settled(store)
    with _snapshot(store, spark) as snapshot:
        history = snapshot.ledger.history
    moved = [each for commit in history for each in commit.ranges if len(each)]
    assert sorted(moved) == sorted(each for batch in BATCHES for each in batch.ranges)
    assert [commit.number for commit in history] == sorted(commit.number for commit in history)
    assert snapshot.ledger.unfinished == ()


@pytest.mark.parametrize("way", ways(lambda way: way.kind != "sqlite"))
def test_of_a_pipeline_that_never_ran_there_is_no_snapshot(
    way: Way, make: Make, spark: SparkSession
) -> None:
    store = make(way)
    with pytest.raises(LedgerError, match="has never"), _snapshot(store, spark):
        pass
