"""A task that is tried more than once, as Spark does it: one attempt counts."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import wait

import pyarrow as pa
import pytest

from contract.conftest import Make
from contract.forks import forked, pause
from contract.harness import Run, settled, write
from contract.source import BATCHES, LAST
from contract.twins import without_comparison
from contract.ways import Way, ways
from tallygate.core.blocks import BlockPlan, Blocks
from tallygate.errors import UnreachableError
from tallygate.targets.base import Task, TaskReport
from tallygate.targets.batch_input import BlockInput
from tallygate.targets.task_report import perform, raise_problems


class Tried(BlockInput):
    """Tries each task in some way; the report that the driver hears of is the last one's."""

    def run(self, task: Task, *, one_partition: bool = False) -> list[TaskReport]:
        plan = replace(self.plan, one_partition=one_partition)
        return self._tried([Attempt(task, plan, blocks) for blocks in self.tasks])

    def run_in_lanes(self, task: Task, lanes: int, by: str) -> list[TaskReport]:
        return self._tried(
            [Attempt(task, self.plan, blocks, lane) for lane, blocks in enumerate(self.tasks)]
        )

    def _tried(self, attempts: Sequence["Attempt"]) -> list[TaskReport]:
        reports = [report for each in attempts for report in self.reports(each)]
        raise_problems(reports)
        return reports

    def reports(self, attempt: "Attempt") -> list[TaskReport]:
        raise NotImplementedError


@dataclass(frozen=True)
class Attempt:
    """A try of a task; it travels to a worker."""

    task: Task
    plan: BlockPlan
    given: Sequence[pa.RecordBatch]
    lane: int = 0

    def blocks(self) -> Blocks:
        return Blocks(self.plan, iter(self.given), lane=self.lane)

    def __call__(self) -> TaskReport:
        return perform(self.task, self.blocks())


class AtOnce(Tried):
    """Speculation: two workers at the same time, and the first to end counts."""

    heard = 0

    def reports(self, attempt: Attempt) -> list[TaskReport]:
        with forked(attempt) as one, forked(attempt) as other:
            (first, *_) = wait([one.answers, other.answers])
            ended = [one, other] if first is one.answers else [other, one]
            return [[each.answer for each in ended][self.heard]]


class AtOnceTheLastCounts(AtOnce):
    """The executor of the first to end is lost."""

    heard = 1


class Lost(Tried):
    """A task that was done and could not say so, as when its executor is lost, is done again."""

    def reports(self, attempt: Attempt) -> list[TaskReport]:
        attempt()
        return [attempt()]


class HalfWay(Tried):
    """A task that fails after its first block is done again."""

    def reports(self, attempt: Attempt) -> list[TaskReport]:
        broken = attempt.blocks()
        broken.source = _breaking(broken.source)
        with suppress(WorkerError):
            perform(attempt.task, broken)
        return [attempt()]


class Hanging(Tried):
    """The first attempt hangs before its commit, and goes on when the second one is over."""

    def reports(self, attempt: Attempt) -> list[TaskReport]:
        with forked(attempt, at="ledger-moved@*", then=pause) as first:
            first.wait_until_paused()
            second = attempt()
            first.go_on()
            assert first.answer.problem is None
        return [second]


class Both(Tried):
    """The twin: the driver takes the reports of two attempts for those of two tasks."""

    def reports(self, attempt: Attempt) -> list[TaskReport]:
        return [attempt(), attempt()]


class WorkerError(Exception):
    """A worker was lost."""


def _breaking(blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield next(blocks)
    raise WorkerError


@pytest.mark.parametrize("tried", [AtOnce, AtOnceTheLastCounts, Lost, HalfWay])
@pytest.mark.parametrize("way", ways(lambda way: way.tasks))
def test_of_several_attempts_of_a_task_one_counts(way: Way, tried: type[Tried], make: Make) -> None:
    store = make(way)
    Run(store, tried).bring(BATCHES)
    assert settled(store).state.positions == LAST


@pytest.mark.parametrize("way", ways(lambda way: str(way) == "postgres-partition"))
def test_an_attempt_that_hangs_is_not_waited_for_without_an_end(way: Way, make: Make) -> None:
    """It holds the positions. The other one is given up, says who has them, and asks the ledger."""
    store = make(way, lock_wait=1.0)
    hanging = Run(store, Hanging)
    said = r"held a lock for 1 s: pid \d+ \(role .*'tallygate-[0-9a-f]{12}-1', idle in transaction"
    with pytest.raises(UnreachableError, match=said):
        write(hanging, BATCHES[0], BATCHES[0].ranges)
    hanging.given = BlockInput
    hanging.bring(BATCHES)
    assert settled(store).state.positions == LAST


@pytest.mark.parametrize("way", ways(lambda way: way.commits_by_task))
def test_without_the_comparison_each_attempt_counts(
    way: Way, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_comparison(way.kind, monkeypatch)
    store = make(way)
    run = Run(store, Lost)
    write(run, BATCHES[0], BATCHES[0].ranges)
    assert store.seen().repeated


@pytest.mark.parametrize("way", ways(lambda way: way.tasks and not way.commits_by_task))
def test_if_the_driver_heard_of_each_attempt_each_would_count(way: Way, make: Make) -> None:
    store = make(way)
    Run(store, Both).bring(BATCHES)
    assert store.keyed or store.seen().repeated
