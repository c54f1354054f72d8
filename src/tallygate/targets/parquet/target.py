"""A folder of Parquet files as a target: rows, dead letters and ledger in the same commits."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import types as t

from tallygate.core.ledger import Claim, LedgerChange, LedgerState, Lose, Run
from tallygate.core.letters import DeadLetter, first_distinct
from tallygate.core.offsets import MovedError, Range, lies_in
from tallygate.errors import TargetError
from tallygate.settings import Settings
from tallygate.spec import Parquet
from tallygate.targets.base import LetterKeeper, RowShape, Target, Traits, WriteBatch, Written
from tallygate.targets.local_run import LocalRun
from tallygate.targets.parquet.columns import arrow_columns, described, differences
from tallygate.targets.parquet.folder import Folder, is_closed
from tallygate.targets.parquet.ledger import FolderLedger
from tallygate.targets.parquet.letters import FoundLetters, read_letters
from tallygate.targets.parquet.snapshot import newest_there, snapshot_of
from tallygate.targets.parquet.write import FolderWriter
from tallygate.targets.snapshot import Snapshot

AFTER_A_BATCH = 3
"""The newest commits, among which that of the newest batch is: what is remembered with it has a
commit of its own."""


class ParquetTarget(Target):
    delivery = "exactly-once"
    traits = Traits()

    def __init__(
        self, spec: Parquet, *, pipeline: str, settings: Settings, runs: Path | None = None
    ) -> None:
        """`runs` is where its runs are noted, if they belong to a stack."""
        self.pipeline, self._spec = pipeline, spec
        self.local_run = LocalRun(runs or settings.runs_dir, pipeline)
        self._folder = Folder.at(spec.parquet)
        self._ledger = FolderLedger(self._folder, pipeline)
        self._columns: pa.Schema = pa.schema([])
        self._found: FoundLetters | None = None

    @property
    def name(self) -> str:
        return f"folder {self._folder.path}"

    def open(self, shape: RowShape) -> None:
        given = arrow_columns(self._kept(shape))
        self._folder.prepare()
        newest = self._ledger.newest()
        if newest is None:
            self._columns = given
            return
        if newest.pipeline != self.pipeline:
            raise TargetError(
                f"{self._folder.path} belongs to pipeline {newest.pipeline!r}: each needs a folder "
                "of its own."
            )
        if is_closed(newest):
            raise TargetError(
                f"{self._folder.path} was compacted into {newest.moved_to}, and pipeline "
                f"{self.pipeline!r} goes on there: set sink.parquet to it."
            )
        found = differences(newest.columns, described(given))
        if found:
            raise TargetError(
                f"{self._folder.path} has other columns: {'; '.join(found)}. Files of a folder "
                "must be alike; change the transform, or choose a new name and a new folder."
            )
        self._columns = pa.schema([given.field(name) for name, _ in newest.columns])

    def _kept(self, shape: RowShape) -> t.StructType:
        """Rows keep their coordinates, if they have any, unless the user wants none."""
        return shape.schema if self._spec.coordinates else shape.without_coordinates()

    def ledger(self) -> LedgerState | None:
        newest = self._ledger.newest()
        return None if newest is None else newest.state

    def take_over(self, shape: RowShape, checkpoint: str) -> Claim:
        claim = self._ledger.take_over(described(self._columns))
        self.local_run.begin(target=self.name, delivery=self.delivery, run=claim.run.epoch)
        return claim

    def write(self, claim: Claim, batch: WriteBatch) -> Written:
        if batch.letters:
            self.letter_keeper(claim).keep(list(batch.letters))
        writer = FolderWriter(
            ledger=self._ledger,
            claim=claim,
            letters=self._found_letters(claim),
            columns=self._columns,
            driver_rows=self._spec.driver_rows,
        )
        return writer.write(batch)

    def amend(self, claim: Claim, change: LedgerChange) -> None:
        before = self._ledger.current(claim)
        state = change.applied(before.state)
        ranges = change.ranges if isinstance(change, Lose) else ()
        try:
            staged = self._ledger.fresh(claim)
            self._ledger.commit(claim, before, staged, state=state, ranges=ranges)
        except MovedError:
            self._ledger.current(claim)  # only a newer run can come first
            raise

    def letter_keeper(self, claim: Claim | None) -> LetterKeeper:
        return self._found_letters(claim or Claim(self.pipeline, Run()))

    def _found_letters(self, claim: Claim) -> FoundLetters:
        """One for all batches of a run, since tasks of each name their files to it."""
        folder = str(self._ledger.letters(claim))
        if self._found is None or self._found.folder != folder:
            self._found = FoundLetters(folder)
        return self._found

    def letter_count(self) -> int:
        newest = self._ledger.newest()
        return 0 if newest is None else newest.letters

    def first_causes(self, ranges: Sequence[Range], most: int) -> list[str]:
        numbers = self._folder.numbers()[-AFTER_A_BATCH:]
        letters = [each for n in numbers for each in read_letters(self._folder.commit(n))]
        return first_distinct((each.cause for each in letters if lies_in(ranges, *each.at)), most)

    def letters(self) -> list[DeadLetter]:
        newest_there(self._folder, self.pipeline)
        commits = map(self._folder.commit, self._folder.numbers())
        letters = [each for commit in commits for each in read_letters(commit)]
        return [DeadLetter.of(each) for each in sorted(letters, key=lambda each: each.at)]

    def snapshot(
        self, spark: SparkSession, shape: Callable[[], RowShape]
    ) -> AbstractContextManager[Snapshot]:
        def schema() -> t.StructType:
            return self._kept(shape())

        return nullcontext(snapshot_of(self._folder, self.pipeline, spark=spark, schema=schema))

    def beat(self, claim: Claim, progress: Mapping[str, Any]) -> bool:
        self._ledger.current(claim)
        return self.local_run.beat(progress)

    def end(self, claim: Claim, outcome: str) -> None:
        self._ledger.end(claim)
        self.local_run.end(outcome)
