"""Where the rows of a batch come from: Spark's frame, or Kafka itself.

A pipeline whose transform needs no JVM has no use for Spark's own reader: each record would be read
by the JVM, turned into Arrow and handed to Python, at twice the cost of all the rest. So whoever
writes reads as well (see `kafka.fetching`), over the very ranges that Spark has planned and logged.

A task then holds some partitions, each of them whole: the ranges are shared out evenly over as many
tasks as can run side by side, so that many small partitions cost no more than a few large ones.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tallygate.core.offsets import Place, Range, count
from tallygate.errors import LedgerError
from tallygate.kafka.connection import Connection
from tallygate.kafka.fetch import fetch
from tallygate.targets.task_report import Report, run_tasks, steps_heard

__all__ = ["FetchedRows", "FrameRows", "Rows", "Task", "shared_out"]

Task = Callable[[Iterable[pa.RecordBatch], Iterable[Place]], Iterator[pa.RecordBatch]]
"""Takes blocks of rows and, if they are known beforehand, the places that these are all of; gives
one block, its report."""


class Rows(Protocol):
    @property
    def exact(self) -> bool:
        """Whether these are the rows of what is left alone, and tasks know their places before
        they read. If not, rows have to be trimmed, and tell where they are from."""

    def keeps_whole(self, places: int) -> bool:
        """Whether each of so many places that hold anything is in one task alone, given that
        every row still belongs to one record."""

    def collected(self) -> list[pa.RecordBatch]:
        """All of them, on the driver."""

    def run(self, task: Task) -> list[Report]:
        """Hand them to tasks, and hear what those say."""


@dataclass(frozen=True)
class FrameRows:
    """Rows that Spark computes."""

    frame: DataFrame
    exact = False

    def keeps_whole(self, places: int) -> bool:
        """One Spark partition for each place, and no second one of the same."""
        return bool(self.frame._jdf.queryExecution().toRdd().getNumPartitions() == places)

    def collected(self) -> list[pa.RecordBatch]:
        with steps_heard():
            return list(self.frame.toArrow().to_batches())

    def run(self, task: Task) -> list[Report]:
        return run_tasks(self.frame, lambda blocks: task(blocks, ()))


@dataclass(frozen=True)
class FetchedRows:
    """Raw records, read where they are written."""

    spark: SparkSession
    connection: Connection
    ranges: tuple[Range, ...]
    apart: bool = False
    """Whether each partition needs a task of its own."""
    headers: bool = False
    exact = True

    def keeps_whole(self, places: int) -> bool:
        return True

    def collected(self) -> list[pa.RecordBatch]:
        return list(fetch(self.ranges, self.connection, headers=self.headers))

    def run(self, task: Task) -> list[Report]:
        filled = [each for each in self.ranges if len(each)]
        if not filled:
            return []
        if self.apart:
            shares = [[each] for each in filled]
        else:
            shares = shared_out(filled, self.spark.sparkContext.defaultParallelism)
        connection, headers = self.connection.travelling(), self.headers

        def read_and_write(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for block in numbers:
                for number in block.column("id").to_pylist():
                    share = shares[number]
                    blocks = fetch(share, connection, headers=headers)
                    yield from task(blocks, [each.place for each in share])

        numbers = self.spark.range(0, len(shares), 1, len(shares)).toDF("id")
        reports = run_tasks(numbers, read_and_write)
        if len(reports) != len(shares):  # who has not reported has read nothing
            raise LedgerError(f"{len(shares)} tasks were to report, and {len(reports)} did.")
        return reports


def shared_out(ranges: Iterable[Range], shares: int) -> list[list[Range]]:
    """The ranges in at most so many shares of about the same size, none of them empty."""
    made: list[list[Range]] = [[] for _ in range(shares)]
    for each in sorted(ranges, key=len, reverse=True):
        min(made, key=count).append(each)
    return [share for share in made if share]
