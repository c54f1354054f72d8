"""Blocks on their way to a target: decode → trim → dead letters, once for all targets.

A block is what a target writes at a time: rows as an Arrow record batch, with the coordinates of
their records if they have them. They come from Spark, already decoded, or as raw records of Kafka,
which are decoded here, next to the write.
"""

import time
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from tallygate.core.decoding import COORDINATES, Decoder, fit_records
from tallygate.core.letters import Coordinates, Letter, letter_of
from tallygate.core.offsets import Range, TopicPartition
from tallygate.errors import LedgerError

RAW_COORDINATES = ("topic", "partition", "offset")


@dataclass(frozen=True)
class Decoded:
    """What became of a block of raw records."""

    rows: pa.RecordBatch
    fit: pa.RecordBatch
    """The raw records that the rows were made of, in the same order."""
    letters: list[Letter]


def decoded(raw: pa.RecordBatch, decoder: Decoder) -> Decoded:
    """The rows of a block of raw records; those that cannot be decoded become dead letters."""
    rows, unfit = decoder.decode(raw)
    letters = [letter_of(raw, each.index, each.cause) for each in unfit]
    return Decoded(rows, fit_records(raw, unfit), letters)


@dataclass(frozen=True)
class Block:
    """Rows to write, of which none is left out."""

    rows: pa.RecordBatch
    coordinates: pa.RecordBatch | None
    """Topic, partition and offset of each row's record; None if rows have none."""
    raw: pa.RecordBatch | None = None
    """The records as Kafka has them, row by row, if they were decoded here."""


@dataclass(frozen=True, kw_only=True)
class BlockPlan:
    """What is done with what a task is given. It travels to the workers."""

    left: tuple[Range, ...]
    """What is left to do of the batch."""
    has_coordinates: bool
    trim: bool = False
    """Whether what is given may hold more than what is left."""
    decoder: Decoder | None = None
    """For raw records, which are decoded here."""
    one_partition: bool = False
    """Whether each task must hold the rows of one partition alone, and find out which."""


@dataclass
class Blocks:
    """What a task is given, as blocks; and what is known of them once they went by."""

    plan: BlockPlan
    source: Iterator[pa.RecordBatch]
    partitions: set[TopicPartition] = field(default_factory=set)
    """Those that the task holds: known before it reads, or from the rows as they come."""
    lane: int = 0
    """The number of the task, where rows are sent to lanes."""
    letters: list[Letter] = field(default_factory=list)
    seconds: float = 0.0
    """How long reading and decoding took."""
    failure: BaseException | None = None
    """What went wrong in here. A library that pulls the blocks may raise an error of its own."""

    def __post_init__(self) -> None:
        self._ranges = {each.topic_partition: each for each in self.plan.left}

    @property
    def ranges(self) -> list[Range]:
        """What is left to do of the partitions that the task holds."""
        return [self._ranges[each] for each in sorted(self.partitions)]

    def __iter__(self) -> Iterator[Block]:
        while True:
            started = time.perf_counter()
            try:
                given = next(self.source, None)
                if given is None:
                    return
                block = self._made(given)
            except BaseException as error:
                self.failure = error
                raise
            finally:
                self.seconds += time.perf_counter() - started
            if block is not None:
                yield block

    def _made(self, given: pa.RecordBatch) -> Block | None:
        plan = self.plan
        names = COORDINATES if plan.decoder is None else RAW_COORDINATES
        if plan.trim and given.num_rows:
            given = trimmed(given, self._ranges, names)
        if not given.num_rows:
            return None
        if plan.one_partition:
            self._note(given.column(names[0]), given.column(names[1]))
        if plan.decoder is None:
            return Block(given, self._coordinates(given))
        made = decoded(given, plan.decoder)
        self.letters += made.letters
        if not made.rows.num_rows:
            return None
        return Block(made.rows, self._coordinates(made.rows), made.fit)

    def _coordinates(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        return rows.select(list(COORDINATES)) if self.plan.has_coordinates else None

    def _note(self, topics: pa.Array, partitions: pa.Array) -> None:
        """Remember the one partition that the rows come from."""
        ends = {(topics[at].as_py(), partitions[at].as_py()) for at in (0, len(topics) - 1)}
        numbers = pc.min_max(partitions).as_py()
        self.partitions |= ends
        if len(self.partitions) > 1 or numbers["min"] != numbers["max"]:
            raise LedgerError(
                f"a task holds rows of {sorted(self.partitions)}: the plan is not narrow."
            )


def trimmed(
    block: pa.RecordBatch,
    ranges: Mapping[TopicPartition, Range],
    names: tuple[str, str, str] = COORDINATES,
) -> pa.RecordBatch:
    """The rows that lie in the ranges; `names` are the columns of their coordinates."""
    columns = (block.column(name).to_pylist() for name in names)
    kept = []
    for topic, partition, offset in zip(*columns, strict=True):
        wanted = ranges.get((topic, partition))
        kept.append(wanted is not None and wanted.holds(offset))
    return block.filter(pa.array(kept, pa.bool_()))


def without(raw: pa.RecordBatch, records: Set[Coordinates]) -> pa.RecordBatch:
    """The raw records that are not these."""
    columns = (raw.column(name).to_pylist() for name in RAW_COORDINATES)
    kept = [at not in records for at in zip(*columns, strict=True)]
    return raw.filter(pa.array(kept, pa.bool_()))
