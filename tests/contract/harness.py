"""What the contract suite needs of a target, and the few lines that stand for the engine.

A `Store` is a target in one of its strategies, with an eye of its own: it looks at rows and letters
as any reader of the store does, without the target's code. `bring` does for a batch what the engine
does, less Spark and its checkpoint. `Seen.wrong` is the checker: whatever happened, it compares
what is seen with the records up to the ledger's positions.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as t

from contract.source import (
    DECODER,
    FAILING,
    FIRST,
    REFUSED,
    TOPIC,
    At,
    Batch,
    failing_letters,
    is_bad,
    key_of,
    raw_blocks,
)
from tallygate.core.blocks import BlockPlan, Blocks, decoded, without
from tallygate.core.ledger import Claim, LedgerState
from tallygate.core.letters import Letter
from tallygate.core.offsets import MovedError, Range, TopicPartition, remaining
from tallygate.core.start import refuse_forgotten, refuse_other_target
from tallygate.core.start_facts import RowsNature, StartPolicy
from tallygate.errors import UnreachableError
from tallygate.failpoints import reach
from tallygate.targets.base import (
    BatchInput,
    RowShape,
    Target,
    Task,
    TaskReport,
    WriteBatch,
    Written,
)
from tallygate.targets.batch_input import BlockInput
from tallygate.targets.task_report import StepError, raise_step_errors
from tallygate.waiting import wait_until

__all__ = ["SPINE", "Run", "Seen", "Store", "bring", "keep", "letters_of", "settled", "write"]

COLUMNS = [t.StructField("id", t.LongType()), t.StructField("account", t.StringType())]
COORDINATES = [
    t.StructField("_topic", t.StringType()),
    t.StructField("_partition", t.IntegerType()),
    t.StructField("_offset", t.LongType()),
]
SPINE = ("batch-planned", "batch-committed")
"""Where the engine can be killed, whatever the target."""
TRIES = 20


@dataclass(frozen=True, kw_only=True)
class Store(ABC):
    """A target to be tried. It travels to the processes that are killed."""

    pipeline: str
    strategy: str
    delivery: str = "exactly-once"
    place: str = ""
    """The table, topic or folder, if it has another name than the pipeline."""
    refuses: bool = False
    """Whether the store is made to refuse some rows."""
    fails: bool = False
    """Whether a transform before the store fails on some records."""
    begin: tuple[tuple[int, int], ...] = tuple(FIRST.items())

    @abstractmethod
    def make(self) -> None:
        """Make what must be there before a target is opened; drop what an earlier try left."""

    @abstractmethod
    def target(self) -> Target:
        """A target of its own for each run."""

    @abstractmethod
    def rows(self) -> list[At]:
        """The rows that a reader sees now."""

    @abstractmethod
    def causes(self) -> list[tuple[At, str]]:
        """The dead letters that a reader sees now, and why."""

    def letters(self) -> list[At]:
        return [at for at, _ in self.causes()]

    @property
    def at(self) -> str:
        return self.place or self.pipeline

    @property
    def raw(self) -> bool:
        """Whether the target decodes; otherwise a step before it does."""
        return True

    @property
    def keyed(self) -> bool:
        """Whether of several rows of a key the newest alone is kept."""
        return False

    @property
    def has_coordinates(self) -> bool:
        return True

    @property
    def shape(self) -> RowShape:
        added = COORDINATES if self.has_coordinates else []
        return RowShape(
            schema=t.StructType([*COLUMNS, *added]),
            has_coordinates=self.has_coordinates,
            narrow=self.strategy in ("driver", "partition", "narrow"),
            stateful=False,
            decoder=DECODER if self.raw else None,
        )

    def tasks(self, raw: list[list[pa.RecordBatch]]) -> Sequence[Sequence[pa.RecordBatch]]:
        """The blocks of each task, as this target takes them; one task a partition here."""
        if self.raw:
            return raw
        return [[decoded(block, DECODER).rows for block in blocks] for blocks in raw]

    def seen(self) -> "Seen":
        """All at one moment, as far as the store can show that."""
        state = self.target().ledger() or LedgerState()
        return Seen(self, Counter(self.rows()), Counter(self.letters()), state)


@dataclass(frozen=True)
class Seen:
    """What is in a store, and what must and may be."""

    store: Store
    rows: Counter[At]
    letters: Counter[At]
    state: LedgerState

    def _upto(self, positions: Iterable[tuple[tuple[str, int], int]]) -> set[At]:
        held, begin = dict(positions), dict(self.store.begin)
        lost = [each.range for each in self.state.lost]
        return {
            (p, offset)
            for p, first in begin.items()
            for offset in range(first, held.get((TOPIC, p), first))
            if not any(each.partition == p and each.holds(offset) for each in lost)
        }

    @property
    def needed(self) -> set[At]:
        return self._upto(self.state.positions.items())

    @property
    def allowed(self) -> set[At]:
        return self.needed | self._upto((self.state.furthest or {}).items())

    def _rows_of(self, records: set[At]) -> set[At]:
        fit = {at for at in records if not self._is_unfit(at)}
        if not self.store.keyed:
            return fit
        return set({key_of(at): at for at in sorted(fit)}.values())

    def _is_unfit(self, at: At) -> bool:
        refused = self.store.refuses and at[1] % 10 == REFUSED
        return is_bad(at) or refused or (self.store.fails and at[1] % 10 == FAILING)

    @property
    def missing(self) -> set[At]:
        return self._rows_of(self.needed) - self.rows.keys()

    @property
    def repeated(self) -> set[At]:
        return {at for at, times in self.rows.items() if times > 1}

    @property
    def beyond(self) -> set[At]:
        """Rows that the ledger does not say are there."""
        return self.rows.keys() - self._rows_of(self.allowed)

    @property
    def wrong(self) -> dict[str, object]:
        """What breaks the guarantee; empty if nothing does."""
        unfit = {at for at in self.needed if self._is_unfit(at)}
        found = {
            "missing": self.missing,
            "repeated": self.repeated,
            "beyond the ledger": self.beyond,
            "letters missing": unfit - self.letters.keys(),
            "letters repeated": {at for at, times in self.letters.items() if times > 1},
            "letters of fit records": {at for at in self.letters if not self._is_unfit(at)},
        }
        return {name: at for name, at in found.items() if at}


def settled(store: Store, timeout: float = 10) -> Seen:
    """What is seen once nothing is under way any more: who is killed leaves the store to end it."""
    last: list[Seen] = []

    def is_right() -> Seen | None:
        last[:] = [store.seen()]
        return None if last[0].wrong else last[0]

    found = wait_until(is_right, timeout, lambda: f"{last[0].wrong}")
    assert found is not None
    return found


Make = Callable[[BlockPlan, Sequence[Sequence[pa.RecordBatch]]], BatchInput]


@dataclass
class Run:
    """One start of a pipeline: a target of its own, and the right to write."""

    store: Store
    given: Make = BlockInput
    """Makes the input of a batch, which may be one that misbehaves."""
    accepts: bool = False
    """Whether another target is accepted."""
    target: Target = field(init=False)
    claim: Claim = field(init=False)

    def __post_init__(self) -> None:
        self.target = self.store.target()
        self.target.open(self.store.shape)
        self._check_target()
        self.claim = self.target.take_over(self.store.shape, "checkpoint")

    def _check_target(self) -> None:
        """What the engine asks first."""
        policy = StartPolicy(
            pipeline=self.store.pipeline,
            target=self.target.name,
            cure="",
            target_id=self.target.identity(),
            accept_new_target=self.accepts,
        )
        ledger = self.target.ledger() or LedgerState()
        refusal = refuse_other_target(ledger, RowsNature(), policy)
        refusal = refusal or refuse_forgotten(ledger, policy)
        if refusal is not None:
            raise refusal.exception()

    def bring(self, batches: Iterable[Batch]) -> list[Written | None]:
        return [bring(self, each) for each in batches]


def bring(run: Run, batch: Batch) -> Written | None:
    """What the engine does with a batch: plan it by the ledger, write what is left, and plan again
    as long as the outcome is unknown. None if nothing is left."""
    for _ in range(TRIES):
        try:
            return _tried(run, batch)
        except (UnreachableError, MovedError) as error:
            last = error
    raise AssertionError(f"batch {batch.id} was tried {TRIES} times, and in the end: {last}")


def _tried(run: Run, batch: Batch) -> Written | None:
    shape, target = run.store.shape, run.target
    state = target.ledger() or LedgerState()
    run.claim.check_newest(state.run)
    divisible = shape.has_coordinates and target.traits.divisible
    left = remaining(batch.ranges, state.positions, divisible=divisible)
    reach("batch-planned", batch.id)
    if not left:
        return None
    new = tuple(each for each in left if each.topic_partition not in state.positions)
    written = write(run, batch, left, new, batch.epochs)
    reach("batch-committed", batch.id)
    return written


def write(
    run: Run,
    batch: Batch,
    left: tuple[Range, ...],
    new: tuple[Range, ...] = (),
    epochs: Mapping[TopicPartition, int] | None = None,
) -> Written:
    """Write what is said to be left, whatever the ledger says."""
    store, decoder = run.store, run.store.shape.decoder
    letters = failing_letters(left) if store.fails else ()
    failing = {each.at for each in failing_letters(batch.ranges) if store.fails}
    raw = [[without(block, failing) for block in blocks] for blocks in raw_blocks(batch.ranges)]
    plan = BlockPlan(
        left=left,
        has_coordinates=store.has_coordinates,
        trim=set(filter(len, left)) != set(filter(len, batch.ranges)),
        decoder=decoder,
    )
    given = run.given(plan, store.tasks(raw))
    if not store.raw:
        given = DecodedBefore(given, lambda: keep(run, letters_of(batch)))
    planned = WriteBatch(
        id=batch.id, left=left, new=new, epochs=epochs or {}, input=given, letters=letters
    )
    with raise_step_errors():
        return run.target.write(run.claim, planned)


@dataclass(frozen=True)
class DecodedBefore:
    """The input of a target that does not decode: a step before it does, when rows are asked for,
    and leaves dead letters with the target's keeper."""

    given: BatchInput
    decode: Callable[[], None]

    def blocks(self) -> Blocks:
        self.decode()
        return self.given.blocks()

    def run(self, task: Task, *, one_partition: bool = False) -> list[TaskReport]:
        self.decode()
        return self.given.run(task, one_partition=one_partition)

    def run_in_lanes(self, task: Task, lanes: int, by: str) -> list[TaskReport]:
        self.decode()
        return self.given.run_in_lanes(task, lanes, by)

    def keeps_partitions_whole(self) -> bool:
        return self.given.keeps_partitions_whole()

    def frame(self) -> DataFrame:
        self.decode()
        return self.given.frame()


def letters_of(batch: Batch) -> list[Letter]:
    """What the step that decodes finds unfit in a batch."""
    blocks = [block for blocks in raw_blocks(batch.ranges) for block in blocks]
    return [each for block in blocks for each in decoded(block, DECODER).letters]


def keep(run: Run, letters: list[Letter]) -> None:
    """Have the step that decodes keep dead letters. The driver hears of it by Spark, as a text."""
    try:
        run.target.letter_keeper(run.claim).keep(letters)
    except StepError as error:
        raise WorkerError(f"StepError: {error}") from error


class WorkerError(Exception):
    """What Spark makes of an error in a worker."""
