"""Writing a batch to a folder: files beside it, then one rename.

  driver   the batch is small by its ranges: the driver puts all rows into one file.
  tasks    each task puts its rows into a file.

The commit is the same for both: one directory gathers the files, the dead letters and the ledger's
entry, and then appears (see `folder`).

A file has a name of one attempt alone, of which the driver hears only if the attempt succeeds. What
a failed or a second attempt wrote is never moved into a commit.
"""

import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tallygate.core.blocks import Blocks
from tallygate.core.ledger import Claim, LedgerEntry
from tallygate.core.offsets import count, is_topic
from tallygate.errors import TargetError
from tallygate.failpoints import reach
from tallygate.targets.base import BatchInput, TaskReport, WriteBatch, Written
from tallygate.targets.parquet.folder import sync
from tallygate.targets.parquet.ledger import FolderLedger
from tallygate.targets.parquet.letters import FoundLetters, write_letters
from tallygate.targets.parquet.rows import RowFile, disk_errors
from tallygate.targets.task_report import perform, raise_problems, slowest


@dataclass(frozen=True, kw_only=True)
class FolderWriter:
    """Writes the batches of one run."""

    ledger: FolderLedger
    claim: Claim
    letters: FoundLetters
    columns: pa.Schema
    driver_rows: int

    def write(self, batch: WriteBatch) -> Written:
        try:
            return self._write(batch)
        except Exception:
            # A newer run removes what this one had begun; then files are missing, and that is why.
            self.ledger.current(self.claim)
            raise

    def _write(self, batch: WriteBatch) -> Written:
        before = self.ledger.current(self.claim)
        before.state.moved(batch.left)  # what cannot be committed need not be computed
        with disk_errors(self.ledger.staging(self.claim)):
            commit = self.ledger.fresh(self.claim)
            files = commit.with_name(f"{commit.name}-files")
            files.mkdir()
        task = _RowTask(str(files), self.columns, batch.id)
        if self._is_small(batch):
            strategy, (reports, seconds) = "driver", _by_driver(task, batch.input)
        else:
            strategy, reports = "tasks", batch.input.run(task)
            seconds = slowest(reports)
        reach("rows-staged", batch.id)
        started = time.perf_counter()
        with disk_errors(self.ledger.folder.path):
            rows = self._commit(before, commit, _filled(files, reports), batch)
        return Written(strategy, rows, {**seconds, "commit": time.perf_counter() - started})

    def _is_small(self, batch: WriteBatch) -> bool:
        """Elsewhere than in topics one position may stand for a whole file."""
        counted = all(is_topic(each.topic) for each in batch.left)
        return counted and count(batch.left) <= self.driver_rows

    def _commit(
        self, before: LedgerEntry, commit: Path, files: Mapping[Path, int], batch: WriteBatch
    ) -> int:
        for index, (file, rows) in enumerate(files.items()):
            part = commit / f"part-{before.number + 1:012d}-{index:05d}.parquet"
            _move(file, part, rows)
        taken = self.letters.take()
        letters = write_letters(commit, taken.within(batch.left))
        rows = sum(files.values())
        self.ledger.commit(
            self.claim,
            before,
            commit,
            state=before.state.moved(batch.left, batch.epochs),
            batch=batch.id,
            ranges=batch.left,
            rows=rows,
            letters=before.letters + letters,
        )
        taken.forget()
        return rows


@dataclass(frozen=True)
class _RowTask:
    """Writes rows to a file, if there are any. It travels to the workers."""

    folder: str
    columns: pa.Schema
    batch: int

    def __call__(self, blocks: Blocks, report: TaskReport) -> None:
        report.attempt = uuid.uuid4().hex
        file = RowFile(Path(self.folder) / report.attempt, self.columns)
        for block in blocks:
            first = not file.rows
            file.add(self._folder_columns(block.rows))
            if first:
                reach("rows-begun", self.batch)
        file.close()
        report.rows = file.rows
        if file.rows:
            reach("rows-written", self.batch)

    def _folder_columns(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with the folder's columns alone, in the folder's types."""
        columns = [rows.column(each.name) for each in self.columns]
        arrays = [
            column if column.type == each.type else column.cast(each.type)
            for each, column in zip(self.columns, columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.columns)


def _by_driver(task: _RowTask, given: BatchInput) -> tuple[list[TaskReport], dict[str, float]]:
    started = time.perf_counter()
    blocks = given.blocks()
    waited = time.perf_counter() - started
    reports = [perform(task, blocks)]
    raise_problems(reports)
    seconds = slowest(reports)
    return reports, {**seconds, "read": seconds["read"] + waited}


def _filled(files: Path, reports: Iterable[TaskReport]) -> dict[Path, int]:
    """The files of attempts that reported, and how many rows each must hold."""
    return {files / report.attempt: report.rows for report in reports if report.rows}


def _move(file: Path, part: Path, rows: int) -> None:
    """Move a file into the commit. What a task wrote must be what the driver sees."""
    try:
        found = pq.read_metadata(file).num_rows
    except FileNotFoundError:
        found = 0
    if found != rows:
        raise TargetError(
            f"a task wrote {rows} rows to {file}, and the driver finds {found} there; the folder "
            "must be on a file system that all executors share with the driver."
        )
    file.rename(part)
    sync(part)
