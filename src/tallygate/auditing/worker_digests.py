"""Digests of both sides by workers, where a pipeline has no transform.

Then nothing has to be computed by Spark's JVM: some workers read records from Kafka and decode
them, others see the rows of the sink, and both give digests and not rows.

**The pipeline's reader is not taken at its word.** The workers read as a pipeline does that has no
transform (see `kafka.fetch`): what that passes over, both would. So every offset must be
accounted for. A stretch in which each offset has a record is whole. Where some have none, because
of a transaction's marker, an aborted record or compaction, Kafka's own client in the JVM reads the
offsets of that stretch once more. If the two do not see the same ones, the stretch is compared row
by row with what the JVM reads, and the verdict is unknown at best.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from tallygate.auditing.comparable import Sides
from tallygate.auditing.context import Case
from tallygate.auditing.digest_sums import DDL, Sums, Tally, offset_digests, tallied
from tallygate.auditing.digests import Digest, Digests, Stretch, parts_of
from tallygate.auditing.recompute import Noted, looks_at_headers
from tallygate.core.decoding import COORDINATES, Decoder
from tallygate.core.letters import Coordinates, letter_of
from tallygate.core.offsets import Range, TopicPartition, count
from tallygate.engine.frames import decoder_of, fetchable
from tallygate.kafka.connection import Connection
from tallygate.kafka.fetch import fetch
from tallygate.spark.records import rounds
from tallygate.spec import Kafka
from tallygate.targets.batch_input import shared_out, within

TASKS_PER_CORE = 4
SMALLEST = 50_000
"""Offsets that are worth a task of their own."""
_NONE: Digest = (0, 0, 0)
_WHOLE = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)
_PLAIN = (
    t.BooleanType,
    t.FloatType,
    t.DoubleType,
    t.StringType,
    t.BinaryType,
    t.DateType,
    t.TimestampType,
    t.TimestampNTZType,
)


@dataclass(frozen=True, kw_only=True)
class Quick:
    """How a case's digests are made by workers."""

    case: Case
    source: Kafka
    tally: Tally
    """Of what should be there."""
    found_content: tuple[str, ...]
    """The compared columns, as the sink spells them."""

    @classmethod
    def of(
        cls, case: Case, sides: Sides, rows: DataFrame, size: int, claimed: Sequence[Range]
    ) -> "Quick | None":
        """None if the rows must go through Spark: there is a transform, a type that the workers
        do not compare, or something that was said to Spark's reader alone."""
        pipeline = case.source.pipeline
        source = pipeline.topics_read.get("source")
        if pipeline.transform is not None or pipeline.sink.is_topic:
            return None
        if source is None or not fetchable(source, case.source.connection):
            return None
        there = {field.name.lower(): field for field in rows.schema.fields}
        if len(there) < len(rows.columns):
            return None
        for name in (*COORDINATES, *sides.content):
            mine = sides.expected.schema[name].dataType
            if not _same_kind(mine, there[name.lower()].dataType):
                return None
        spelled = tuple(there[name.lower()].name for name in sides.content)
        tally = Tally(sides.content, size, case.scope.ranges, tuple(claimed))
        return cls(case=case, source=source, tally=tally, found_content=spelled)

    def expected(self) -> tuple[Digests, set[Stretch]]:
        """What should be there, and the stretches of the source that two readers do not agree
        about."""
        spark = self.case.source.spark
        shares = _shares(self.tally.checked, spark.sparkContext.defaultParallelism)
        step = _ReadStep(
            connection=self.case.source.connection.travelling(),
            decoder=decoder_of(self.source),
            tally=self.tally,
            shares=shares,
            dead=_by_partition(self.case.refused, self.tally.checked),
            noted=self.case.noted,
            headers=looks_at_headers(self.case.source.pipeline, self.source),
        )

        def run(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return step.run(numbers)

        numbers = spark.range(0, len(shares), 1, max(1, len(shares)))
        seen = tallied(numbers.mapInArrow(run, DDL))
        counts = {at: count for at, (count, *_) in seen.records.items()}
        self.case.noted.counted({(*at[:2], at[2] * self.tally.size): n for at, n in counts.items()})
        return seen.rows, self._unsure(seen.records)

    def found(self) -> Digests:
        """What is there."""
        step = replace(self.tally, content=self.found_content)

        def run(blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return step.run(blocks)

        columns = (*COORDINATES, *self.found_content)
        return tallied(self.case.snapshot.through(run, DDL, columns, self.case.within)).rows

    def _unsure(self, seen: Mapping[Stretch, Digest]) -> set[Stretch]:
        """The stretches in which a second reader sees other records."""
        checked, size = self.tally.checked, self.tally.size
        offsets = _offsets_in(checked, size)
        holes = {at for at, most in offsets.items() if seen.get(at, _NONE)[0] != most}
        if not holes:
            return set()
        source = self.case.source
        read = parts_of(holes, size, checked)
        if count(read) > count(checked):  # a sample, from one end of a partition to the other
            read = list(checked)
        again = source.records(read).select(
            *(f.col(name.removeprefix("_")).alias(name) for name in COORDINATES)
        )
        second = offset_digests(again.where(within(checked)), size)
        return {at for at in holes if seen.get(at, _NONE) != second.get(at, _NONE)}


def _offsets_in(ranges: Iterable[Range], size: int) -> dict[Stretch, int]:
    """How many offsets of the ranges lie in each stretch."""
    found: dict[Stretch, int] = {}
    for each in ranges:
        for number in range(each.start // size, -(-each.until // size)):
            inside = min(each.until, (number + 1) * size) - max(each.start, number * size)
            at = (*each.topic_partition, number)
            found[at] = found.get(at, 0) + inside
    return found


def _by_partition(
    letters: Iterable[Coordinates], ranges: Iterable[Range]
) -> dict[TopicPartition, npt.NDArray[np.int64]]:
    """The offsets of the dead letters, in order, for the partitions that the ranges are of."""
    found: dict[TopicPartition, list[int]] = {each.topic_partition: [] for each in ranges}
    for topic, partition, offset in letters:
        if (topic, partition) in found:
            found[topic, partition].append(offset)
    return {
        partition: np.sort(np.array(each, np.int64)) for partition, each in found.items() if each
    }


def _same_kind(mine: t.DataType, theirs: t.DataType) -> bool:
    if isinstance(mine, _WHOLE):
        return isinstance(theirs, _WHOLE)
    return isinstance(mine, _PLAIN) and type(mine) is type(theirs)


def _shares(ranges: Sequence[Range], cores: int) -> list[list[Range]]:
    """The ranges cut up and shared out, so that no task is left alone at the end."""
    size = max(SMALLEST, -(-count(ranges) // (cores * TASKS_PER_CORE)))
    pieces = [
        replace(each, start=start, until=min(start + size, each.until))
        for each in ranges
        for start in range(each.start, each.until, size)
    ]
    return shared_out(pieces, cores * TASKS_PER_CORE)


@dataclass(frozen=True, kw_only=True)
class _ReadStep:
    """Reads records, decodes them, and tallies their rows. It travels to the workers."""

    connection: Connection
    decoder: Decoder
    tally: Tally
    shares: list[list[Range]]
    dead: Mapping[TopicPartition, npt.NDArray[np.int64]]
    """Offsets of records whose rows are not to be there: the sink has refused them."""
    noted: Noted
    headers: bool

    def run(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sums = Sums()
        for block in numbers:
            for number in block.column("id").to_pylist():
                for ranges in rounds(self.shares[number]):
                    for raw in self._records(ranges):
                        self._take(raw, sums)
        yield sums.block()

    def _records(self, ranges: Sequence[Range]) -> Iterator[pa.RecordBatch]:
        return fetch(ranges, self.connection, headers=self.headers, bare=True, apart=True)

    def _take(self, raw: pa.RecordBatch, sums: Sums) -> None:
        partition: Any = raw.column("topic")[0].as_py(), raw.column("partition")[0].as_py()
        self.tally.note(partition, np.asarray(raw.column("offset")), sums)
        rows, unfit = self.decoder.decode(raw)
        if unfit:
            self.noted.keep([letter_of(raw, each.index, each.cause) for each in unfit])
        dead = self.dead.get(partition)
        if dead is not None:
            offsets = np.asarray(rows.column("_offset"))
            nearest = np.minimum(np.searchsorted(dead, offsets), len(dead) - 1)
            rows = rows.filter(pa.array(dead[nearest] != offsets))
        self.tally.add(rows, sums)
