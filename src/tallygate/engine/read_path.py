"""Who reads the records of a batch: decided here alone.

TASKS     the tasks that write read as well: without a transform a record needs no JVM on its way
RANGES    the decoding step reads the ranges of its task: with a transform the JVM has work to do,
          but not the reading. For larger batches, where the rows show no difference
SPARK     Spark's own reader: small batches of a transform, state, anything that is not known, and
          sources that were given options for Spark's reader or Kafka's Java client alone
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import pyarrow.compute as pc
from pyspark.sql import DataFrame

from tallygate.core.blocks import RAW_COORDINATES, BlockPlan
from tallygate.core.letters import Coordinates
from tallygate.core.offsets import Range, count
from tallygate.engine.run_request import RunRequest
from tallygate.errors import InputError
from tallygate.kafka.connection import Connection
from tallygate.kafka.fetch import fetch
from tallygate.spark.direct_read import by_records_alone, over_ranges
from tallygate.spark.plan import Plan
from tallygate.targets.base import BatchInput, RowShape
from tallygate.targets.batch_input import FetchedInput, FrameInput


class ReadPath(Enum):
    TASKS = "tasks"
    RANGES = "ranges"
    SPARK = "spark"


def read_path(
    *, fetches: bool, raw: bool, records_alone: bool, records: int, small: int
) -> ReadPath:
    """`fetches` says that reading without Spark's source is the same; `raw` that the target decodes
    the records itself; `records_alone` that rows are made of records and of nothing else."""
    if fetches and raw:
        return ReadPath.TASKS
    if fetches and records_alone and records > small:
        return ReadPath.RANGES
    return ReadPath.SPARK


@dataclass(frozen=True, kw_only=True)
class BatchReader:
    """Makes the input of each batch of one query."""

    request: RunRequest
    shape: RowShape
    plan: Plan
    records_alone: bool

    @classmethod
    def of(cls, request: RunRequest, shape: RowShape, plan: Plan) -> "BatchReader":
        """Which records are late only the stream knows: then Spark reads them."""
        asks = request.fetches and shape.decoder is None and not request.limits.late
        alone = asks and by_records_alone(plan.frame)
        return cls(request=request, shape=shape, plan=plan, records_alone=alone)

    def input(
        self,
        frame: DataFrame,
        ranges: Sequence[Range],
        left: tuple[Range, ...],
        ids: Mapping[str, str],
        *,
        beyond_spark: bool = False,
        apart: Collection[Coordinates] = (),
    ) -> BatchInput:
        """The rows of what is left of a batch; `frame` is what Spark gives for all of it, and `ids`
        are those of its topics, as far as they are known. Records that are `beyond_spark` its own
        reader cannot read, however few they are. Records that are kept `apart` have no rows, and
        are not given to the transform."""
        chosen = read_path(
            fetches=self.request.fetches,
            raw=self.shape.decoder is not None,
            records_alone=self.records_alone,
            records=count(ranges),
            small=0 if beyond_spark or apart else self.request.small,
        )
        if beyond_spark and chosen is ReadPath.SPARK:
            raise InputError(self._unreadable(left))
        filled, needed = set(filter(len, ranges)), set(filter(len, left))
        plan = BlockPlan(
            left=left,
            has_coordinates=self.shape.has_coordinates,
            decoder=self.shape.decoder,
        )
        if chosen is ReadPath.TASKS:
            return self._fetched(frame, plan, ids)
        prepared = self.request.target.prepared
        if chosen is ReadPath.RANGES:
            rows = over_ranges(self.plan.frame, left, frame.sparkSession, ids, apart)
            return FrameInput(rows, plan, partitions=len(needed), prepared=prepared)
        trimming = BlockPlan(
            left=left,
            has_coordinates=plan.has_coordinates,
            decoder=plan.decoder,
            trim=needed != filled,
        )
        if plan.decoder is not None:
            return FrameInput(frame, trimming, partitions=len(filled))
        return FrameInput(frame, trimming, partitions=len(filled), prepared=prepared)

    def _unreadable(self, left: tuple[Range, ...]) -> str:
        """Which records Spark cannot read, and what is to be done."""
        found = [] if self.request.connection is None else undated(left, self.request.connection)
        where = ", ".join(found) or f"one of {', '.join(map(str, left))}"
        return (
            f"a record has a time that Spark's reader cannot take, and this pipeline needs Spark's "
            f"reader: {where}. Copy the topic into another one by a pipeline without a transform "
            "(format bytes), which gives its records a time of their own, and read that."
        )

    def _fetched(self, frame: DataFrame, plan: BlockPlan, ids: Mapping[str, str]) -> FetchedInput:
        connection, traits = self.request.connection, self.request.target.traits
        assert connection is not None
        return FetchedInput(
            spark=frame.sparkSession,
            connection=connection,
            plan=plan,
            headers=traits.headers,
            partition_a_task=traits.partition_a_task,
            ids=dict(ids),
        )


def undated(ranges: Iterable[Range], connection: Connection, most: int = 3) -> list[str]:
    """Some records of the ranges whose time is no date."""
    found: list[str] = []
    for raw in fetch(ranges, connection):
        for index in pc.indices_nonzero(raw.column("timestamp").is_null()).to_pylist():
            found.append("{}/{}@{}".format(*(raw.column(at)[index] for at in RAW_COORDINATES)))
            if len(found) == most:
                return found
    return found
