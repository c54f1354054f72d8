"""What a target is: where rows go, with the ledger beside them in one store.

Planning, skipping, trimming, decoding, reporting and retrying are written once, above the targets
(`engine.batch`). A target knows how its own store makes rows and ledger one: `write` brings what is
left of a batch there, moves the ledger with it, and checks the run's claim in that same commit.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from tallygate.core.blocks import Blocks
from tallygate.core.decoding import COORDINATES, Decoder
from tallygate.core.ledger import Claim, LedgerChange, LedgerState
from tallygate.core.letters import DeadLetter, Letter
from tallygate.core.offsets import Range, TopicPartition
from tallygate.errors import TargetError, UnreachableError
from tallygate.targets.local_run import LocalRun
from tallygate.targets.snapshot import Snapshot


class UnknownOutcomeError(UnreachableError):
    """The outcome is unknown, or the store is away: ask the ledger again, then do what is left."""


class RefusedRowsError(TargetError):
    """The store refuses rows, and with them all that came together with them."""


@dataclass(frozen=True, kw_only=True)
class RowShape:
    """What the rows look like that a target is going to get."""

    schema: t.StructType
    has_coordinates: bool
    """Whether rows carry topic, partition and offset of their record."""
    narrow: bool
    """Whether each Spark partition holds the rows of one partition of Kafka."""
    stateful: bool
    decoder: Decoder | None = None
    """Given if the target gets raw records, which are decoded next to the write; `schema` is the
    decoded one."""
    unsettled: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The columns that may differ when a batch is computed again, and what each is made by; looked
    for where rows go to lanes."""

    @property
    def filters(self) -> bool:
        """Whether a record may give no row without being a dead letter."""
        return self.decoder is None

    def without_coordinates(self) -> t.StructType:
        """The columns that are the user's."""
        if not self.has_coordinates:
            return self.schema
        return t.StructType([each for each in self.schema.fields if each.name not in COORDINATES])


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What differs between targets and matters above them."""

    keeps_ledger: bool = True
    is_topic: bool = False
    """Whether rows become records: the target keeps its past, and cannot be rebuilt."""
    decodes: bool = False
    """Whether it takes raw records, decoded next to the write, where there is no transform."""
    headers: bool = False
    """Whether raw records should bring their headers."""
    partition_a_task: bool = False
    """Whether each partition of Kafka needs a task of its own."""
    divisible: bool = True
    """Whether a part of a batch can be written alone where rows have coordinates."""


@dataclass
class TaskReport:
    """What a task did. A task does not fail for what the driver can decide about: it says in its
    report what happened."""

    partitions: set[tuple[str, int]] = field(default_factory=set)
    """Where its records came from."""
    attempt: str = ""
    """A name of this attempt alone, for what only counts if it succeeds."""
    rows: int = 0
    letters: int = 0
    read: float = 0.0
    write: float = 0.0
    commit: float = 0.0
    problem: str | None = None
    message: str | None = None


Task = Callable[[Blocks, TaskReport], None]
"""Writes the blocks and notes in the report what it did."""


class BatchInput(Protocol):
    """The rows of what is left of a batch, and nothing else."""

    def blocks(self) -> Blocks:
        """All of them, on the driver."""

    def run(self, task: Task, *, one_partition: bool = False) -> list[TaskReport]:
        """Hand them to tasks and hear what those report; a fence, an unknown outcome and what must
        not go on are raised. With `one_partition` a task that holds rows of several fails."""

    def run_in_lanes(self, task: Task, lanes: int, by: str) -> list[TaskReport]:
        """The same, with one task for each lane: rows that are alike in this column are in the same
        lane however often a batch is computed. Tasks do not see the column."""

    def keeps_partitions_whole(self) -> bool:
        """Whether no partition is spread over several tasks, given that every row still belongs to
        one record."""

    def frame(self) -> DataFrame:
        """For targets that leave the writing to Spark."""


@dataclass(frozen=True, kw_only=True)
class WriteBatch:
    """What is left of a batch."""

    id: int
    left: tuple[Range, ...]
    new: tuple[Range, ...] = ()
    """Those of partitions that the ledger does not know yet."""
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Of the leaders that had the ends of the ranges, as far as they are known."""
    input: BatchInput
    letters: tuple[Letter, ...] = ()
    """Records that are dead letters already, since the transform fails on them: the input has no
    row of theirs. They count when the batch does."""


@dataclass(frozen=True)
class Written:
    """What became of a batch."""

    strategy: str
    rows: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)


class LetterKeeper(Protocol):
    """Where the decoding step leaves the records that are unfit. It travels to the workers."""

    def keep(self, letters: list[Letter]) -> None: ...


class Target(ABC):
    """A table, topic, folder or lake table with the ledger of one pipeline."""

    pipeline: str
    delivery: str
    traits: Traits
    local_run: LocalRun
    """Keeps the heartbeats of targets whose stores have no place for them."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What the target is called in messages, as `table public.payments`."""

    @abstractmethod
    def open(self, shape: RowShape) -> None:
        """Make or check the target for these rows; raise if it cannot take them."""

    def identity(self) -> str | None:
        """What an open target is in its store, whatever its name; None if its ledger is a part of
        it, and goes where it goes."""
        return None

    @abstractmethod
    def ledger(self) -> LedgerState | None:
        """What the store knows of the pipeline now; None if it never ran."""

    @abstractmethod
    def take_over(self, shape: RowShape, checkpoint: str) -> Claim:
        """Take the next epoch: from here on no older run commits anything."""

    @abstractmethod
    def write(self, claim: Claim, batch: WriteBatch) -> Written:
        """Write what is left of the batch and move the ledger with it, in the order that the
        delivery's name means. Raise UnknownOutcomeError where the outcome is unknown."""

    @abstractmethod
    def amend(self, claim: Claim, change: LedgerChange) -> None:
        """Commit a change of the ledger that stands for no rows."""

    @abstractmethod
    def letter_keeper(self, claim: Claim | None) -> LetterKeeper:
        """For the decoding step, with the run's right to write."""

    @abstractmethod
    def letter_count(self) -> int:
        """How many dead letters of the pipeline there are."""

    @abstractmethod
    def letters(self) -> list[DeadLetter]:
        """The dead letters of the pipeline, which must have run into the target."""

    @abstractmethod
    def snapshot(
        self, spark: SparkSession, shape: Callable[[], RowShape]
    ) -> AbstractContextManager[Snapshot]:
        """The rows and the ledger at one moment, for an audit, for as long as the block lasts. No
        target is opened for that; `shape` is asked for where nothing that is there tells what rows
        look like."""

    def first_causes(self, ranges: Sequence[Range], most: int) -> list[str]:
        """Why records of the newest batch, which had these ranges, are dead letters: at most so
        many causes that differ, as far as they are quick to find."""
        return []

    def prepared(self, frame: DataFrame) -> DataFrame:
        """A frame of rows in the form in which this target takes blocks of them."""
        return frame

    def beat(self, claim: Claim, progress: Mapping[str, Any]) -> bool:
        """Say that the run is alive, and hear whether it is to stop; raise if it is fenced."""
        asked = self.local_run.beat(progress)
        if (state := self.ledger()) is not None:
            claim.check_newest(state.run)
        return asked

    def end(self, claim: Claim, outcome: str) -> None:
        self.local_run.end(outcome)


def check_key(key: Iterable[str], columns: Iterable[str]) -> None:
    """Refuse a key that the rows do not have."""
    there = set(columns)
    for name in key:
        if name not in there:
            raise TargetError(f"the key {name!r} is not a column of the pipeline's rows.")
