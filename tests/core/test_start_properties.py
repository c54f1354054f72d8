"""Whatever the case is, a start leaves no gap, writes nothing twice, and says what to do."""

import re
from dataclasses import replace
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as some

from fixtures.starts import (
    NO_CHECKPOINT,
    Positions,
    Start,
)
from tallygate.core.forgetting import followed, where_forgotten
from tallygate.core.ledger import LedgerState
from tallygate.core.offsets import Range, TopicPartition, remaining
from tallygate.core.start_facts import (
    CheckpointState,
    Refuse,
    Resume,
    RowsNature,
    Seed,
    SourceState,
    StartPolicy,
)

WAY_OUT = re.compile(
    "[Bb]ring the (checkpoint|ledger) back|[Rr]estore them, or|start a pipeline of another name|"
    "Set it back|Set the sink back|[Rr]emove the checkpoint|`tallygate forget-topic`|"
    "so it cannot be forgotten|To have what the source has, rebuild",
    re.IGNORECASE,
)


T = TypeVar("T")
PARTITIONS = [("t", 0), ("t", 1), ("u", 0)]
FORGOTTEN = "forgotten:20260102T030405Z:u"
OFFSETS = some.integers(0, 6)


def _advanced(positions: Positions, steps: Positions) -> dict[TopicPartition, int]:
    return {partition: offset + steps.get(partition, 0) for partition, offset in positions.items()}


def _some(partitions: list[TopicPartition], least: int = 0) -> some.SearchStrategy[Positions]:
    return some.dictionaries(some.sampled_from(partitions), OFFSETS, min_size=least)


def _mostly(usual: T, *others: T) -> some.SearchStrategy[T]:
    return some.sampled_from([usual] * 4 + list(others))


@some.composite
def ledgers(draw: some.DrawFn) -> LedgerState:
    positions = draw(_some(PARTITIONS, least=2))
    furthest = _advanced(positions, draw(_some(PARTITIONS)))
    lanes_differ = furthest != positions and draw(some.booleans())
    forgotten = draw(some.sampled_from([{}, {}, {(FORGOTTEN, 0): 3}]))
    return LedgerState(
        positions={**positions, **forgotten},
        furthest={**furthest, **forgotten} if lanes_differ else None,
        topic_ids={"t": "first", FORGOTTEN: draw(some.sampled_from(["third", "older"]))},
        checkpoint_id=draw(some.sampled_from([None, "query"])),
    )


@some.composite
def checkpoints(draw: some.DrawFn, ledger: LedgerState) -> CheckpointState:
    """One that is near the ledger, before it or after it."""
    adopted = draw(some.sampled_from([None, -1, 5]))
    if draw(some.integers(0, 4)) == 0:
        return replace(NO_CHECKPOINT, adopted=adopted)
    near = dict(draw(_some(PARTITIONS))) if draw(some.integers(0, 4)) == 0 else {}
    steps = {partition: draw(_mostly(0, -2, 1, 3)) for partition in ledger.positions}
    start = {
        **near,
        **{partition: max(0, at) for partition, at in _advanced(ledger.positions, steps).items()},
    }
    end = draw(
        some.sampled_from([ledger.furthest, ledger.positions])
        | _some(PARTITIONS).map(lambda steps: _advanced(start, steps))
    )
    if end is not None:
        end = {partition: max(at, end.get(partition, at)) for partition, at in start.items()}
    return CheckpointState(
        path="/checkpoint",
        id=draw(_mostly("query", "copy")),
        planned=5 if end is None else 6,
        committed=5,
        start=start,
        end=end,
        adopted=adopted,
        shuffle_partitions=draw(some.sampled_from([None, 2])),
    )


@some.composite
def sources(draw: some.DrawFn) -> SourceState:
    both = {"t": "first", "u": "third"}
    earliest = {partition: draw(_mostly(0, 2, 5)) for partition in PARTITIONS}
    return SourceState(
        topic_ids=draw(_mostly(both, both, {"t": "second"}, {"u": "third"})),
        earliest=earliest,
        read=draw(some.sampled_from([frozenset({"t"}), frozenset({"t", "u"})])),
        ends={partition: max(at, draw(_mostly(20, 4))) for partition, at in earliest.items()},
        cut=draw(_mostly({}, {PARTITIONS[0]: 3})),
    )


NATURES = some.builds(
    RowsNature,
    stateful=_mostly(False, True),
    exact=_mostly(False, True),
    divisible=some.booleans(),
    sees=_mostly(None, "current time"),
)
POLICIES = some.builds(
    StartPolicy,
    pipeline=some.just("p"),
    target=some.just("table t"),
    cure=some.just("rebuild"),
    accept_loss=some.booleans(),
    adopts=some.booleans(),
    keeps_ledger=some.booleans(),
    shuffle_partitions=some.sampled_from([None, 2, 7]),
)


@some.composite
def starts(draw: some.DrawFn) -> Start:
    ledger = draw(ledgers())
    return Start(
        ledger=ledger,
        checkpoint=draw(checkpoints(followed(ledger))),
        source=draw(some.none() | sources()),
        nature=draw(NATURES),
        policy=draw(POLICIES),
    )


def _after(start: Start, lost: tuple[Range, ...]) -> LedgerState:
    """The ledger when these ranges are given up, in every lane."""
    assert start.ledger is not None
    moved = start.ledger.moved(lost)
    gone = {each.topic_partition: each.until for each in lost}
    furthest = {**(start.ledger.furthest or moved.positions), **gone}
    return replace(moved, furthest=None if furthest == moved.positions else furthest)


@given(starts())
def test_a_seed_begins_at_the_positions_or_past_what_is_lost(start: Start) -> None:
    decision = start.decide()
    assert start.ledger is not None
    if not isinstance(decision, Seed):
        return
    assert not start.nature.anchored
    assert start.policy.accept_loss or not (decision.lost or decision.cut)
    lost = {(*each.topic_partition, each.start): each.until for each in decision.lost}
    positions = followed(start.ledger).positions
    for partition, position in positions.items():
        assert decision.positions[partition] == lost.get((*partition, position), position)
    known = {topic for topic, _ in positions}
    for topic, number in decision.positions.keys() - positions.keys():
        assert start.source is not None
        begin = start.source.earliest[topic, number]
        if topic in known:  # it was added, and retention took its head before it was read
            assert lost.get((topic, number, 0), 0) == begin
        before = where_forgotten(start.ledger, start.source).get((topic, number), 0)
        assert decision.positions[topic, number] == max(begin, before)
    if decision.furthest is not None:
        assert start.nature.sees is None
        assert decision.furthest.keys() == decision.positions.keys()
        assert all(
            end >= decision.positions[partition] for partition, end in decision.furthest.items()
        )


@given(starts())
def test_a_checkpoint_is_gone_on_with_only_if_its_next_batch_leaves_no_gap(start: Start) -> None:
    decision = start.decide()
    if not isinstance(decision, Resume):
        return
    ledger, checkpoint = followed(_after(start, decision.lost)), start.checkpoint
    assert checkpoint.planned is not None
    for partition, position in ledger.positions.items():
        assert checkpoint.start.get(partition, 0) <= position
    if start.nature.anchored:
        return
    begins = {partition: checkpoint.start.get(partition, 0) for partition in ledger.positions}
    ends = checkpoint.end or begins
    ranges = [
        Range(*partition, begins[partition], ends.get(partition, begins[partition]))
        for partition in begins
    ]
    divisible = start.nature.divisible and ledger.furthest is None
    left = remaining(ranges, ledger.positions, divisible=divisible)
    assert {each.topic_partition: each.start for each in left} == {
        each.topic_partition: ledger.positions[each.topic_partition] for each in left
    }
    if ledger.furthest is not None:
        assert begins == ledger.positions
        assert {each.topic_partition: each.until for each in ranges} == ledger.furthest


@given(starts())
def test_what_was_carried_out_is_not_done_again(start: Start) -> None:
    """The start after it finds nothing to do: so one that crashes on its way is made good."""
    decision = start.decide()
    if isinstance(decision, Refuse):
        return
    checkpoint = start.checkpoint
    if isinstance(decision, Seed):
        checkpoint = CheckpointState(
            path="/checkpoint",
            planned=0 if decision.furthest is None else 1,
            committed=0,
            start=decision.positions,
            end=decision.furthest,
            adopted=None if decision.set_aside else checkpoint.adopted,
        )
    if decision.adopt is not None:
        checkpoint = replace(checkpoint, adopted=decision.adopt)
    later = replace(start, ledger=_after(start, decision.lost), checkpoint=checkpoint)
    if start.source is not None and decision.cut:  # the ledger knows of no leader any more
        later = replace(later, source=replace(start.source, cut={}))
    assert later.decide() == Resume()


@given(starts(), some.booleans())
def test_a_refusal_says_what_to_do(start: Start, known: bool) -> None:
    decision = start.decide() if known else replace(start, ledger=None).decide()
    if isinstance(decision, Refuse):
        assert WAY_OUT.search(decision.message), decision.message
        assert str(decision.exception()) == decision.message
