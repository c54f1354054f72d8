"""What tasks leave behind, and what of it becomes a commit. Spark is left out: blocks are given."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fixtures.readers import files_of, rows_of
from tallygate.core.letters import Letter
from tallygate.core.offsets import Range
from tallygate.errors import FencedError, TargetError
from tallygate.targets.parquet.columns import described
from tallygate.targets.parquet.folder import Folder
from tallygate.targets.parquet.ledger import FolderLedger
from tallygate.targets.parquet.letters import FoundLetters, read_letters
from tallygate.targets.parquet.sink import ParquetSink
from tallygate.targets.sink import Batch, Retry
from tallygate.targets.task_report import Report

COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("_topic", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
    ]
)
Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def _block(offsets: range, partition: int = 0) -> pa.RecordBatch:
    size = len(offsets)
    ids = [partition * 1000 + offset for offset in offsets]
    rows = {"id": ids, "_topic": ["t"] * size, "_partition": [partition] * size}
    return pa.RecordBatch.from_pydict({**rows, "_offset": list(offsets)}, schema=COLUMNS)


def _report(task: Task, block: pa.RecordBatch) -> Report:
    (answer,) = task([block])
    return Report(**answer.to_pylist()[0])


def _sink(path: Path) -> ParquetSink:
    folder = Folder.at(str(path))
    folder.prepare()
    ledger = FolderLedger(folder, "payments")
    ledger.begin(described(COLUMNS))
    letters = FoundLetters(str(ledger.staging / "letters"))
    return ParquetSink(ledger, letters, COLUMNS, True, False, 0)


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Task], list[Report]]], Any]:
    """Say what happens where Spark would run the tasks; the answer stands for the frame."""

    def run(work: Callable[[Task], list[Report]]) -> Any:
        def answers(_: Any, task: Task) -> list[Report]:
            reports = work(task)
            for report in reports:
                if report.problem == "retry":
                    raise Retry(report.message)
            return reports

        monkeypatch.setattr("tallygate.targets.parquet.sink.run_tasks", answers)
        return None

    return run


def test_only_the_attempt_that_reported_is_committed(tmp_path: Path, tasks: Any) -> None:
    def twice(task: Task) -> list[Report]:
        _report(task, _block(range(10)))
        return [_report(task, _block(range(10))), _report(task, _block(range(10), partition=1))]

    sink = _sink(tmp_path / "rows")
    batch = Batch(0, (Range("t", 0, 0, 10), Range("t", 1, 0, 10)))
    assert sink.write(tasks(twice), batch).rows == 20
    assert len(files_of(tmp_path / "rows")) == 2
    assert rows_of(tmp_path / "rows", "id") == [*range(10), *range(1000, 1010)]
    assert sink.write(tasks(twice), batch).way == "skipped"


def test_rows_that_are_there_are_trimmed(tmp_path: Path, tasks: Any) -> None:
    sink = _sink(tmp_path / "rows")
    sink.write(
        tasks(lambda task: [_report(task, _block(range(10)))]), Batch(0, (Range("t", 0, 0, 10),))
    )
    whole = tasks(lambda task: [_report(task, _block(range(5, 25)))])
    assert sink.write(whole, Batch(1, (Range("t", 0, 5, 25),))).rows == 15
    assert rows_of(tmp_path / "rows", "_offset") == list(range(25))


def test_letters_go_with_the_batch_that_they_lie_in(tmp_path: Path, tasks: Any) -> None:
    sink = _sink(tmp_path / "rows")

    def decode(task: Task) -> list[Report]:
        for _ in range(2):
            sink.letters.keep([Letter("t", 0, offset, "no JSON") for offset in (3, 12)])
        return [_report(task, _block(range(3)))]

    sink.write(tasks(decode), Batch(0, (Range("t", 0, 0, 10),)))
    newest = sink.ledger.current()
    assert newest.letters == 1
    assert [each.offset for each in read_letters(sink.ledger.folder.commit(newest.number))] == [3]


def test_a_file_that_the_driver_does_not_see_is_no_commit(tmp_path: Path, tasks: Any) -> None:
    def elsewhere(task: Task) -> list[Report]:
        return [Report(attempt="on-another-machine", rows=10)]

    sink = _sink(tmp_path / "rows")
    with pytest.raises(TargetError, match="that all executors share with the driver"):
        sink.write(tasks(elsewhere), Batch(0, (Range("t", 0, 0, 10),)))
    assert sink.ledger.current().number == 1


def test_a_full_disk_is_tried_again_and_a_newer_run_is_named(
    tmp_path: Path, tasks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = _sink(tmp_path / "rows")
    batch = Batch(0, (Range("t", 0, 0, 10),))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    def write(task: Task) -> list[Report]:
        return [_report(task, _block(range(10)))]

    with monkeypatch.context() as patched:
        patched.setattr("tallygate.targets.parquet.rows.pq.ParquetWriter", full)
        with pytest.raises(Retry, match="No space left"):
            sink.write(tasks(write), batch)

    def overtaken(task: Task) -> list[Report]:
        _sink(tmp_path / "rows")
        return write(task)

    with pytest.raises(FencedError, match="run 2 took over"):
        sink.write(tasks(overtaken), batch)
    assert rows_of(tmp_path / "rows", "id") == []
