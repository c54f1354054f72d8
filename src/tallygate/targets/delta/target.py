"""A Delta table as a target: rows, ledger and dead letters in one folder."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import types as t

from tallygate.core.ledger import (
    Claim,
    Forget,
    LedgerChange,
    LedgerEntry,
    LedgerState,
    Lose,
)
from tallygate.core.letters import DeadLetter, first_distinct
from tallygate.core.offsets import Range, TopicPartition
from tallygate.errors import TargetError
from tallygate.settings import Settings
from tallygate.spec import Delta
from tallygate.targets.base import (
    LetterKeeper,
    RowShape,
    Target,
    Traits,
    WriteBatch,
    Written,
    check_key,
)
from tallygate.targets.delta.ledger import TableLedger
from tallygate.targets.delta.letters import LetterFolder
from tallygate.targets.delta.snapshot import newest_there, snapshot_of
from tallygate.targets.delta.table import FORGETS, DeltaTable
from tallygate.targets.delta.write import TableWriter
from tallygate.targets.local_run import LocalRun
from tallygate.targets.snapshot import Snapshot


class DeltaTarget(Target):
    delivery = "exactly-once"
    traits = Traits()

    def __init__(
        self,
        spec: Delta,
        *,
        pipeline: str,
        spark: SparkSession,
        settings: Settings,
        runs: Path | None = None,
    ) -> None:
        """`runs` is where its runs are noted, if they belong to a stack."""
        self.pipeline, self._spec = pipeline, spec
        self.local_run = LocalRun(runs or settings.runs_dir, pipeline)
        self._table = DeltaTable(spark, spec.delta)
        self._ledger = TableLedger(self._table, pipeline)
        self._writer: TableWriter | None = None
        self._letters = LetterFolder(self._table.own.at(f"{pipeline}/letters"))
        self._letters_until: dict[TopicPartition, int] = {}
        self._letter_count = 0

    @property
    def name(self) -> str:
        return f"Delta table {self._spec.delta}"

    def open(self, shape: RowShape) -> None:
        wanted = self._columns(shape)
        check_key(self._spec.key, wanted.fieldNames())
        self._writer = TableWriter(
            ledger=self._ledger,
            columns=tuple(wanted.fieldNames()),
            mode=self._spec.mode,
            key=self._spec.key,
            has_coordinates=shape.has_coordinates,
        )
        transaction = self._table.begin()
        if not transaction.exists:
            self._table.make(wanted)
            return
        if transaction.forgets:
            raise TargetError(
                f"{self.name} has the property {FORGETS}, so it would forget which rows it holds "
                f"of a pipeline that rests; ALTER TABLE … UNSET TBLPROPERTIES ('{FORGETS}') first."
            )
        differences = _differences(wanted, transaction.schema)
        if differences:
            raise TargetError(
                f"{self.name} does not fit what the pipeline gives: {'; '.join(differences)}. "
                "Change the table or the transform, or name another table."
            )

    def _columns(self, shape: RowShape) -> t.StructType:
        """Rows keep their coordinates, if they have any, where none takes another's place."""
        kept = self._spec.coordinates and self._spec.mode == "append"
        return shape.schema if kept else shape.without_coordinates()

    def ledger(self) -> LedgerState | None:
        newest = self._ledger.newest()
        return None if newest is None else newest.state

    def take_over(self, shape: RowShape, checkpoint: str) -> Claim:
        state = self._ledger.take_over().state
        self._letters.follow_names(state.positions)
        self._letters = LetterFolder(self._letters.folder, state.run.epoch)
        self._letters.begin_turn(state.positions)
        self._letters.remove_beyond(state.positions)
        self.local_run.begin(target=self.name, delivery=self.delivery, run=state.run.epoch)
        return Claim(self.pipeline, state.run)

    def write(self, claim: Claim, batch: WriteBatch) -> Written:
        assert self._writer is not None, "a target is opened before it is written"
        if batch.letters:
            self.letter_keeper(claim).keep(list(batch.letters))
        written = self._writer.write(claim, batch, self._letters.keep)
        self._letters.find_kept()
        return written

    def amend(self, claim: Claim, change: LedgerChange) -> None:
        ranges = change.ranges if isinstance(change, Lose) else ()

        def follow(entry: LedgerEntry) -> LedgerEntry:
            return entry.next(state=change.applied(entry.state), ranges=ranges)

        self._ledger.move(claim, follow)
        if isinstance(change, Forget):
            positions = (self.ledger() or LedgerState()).positions
            self._letters.follow_names(positions)
            self._letters.begin_turn(positions)

    def letter_keeper(self, claim: Claim | None) -> LetterKeeper:
        return self._letters

    def letter_count(self) -> int:
        """Counting goes on from where it was: only what the ledger moved past since is new."""
        state = self.ledger() or LedgerState()
        for partition, at in state.positions.items():
            before = self._letters_until.get(partition, 0)
            if at > before:
                self._letter_count += len(self._letters.offsets(partition, before, at))
                self._letters_until[partition] = at
        return self._letter_count

    def first_causes(self, ranges: Sequence[Range], most: int) -> list[str]:
        return first_distinct(self._letters.causes(ranges), most)

    def letters(self) -> list[DeadLetter]:
        _, entry = newest_there(self._ledger)
        found = sorted(self._letters.before(entry.state.positions))
        return [DeadLetter.of(self._letters.letter(at)) for at in found]

    def snapshot(
        self, spark: SparkSession, shape: Callable[[], RowShape]
    ) -> AbstractContextManager[Snapshot]:
        return nullcontext(snapshot_of(self._spec, self._ledger, self._letters, spark))


def _differences(wanted: t.StructType, there: t.StructType) -> list[str]:
    """Why the table cannot take the rows; columns of its own are left empty."""
    found = {field.name.lower(): field for field in there.fields}
    differences = []
    for field in wanted.fields:
        held = found.pop(field.name.lower(), None)
        here = field.dataType.simpleString()
        if held is None:
            differences.append(f"it has no column {field.name!r} ({here})")
        elif held.dataType.simpleString() != here:
            differences.append(
                f"{field.name!r} is {held.dataType.simpleString()} there and {here} here"
            )
    differences += [
        f"{field.name!r} is NOT NULL there and not given here"
        for field in found.values()
        if not field.nullable
    ]
    return differences
