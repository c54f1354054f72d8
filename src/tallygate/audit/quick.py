"""Digests of both sides by the workers alone, where a pipeline has no transform.

Then nothing needs Spark's JVM: some workers read records from Kafka and decode them, others read
rows from the table, and both give digests and not rows.

**The pipeline's reader is not taken at its word.** The workers read as the pipeline does (see
`kafka.fetching`): what that passes over, both would. So every offset must be accounted for. A
stretch in which each offset has a record is whole. Where some have none, because of a transaction's
marker, an aborted record or compaction, Kafka's own client in the JVM counts the records of that
stretch once more. If the two do not agree, the stretch is compared row by row with what the JVM
reads, and the verdict is unknown at best.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from tallygate.audit.case import Case
from tallygate.audit.comparable import Sides
from tallygate.audit.digests import Digests, Stretch, parts_of
from tallygate.audit.postgres import TableEvidence
from tallygate.audit.recompute import Noted
from tallygate.audit.records import records, rounds
from tallygate.audit.tallying import DDL, Sums, Tally, digests_of, records_of
from tallygate.kafka.connection import Connection
from tallygate.kafka.fetching import fetch
from tallygate.ledger.letters import letter_of
from tallygate.ledger.ranges import Place, Range, count
from tallygate.pipeline.source import decoder_of
from tallygate.records.decoding import COORDINATES, Decoder
from tallygate.sinks.rows import shared_out
from tallygate.sinks.tasks import within
from tallygate.spec import Kafka, KafkaSink

__all__ = ["Quick"]

TASKS_PER_CORE = 4
SMALLEST = 50_000
"""Offsets that are worth a task of their own."""
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


@dataclass(frozen=True)
class Quick:
    """How a case's digests are made by workers."""

    case: Case
    tally: Tally
    """Of what should be there."""
    found_content: tuple[str, ...]
    """The compared columns, as the sink spells them."""

    @classmethod
    def of(cls, case: Case, sides: Sides, rows: DataFrame, tally_size: int) -> "Quick | None":
        """None if the rows must go through Spark: there is a transform, or a type that the workers
        do not compare."""
        pipeline = case.source.pipeline
        if pipeline.transform is not None or isinstance(pipeline.sink, KafkaSink):
            return None
        there = {field.name.lower(): field for field in rows.schema.fields}
        if len(there) < len(rows.columns):
            return None
        spelled = []
        for name in sides.content:
            held = there[name.lower()]
            if not _same_kind(sides.expected.schema[name].dataType, held.dataType):
                return None
            spelled.append(held.name)
        claimed = tuple(case.claims.reached.values())
        tally = Tally(sides.content, tally_size, case.scope.ranges, claimed)
        return cls(case, tally, tuple(spelled))

    def expected(self) -> tuple[Digests, set[Stretch]]:
        """What should be there, and the stretches of the source that two readers do not agree
        about."""
        (source,) = self.case.source.pipeline.streams.values()
        assert isinstance(source, Kafka)
        spark = self.case.source.spark
        dead: dict[Place, list[int]] = {}
        for topic, partition, offset in self.case.refused:
            dead.setdefault((topic, partition), []).append(offset)
        shares = _shares(self.tally.checked, spark.sparkContext.defaultParallelism)
        step = _ReadStep(
            self.case.source.connection.travelling(),
            decoder_of(source),
            self.tally,
            shares,
            dead,
            self.case.noted,
        )

        def run(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return step.run(numbers)

        numbers = spark.range(0, len(shares), 1, max(1, len(shares)))
        rows = numbers.mapInArrow(run, DDL).toArrow().to_pylist()
        seen = records_of(rows)
        self.case.noted.counted({(*at[:2], at[2] * self.tally.size): n for at, n in seen.items()})
        return digests_of(rows), self._unsure(seen)

    def found(self) -> Digests:
        """What is there."""
        step = replace(self.tally, content=self.found_content)

        def run(blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return step.run(blocks)

        evidence = self.case.evidence
        if isinstance(evidence, TableEvidence):
            frame = evidence.rows(self.case.within, through=(run, DDL))
        else:
            frame = evidence.rows(self.case.within).mapInArrow(run, DDL)
        return digests_of(frame.toArrow().to_pylist())

    def _unsure(self, seen: Mapping[Stretch, int]) -> set[Stretch]:
        """The stretches whose records a second reader counts otherwise."""
        checked, size = self.tally.checked, self.tally.size
        holes = {at for at, most in _offsets_in(checked, size).items() if seen.get(at, 0) != most}
        if not holes:
            return set()
        source = self.case.source
        again = records(source.spark, source.connection, parts_of(holes, size, checked))
        rows = again.select(
            *(f.col(name.removeprefix("_")).alias(name) for name in COORDINATES),
        ).where(within(checked))
        counted = rows.groupBy("_topic", "_partition", f.expr(f"_offset div {size}")).count()
        second = {(topic, number, at): n for topic, number, at, n in counted.collect()}
        return {at for at in holes if seen.get(at, 0) != second.get(at, 0)}


def _offsets_in(ranges: Iterable[Range], size: int) -> dict[Stretch, int]:
    """How many offsets of the ranges lie in each stretch."""
    found: dict[Stretch, int] = {}
    for each in ranges:
        for number in range(each.start // size, -(-each.until // size)):
            inside = min(each.until, (number + 1) * size) - max(each.start, number * size)
            at = (*each.place, number)
            found[at] = found.get(at, 0) + inside
    return found


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


@dataclass(frozen=True)
class _ReadStep:
    """Reads records, decodes them, and tallies their rows. It travels to the workers."""

    connection: Connection
    decoder: Decoder
    tally: Tally
    shares: list[list[Range]]
    dead: Mapping[Place, list[int]]
    """Offsets of records whose rows are not to be there: the sink has refused them."""
    noted: Noted

    def run(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sums = Sums()
        for block in numbers:
            for number in block.column("id").to_pylist():
                for ranges in rounds(self.shares[number]):
                    for raw in fetch(ranges, self.connection, bare=True):
                        self._take(raw, sums)
        yield sums.block()

    def _take(self, raw: pa.RecordBatch, sums: Sums) -> None:
        place: Any = raw.column("topic")[0].as_py(), raw.column("partition")[0].as_py()
        self.tally.count(place, np.asarray(raw.column("offset")), sums)
        rows, unfit = self.decoder.decode(raw)
        if unfit:
            self.noted.keep([letter_of(raw, each.index, each.cause) for each in unfit])
        dead = self.dead.get(place)
        if dead is not None:
            kept = ~np.isin(np.asarray(rows.column("_offset")), dead)
            rows = rows.filter(pa.array(kept))
        self.tally.add(rows, sums)
