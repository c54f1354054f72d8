"""Where the rows of a batch come from: Spark's frame, Kafka itself, or blocks that are there.

A pipeline whose transform needs no JVM has no use for Spark's own reader: each record would be read
by the JVM, turned into Arrow and handed to Python, at twice the cost of all the rest. So the tasks
that write read as well (see `kafka.fetch`), over the very ranges that Spark has planned and logged.

A task then holds some partitions, each of them whole: the ranges are shared out evenly over as many
tasks as can run side by side, so that many small partitions cost no more than a few large ones.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from tallygate.core.blocks import BlockPlan, Blocks
from tallygate.core.decoding import COORDINATES
from tallygate.core.offsets import Range, count
from tallygate.errors import LedgerError
from tallygate.kafka.connection import Connection
from tallygate.kafka.fetch import fetch
from tallygate.spark.plan import partition_count
from tallygate.targets.base import Task, TaskReport
from tallygate.targets.task_report import perform, raise_problems, raise_step_errors, run_tasks


@dataclass(frozen=True)
class FrameInput:
    """Rows, or raw records, that Spark computes."""

    given: DataFrame
    plan: BlockPlan
    partitions: int
    """How many partitions of Kafka hold any of the batch."""
    prepared: Callable[[DataFrame], DataFrame] = lambda frame: frame
    """Puts the rows into the form in which the target takes blocks of them."""

    def blocks(self) -> Blocks:
        with raise_step_errors():
            table = self.prepared(self.given).toArrow()
        return Blocks(self.plan, iter(table.to_batches()))

    def run(self, task: Task, *, one_partition: bool = False) -> list[TaskReport]:
        plan = replace(self.plan, one_partition=one_partition)

        def run(given: Iterable[pa.RecordBatch]) -> Iterator[TaskReport]:
            yield perform(task, Blocks(plan, iter(given)))

        return run_tasks(self.prepared(self.given), run)

    def run_in_lanes(self, task: Task, lanes: int, by: str) -> list[TaskReport]:
        plan = self.plan

        def run(given: Iterable[pa.RecordBatch]) -> Iterator[TaskReport]:
            context = TaskContext.get()
            assert context is not None
            yield perform(task, Blocks(plan, iter(given), lane=context.partitionId()))

        rows = self.prepared(self.given).repartition(lanes, f.col(by)).drop(by)
        return run_tasks(rows, run)

    def keeps_partitions_whole(self) -> bool:
        """One Spark partition for each of Kafka's, and no second one of the same."""
        return partition_count(self.given) == self.partitions

    def frame(self) -> DataFrame:
        return self.given.where(within(self.plan.left)) if self.plan.trim else self.given


@dataclass(frozen=True, kw_only=True)
class FetchedInput:
    """Raw records, read where they are written: those of what is left, and no others."""

    spark: SparkSession
    connection: Connection
    plan: BlockPlan
    headers: bool = False
    partition_a_task: bool = False
    ids: Mapping[str, str] = field(default_factory=dict)
    """What the topics were when the batch was planned, so that none is read that took the place of
    another: a task that finds out fails before it commits."""

    def blocks(self) -> Blocks:
        given = fetch(self.plan.left, self.connection, headers=self.headers, ids=self.ids)
        return Blocks(self.plan, given)

    def run(self, task: Task, *, one_partition: bool = False) -> list[TaskReport]:
        filled = [each for each in self.plan.left if len(each)]
        if not filled:
            return []
        tasks = self.spark.sparkContext.defaultParallelism
        shares = [[each] for each in filled] if self.partition_a_task else shared_out(filled, tasks)
        connection, plan, headers = self.connection.travelling(), self.plan, self.headers
        ids = self.ids

        def run(numbers: Iterable[pa.RecordBatch]) -> Iterator[TaskReport]:
            for block in numbers:
                for number in block.column("id").to_pylist():
                    given = fetch(shares[number], connection, headers=headers, ids=ids)
                    held = {each.topic_partition for each in shares[number]}
                    yield perform(task, Blocks(plan, given, held))

        numbers = self.spark.range(0, len(shares), 1, len(shares)).toDF("id")
        reports = run_tasks(numbers, run)
        if len(reports) != len(shares):  # a task that has not reported has read nothing
            raise LedgerError(f"{len(shares)} tasks were to report, and {len(reports)} did.")
        return reports

    def run_in_lanes(self, task: Task, lanes: int, by: str) -> list[TaskReport]:
        raise NotImplementedError("raw records are shared out by partition, not by what they hold")

    def keeps_partitions_whole(self) -> bool:
        return True

    def frame(self) -> DataFrame:
        raise NotImplementedError("raw records are read by the tasks, and are in no frame")


@dataclass(frozen=True)
class BlockInput:
    """Blocks that are there already: each list of them is a task's. No Spark is needed."""

    plan: BlockPlan
    tasks: Sequence[Sequence[pa.RecordBatch]]

    def blocks(self) -> Blocks:
        return Blocks(self.plan, iter([block for blocks in self.tasks for block in blocks]))

    def run(self, task: Task, *, one_partition: bool = False) -> list[TaskReport]:
        plan = replace(self.plan, one_partition=one_partition)
        reports = [perform(task, Blocks(plan, iter(blocks))) for blocks in self.tasks]
        raise_problems(reports)
        return reports

    def run_in_lanes(self, task: Task, lanes: int, by: str) -> list[TaskReport]:
        """The blocks of a task are those of the lane of its number."""
        given = [*self.tasks, *([()] * (lanes - len(self.tasks)))]
        reports = [
            perform(task, Blocks(self.plan, iter(blocks), lane=lane))
            for lane, blocks in enumerate(given)
        ]
        raise_problems(reports)
        return reports

    def keeps_partitions_whole(self) -> bool:
        return True

    def frame(self) -> DataFrame:
        spark = SparkSession.active()
        blocks = [block for blocks in self.tasks for block in blocks]
        rows = spark.createDataFrame(pa.Table.from_batches(blocks))
        return rows.where(within(self.plan.left)) if self.plan.trim else rows


def shared_out(ranges: Iterable[Range], shares: int) -> list[list[Range]]:
    """The ranges in at most so many shares of about the same size, none of them empty."""
    made: list[list[Range]] = [[] for _ in range(shares)]
    for each in sorted(ranges, key=len, reverse=True):
        min(made, key=count).append(each)
    return [share for share in made if share]


def within(ranges: Iterable[Range]) -> Column:
    """Whether a row's record lies in one of the ranges, by its coordinates."""
    topic, partition, offset = (f.col(name) for name in COORDINATES)
    found = f.lit(False)
    for each in ranges:
        here = (topic == each.topic) & (partition == each.partition)
        found = found | (here & (offset >= each.start) & (offset < each.until))
    return found
