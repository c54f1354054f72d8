"""What tasks leave behind, and what of it becomes a commit. Spark is left out: blocks are given."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from fixtures.readers import files_of, rows_of
from tallygate.core.blocks import BlockPlan, Blocks
from tallygate.core.ledger import Claim, LedgerEntry, LedgerState, Lose, Remember
from tallygate.core.letters import Letter
from tallygate.core.offsets import MovedError, Range
from tallygate.errors import FencedError, LedgerError, TargetError, UnreachableError
from tallygate.settings import Settings
from tallygate.spec import Parquet
from tallygate.targets.base import BatchInput, RowShape, Task, TaskReport, WriteBatch, Written
from tallygate.targets.batch_input import BlockInput
from tallygate.targets.parquet.folder import Folder
from tallygate.targets.parquet.letters import read_letters
from tallygate.targets.parquet.target import ParquetTarget
from tallygate.targets.task_report import perform

COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("_topic", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
    ]
)
SHAPE = RowShape(
    schema=t.StructType(
        [
            t.StructField("id", t.LongType()),
            t.StructField("_topic", t.StringType()),
            t.StructField("_partition", t.IntegerType()),
            t.StructField("_offset", t.LongType()),
        ]
    ),
    has_coordinates=True,
    narrow=True,
    stateful=False,
)
TEN = (Range("t", 0, 0, 10),)


def _block(offsets: range, partition: int = 0) -> pa.RecordBatch:
    size = len(offsets)
    ids = [partition * 1000 + offset for offset in offsets]
    rows = {"id": ids, "_topic": ["t"] * size, "_partition": [partition] * size}
    return pa.RecordBatch.from_pydict({**rows, "_offset": list(offsets)}, schema=COLUMNS)


def _given(left: tuple[Range, ...], *blocks: pa.RecordBatch) -> BlockInput:
    """Each block is a task's."""
    plan = BlockPlan(left=left, has_coordinates=True, trim=True)
    return BlockInput(plan, [[block] for block in blocks])


@dataclass(frozen=True)
class _Meanwhile(BlockInput):
    """Something happens before the tasks run."""

    act: Callable[[Task], Any] = lambda _: None

    def run(self, task: Task, *, one_partition: bool = False) -> list[TaskReport]:
        self.act(task)
        return super().run(task, one_partition=one_partition)


def _meanwhile(given: BlockInput, act: Callable[[Task], Any]) -> _Meanwhile:
    return _Meanwhile(given.plan, given.tasks, act)


class _Run:
    """A run of the pipeline `payments` into a folder."""

    def __init__(self, path: Path, settings: Settings, *, driver_rows: int = 0) -> None:
        spec = Parquet(str(path), driver_rows=driver_rows)
        self.target = ParquetTarget(spec, pipeline="payments", settings=settings)
        self.target.open(SHAPE)
        self.claim: Claim = self.target.take_over(SHAPE, "")

    def write(self, left: tuple[Range, ...], given: BatchInput) -> Written:
        return self.target.write(self.claim, WriteBatch(id=0, left=left, input=given))

    @property
    def state(self) -> LedgerState:
        found = self.target.ledger()
        assert found is not None
        return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows"


def _newest(path: Path) -> LedgerEntry:
    found = Folder(path).newest()
    assert found is not None
    return found


def test_only_the_attempt_that_reported_is_committed(path: Path, settings: Settings) -> None:
    run, left = _Run(path, settings), (*TEN, Range("t", 1, 0, 10))
    given = _given(left, _block(range(10)), _block(range(10), partition=1))

    def fail(task: Task) -> None:
        perform(task, Blocks(given.plan, iter([_block(range(10))])))

    done = run.write(left, _meanwhile(given, fail))
    assert (done.strategy, done.rows) == ("tasks", 20)
    assert len(files_of(path)) == 2
    assert rows_of(path, "id") == [*range(10), *range(1000, 1010)]
    assert run.state.positions == {("t", 0): 10, ("t", 1): 10}


def test_the_driver_puts_a_small_batch_into_one_file(path: Path, settings: Settings) -> None:
    run = _Run(path, settings, driver_rows=10)
    given = _given(TEN, _block(range(4)), _block(range(4, 10)))
    assert run.write(TEN, given).strategy == "driver"
    assert len(files_of(path)) == 1
    left = (Range("t", 0, 10, 21),)
    assert run.write(left, _given(left, _block(range(10, 21)))).strategy == "tasks"
    assert rows_of(path, "id") == list(range(21))


def test_rows_that_are_there_are_trimmed(path: Path, settings: Settings) -> None:
    run = _Run(path, settings)
    run.write(TEN, _given(TEN, _block(range(10))))
    left = (Range("t", 0, 10, 25),)
    assert run.write(left, _given(left, _block(range(5, 25)))).rows == 15
    assert rows_of(path, "_offset") == list(range(25))


def test_a_batch_that_was_planned_before_another_commit_is_not_written(
    path: Path, settings: Settings
) -> None:
    run = _Run(path, settings)
    run.write(TEN, _given(TEN, _block(range(10))))
    with pytest.raises(MovedError, match="the ledger is at 10"):
        run.write(TEN, _given(TEN, _block(range(10))))
    assert rows_of(path, "_offset") == list(range(10))


def test_letters_go_with_the_batch_that_they_lie_in(path: Path, settings: Settings) -> None:
    run = _Run(path, settings)
    keeper = run.target.letter_keeper(run.claim)

    def decode(task: Task) -> None:
        for _ in range(2):
            keeper.keep([Letter("t", 0, offset, "no JSON") for offset in (3, 12)])

    run.write(TEN, _meanwhile(_given(TEN, _block(range(3))), decode))
    newest = _newest(path)
    assert run.target.letter_count() == newest.letters == 1
    assert [each.offset for each in read_letters(Folder(path).commit(newest.number))] == [3]


@pytest.mark.parametrize("driver_rows", [0, 100])
def test_letters_that_the_driver_does_not_see_are_no_commit(
    path: Path, settings: Settings, driver_rows: int
) -> None:
    """And once they are there, the batch is committed."""
    run = _Run(path, settings, driver_rows=driver_rows)
    keeper = run.target.letter_keeper(run.claim)
    keeper.keep([Letter("t", 0, 3, "no JSON")])
    (file,) = run.target._found_letters(run.claim).take().files
    file.rename(file.with_suffix(".away"))
    with pytest.raises(TargetError, match="left dead letters in .*, and the driver does not find"):
        run.write(TEN, _given(TEN, _block(range(3))))
    assert rows_of(path, "_offset") == []
    file.with_suffix(".away").rename(file)
    run.write(TEN, _given(TEN, _block(range(3))))
    assert run.target.letter_count() == 1
    run.write((Range("t", 0, 10, 12),), _given((Range("t", 0, 10, 12),), _block(range(10, 12))))


def test_a_file_that_the_driver_does_not_see_is_no_commit(path: Path, settings: Settings) -> None:
    class Elsewhere(BlockInput):
        def run(self, task: Task, *, one_partition: bool = False) -> list[TaskReport]:
            return [TaskReport(attempt="on-another-machine", rows=10)]

    run = _Run(path, settings)
    with pytest.raises(TargetError, match="that all executors share with the driver"):
        run.write(TEN, Elsewhere(_given(TEN).plan, []))
    assert _newest(path).number == 1


def test_a_full_disk_is_tried_again_and_a_newer_run_is_named(
    path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, given = _Run(path, settings), _given(TEN, _block(range(10)))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("tallygate.targets.parquet.rows.pq.ParquetWriter", full)
        with pytest.raises(UnreachableError, match="No space left"):
            run.write(TEN, given)
    with pytest.raises(FencedError, match="run 2 took over"):
        run.write(TEN, _meanwhile(given, lambda _: _Run(path, settings)))
    assert rows_of(path, "id") == []


def test_changes_without_rows_are_commits_too(path: Path, settings: Settings) -> None:
    run = _Run(path, settings)
    run.write(TEN, _given(TEN, _block(range(10))))
    run.target.amend(run.claim, Remember("c", {"t": "x"}))
    run.target.amend(run.claim, Lose((Range("t", 0, 10, 15),), "retention"))
    with pytest.raises(MovedError):
        run.target.amend(run.claim, Lose((Range("t", 0, 10, 15),), "retention"))
    assert (run.state.checkpoint_id, run.state.topic_ids) == ("c", {"t": "x"})
    assert [(each.range, each.reason) for each in run.state.lost] == [
        (Range("t", 0, 10, 15), "retention")
    ]
    assert run.state.positions == {("t", 0): 15}
    assert _newest(path).ranges == (Range("t", 0, 10, 15),)
    newer = _Run(path, settings)
    assert newer.state.positions == {("t", 0): 15}
    with pytest.raises(FencedError):
        run.target.amend(run.claim, Remember("d", {}))


def test_a_heartbeat_finds_a_newer_run(path: Path, settings: Settings) -> None:
    older = _Run(path, settings)
    assert not older.target.beat(older.claim, {})
    newer = _Run(path, settings)
    with pytest.raises(FencedError, match="run 2 took over"):
        older.target.beat(older.claim, {})
    newer.target.end(newer.claim, "finished")
    assert newer.target.local_run.read()["outcome"] == "finished"


def test_a_ledger_that_is_removed_in_mid_run_stays_an_error(path: Path, settings: Settings) -> None:
    run = _Run(path, settings)
    for file in Folder(path).commit(1).iterdir():
        file.unlink()
    Folder(path).commit(1).rmdir()
    for _ in range(2):
        with pytest.raises(LedgerError, match="was removed from"):
            run.target.ledger()
    with pytest.raises(LedgerError, match="was removed from"):
        run.write(TEN, _given(TEN, _block(range(10))))
