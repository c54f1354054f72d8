"""What writes rows to files: in a task of Spark's, or on the driver for a small batch.

A task's file has a name of this attempt alone, of which the driver hears only if the attempt
succeeds. What a failed or a second attempt wrote is never moved into a commit.
"""

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tallygate.core.decoding import COORDINATES
from tallygate.core.offsets import Place, Range
from tallygate.errors import TargetError
from tallygate.failpoints import reach
from tallygate.targets.parquet.rows import RowFile
from tallygate.targets.sink import Retry
from tallygate.targets.task_report import Report, trimmed

__all__ = ["RowWriter"]


@dataclass(frozen=True)
class RowWriter:
    """Everything that a task needs to know; it is pickled and sent to the workers."""

    folder: str
    columns: pa.Schema
    batch: int
    ranges: Mapping[Place, Range]
    """What is left to do, by place."""
    trim: bool

    def write(self, source: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """A task: its rows in one file, if it has any."""
        report = Report(attempt=uuid.uuid4().hex)
        try:
            self.save(source, report)
        except Retry as error:
            report.problem, report.message = "retry", str(error)
        except TargetError as error:
            report.problem, report.message = "target", str(error)
        yield report.block()

    def save(self, source: Iterable[pa.RecordBatch], report: Report) -> None:
        started = time.perf_counter()
        file = RowFile(Path(self.folder) / report.attempt, self.columns)
        for block in source:
            left = trimmed(block, self.ranges, COORDINATES) if self.trim else block
            if left.num_rows:
                began = time.perf_counter()
                file.add(self._sent(left))
                report.write += time.perf_counter() - began
                if file.rows == left.num_rows:
                    reach("rows-begun", self.batch)
        began = time.perf_counter()
        file.close()
        report.write += time.perf_counter() - began
        report.rows = file.rows
        report.read = time.perf_counter() - started - report.write
        if file.rows:
            reach("rows-written", self.batch)

    def _sent(self, block: pa.RecordBatch) -> pa.RecordBatch:
        """The block with the folder's columns alone, in the folder's types."""
        columns = [block.column(each.name) for each in self.columns]
        arrays = [
            column if column.type == each.type else column.cast(each.type)
            for each, column in zip(self.columns, columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.columns)
