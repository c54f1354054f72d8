"""Two runs that do whatever comes: batches cut anyhow, repeated, planned by an old ledger, beyond a
gap, and killed somewhere. After each step every record up to the ledger is there once."""

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from contract.conftest import Make
from contract.forks import forked
from contract.harness import SPINE, Run, Store, settled, write
from contract.source import FIRST, TOPIC, Batch
from contract.twins import without_comparison
from contract.ways import Way, ways
from tallygate.core.ledger import LedgerState
from tallygate.core.offsets import Range
from tallygate.errors import FencedError, LedgerError, TallygateError, UnreachableError

SEEDS = 3
STEPS = 15
MOST = 6
"""Records of a partition in a batch."""


def bring(store: Store, batches: Sequence[Batch]) -> None:
    Run(store).bring(batches)


@dataclass
class Chance:
    """Two runs, and a ledger that each of them saw at some time."""

    way: Way
    store: Store
    lot: random.Random
    runs: list[Run] = field(init=False)
    newest: int = 1
    number: int = 0
    old: LedgerState = field(default_factory=LedgerState)

    def __post_init__(self) -> None:
        self.runs = [Run(self.store), Run(self.store)]
        self.runs[1].bring([Batch(0, tuple(Range(TOPIC, p, at, at) for p, at in FIRST.items()))])

    def step(self) -> str:
        acts = [self.start, self.go_on, self.go_on, self.repeat, self.jump, self.be_late, self.die]
        act = self.lot.choice(acts)
        self.number += 1
        act()
        return act.__name__

    def start(self) -> None:
        self.newest = self.lot.randrange(2)
        self.runs[self.newest] = Run(self.store)

    def go_on(self) -> None:
        """A batch from where the ledger is; only the newest run may write it."""
        number = self.lot.randrange(2)
        try:
            self.runs[number].bring([self._next(self._ledger())])
        except FencedError:
            assert number != self.newest
        else:
            assert number == self.newest, "an older run committed"

    def repeat(self) -> None:
        """A batch from the beginning of all."""
        whole = self._next(self._ledger())
        ranges = tuple(
            Range(TOPIC, each.partition, FIRST[each.partition], each.until) for each in whole.ranges
        )
        # In lanes a batch that is half done is repeated as it was, or is refused.
        with suppress(LedgerError):
            self.runs[self.newest].bring([Batch(self.number, ranges)])

    def jump(self) -> None:
        """A batch that begins somewhere else."""
        ranges = []
        for p, first in FIRST.items():
            start = first + self.lot.randrange(20)
            ranges.append(Range(TOPIC, p, start, start + self.lot.randrange(MOST)))
        self._write(Batch(self.number, tuple(ranges)))

    def be_late(self) -> None:
        """A batch that was planned some time ago."""
        self._write(self._next(self.old))
        if self.lot.random() < 0.5:
            self.old = self._ledger()

    def _write(self, batch: Batch) -> None:
        number = self.lot.randrange(2)
        with suppress(LedgerError, UnreachableError, FencedError):
            write(self.runs[number], batch, batch.ranges)

    def die(self) -> None:
        """A run of its own that is killed; which of ours may go on is open until one starts."""
        point = f"{self.lot.choice((*SPINE, *self.way.points))}@{self.number}"
        with forked(bring, self.store, [self._next(self._ledger())], at=point) as child:
            _ = child.died
        settled(self.store)
        self.start()

    def _ledger(self) -> LedgerState:
        return self.store.target().ledger() or LedgerState()

    def _next(self, state: LedgerState) -> Batch:
        """What comes after this; a batch that some lanes have comes again as it was."""
        positions, half_done = state.positions, state.furthest
        ranges = []
        for p, first in FIRST.items():
            at = positions.get((TOPIC, p), first)
            until = half_done[TOPIC, p] if half_done else at + self.lot.randrange(MOST)
            ranges.append(Range(TOPIC, p, at, until))
        return Batch(self.number, tuple(ranges))


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(each, marks=pytest.mark.system) for each in range(1, SEEDS))]
)
@pytest.mark.parametrize("way", ways())
def test_whatever_two_runs_do_each_record_is_there_once(way: Way, seed: int, make: Make) -> None:
    chance = Chance(way, make(way), random.Random(seed))
    done = []
    for _ in range(STEPS):
        done.append(chance.step())
        assert not settled(chance.store).wrong, done


@pytest.mark.parametrize("way", ways(lambda way: way.divisible))
def test_without_the_comparison_chance_finds_a_gap_or_an_overlap(
    way: Way, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_comparison(way.kind, monkeypatch)
    for seed in range(10):
        chance = Chance(way, make(way, pipeline=f"seed{seed}"), random.Random(seed))
        for _ in range(STEPS):
            with suppress(AssertionError, TallygateError):
                chance.step()
            if chance.store.seen().wrong:
                return
    pytest.fail("chance found nothing")
