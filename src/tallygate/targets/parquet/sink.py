"""Writing a batch to a folder: files beside it, then one rename.

  driver   the ranges say that the batch is small: its rows are collected into one file.
  tasks    each Spark partition becomes a file.

The commit is the same for both: the files, the dead letters and the ledger's entry are gathered in
one directory, which then appears (see `folder`).
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from tallygate.core.offsets import MovedError, Range, count, is_topic, remaining
from tallygate.errors import TargetError
from tallygate.failpoints import reach
from tallygate.targets.parquet.entry import Entry
from tallygate.targets.parquet.folder import sync
from tallygate.targets.parquet.ledger import FolderLedger
from tallygate.targets.parquet.letters import FoundLetters, write_letters
from tallygate.targets.parquet.rows import disk_errors
from tallygate.targets.parquet.writer import RowWriter
from tallygate.targets.sink import Batch, Retry, Written
from tallygate.targets.task_report import Report, run_tasks, skipped, slowest

__all__ = ["ParquetSink"]


@dataclass
class ParquetSink:
    ledger: FolderLedger
    letters: FoundLetters
    columns: pa.Schema
    divisible: bool
    """Whether rows carry the coordinates of their records."""
    stateful: bool
    driver_rows: int

    def write(self, frame: DataFrame, batch: Batch) -> Written:
        try:
            return self._write(frame, batch)
        except MovedError as error:
            raise Retry(str(error)) from error
        except Exception:
            # A newer run removes what this one had begun; then files are missing, and that is why.
            self.ledger.current()
            raise

    def _write(self, frame: DataFrame, batch: Batch) -> Written:
        before = self.ledger.current()
        left = remaining(batch.ranges, before.positions, divisible=self.divisible)
        reach("batch-planned", batch.id)
        if not left:
            return skipped(frame, stateful=self.stateful)
        with disk_errors(self.ledger.staging):
            commit = self.ledger.fresh()
            files = commit.with_name(f"{commit.name}-files")
            files.mkdir()
        ranges = {each.place: each for each in left}
        trim = batch.is_in_part(left)
        writer = RowWriter(str(files), self.columns, batch.id, ranges, trim)
        counted = all(is_topic(each.topic) for each in left)  # elsewhere one may be a whole file
        if counted and count(left) <= self.driver_rows:
            way, reports, seconds = "driver", *self._by_driver(frame, writer)
        else:
            way, reports, seconds = "tasks", *self._by_tasks(frame, writer)
        reach("rows-staged", batch.id)
        started = time.perf_counter()
        with disk_errors(self.ledger.folder.path):
            rows = self._commit(before, commit, files, batch.id, left, reports)
        return Written(way, rows, {**seconds, "commit": time.perf_counter() - started})

    def _by_driver(
        self, frame: DataFrame, writer: RowWriter
    ) -> tuple[list[Report], Mapping[str, float]]:
        started = time.perf_counter()
        table = frame.toArrow()
        read = time.perf_counter() - started
        report = Report(attempt="driver")
        writer.save(table.to_batches(), report)
        return [report], {"read": read, "write": report.read + report.write}

    @staticmethod
    def _by_tasks(frame: DataFrame, writer: RowWriter) -> tuple[list[Report], Mapping[str, float]]:
        reports = run_tasks(frame, writer.write)
        refused = [str(report.message) for report in reports if report.problem == "target"]
        if refused:
            raise TargetError(refused[0])
        times = slowest(reports)
        return reports, {"read": times["read"], "write": times["write"]}

    def _commit(
        self,
        before: Entry,
        commit: Path,
        files: Path,
        batch: int,
        left: tuple[Range, ...],
        reports: list[Report],
    ) -> int:
        """Only files of attempts that reported are moved into the commit."""
        filled = [report for report in reports if report.rows]
        for index, report in enumerate(filled):
            part = commit / f"part-{before.number + 1:012d}-{index:05d}.parquet"
            _moved(files / report.attempt, part, report.rows)
        taken = self.letters.take()
        letters = write_letters(commit, taken.within(left))
        rows = sum(report.rows for report in filled)
        self.ledger.commit(
            before,
            commit,
            batch=batch,
            ranges=left,
            rows=rows,
            letters=before.letters + letters,
            **before.moved(left),
        )
        taken.forget()
        return rows


def _moved(file: Path, part: Path, rows: int) -> None:
    """What a task wrote must be what the driver sees."""
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
