"""A folder of Parquet files as the store of a pipeline: rows and ledger in the same commits."""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import types as t

from tallygate.core.decoding import COORDINATES
from tallygate.core.offsets import Known, MovedError, Range
from tallygate.core.runs import fenced
from tallygate.errors import LedgerError, TargetError
from tallygate.settings import Settings
from tallygate.spec import Parquet
from tallygate.targets.local_run import LocalRun
from tallygate.targets.parquet.columns import arrow_columns, described, differences
from tallygate.targets.parquet.folder import Folder
from tallygate.targets.parquet.ledger import FolderLedger
from tallygate.targets.parquet.letters import FoundLetters
from tallygate.targets.parquet.sink import ParquetSink
from tallygate.targets.store import Keeper, Shape

__all__ = ["ParquetStore"]


class ParquetStore:
    def __init__(self, spec: Parquet, pipeline: str, delivery: str, settings: Settings) -> None:
        self._spec, self._pipeline, self._delivery = spec, pipeline, delivery
        self._folder = Folder.at(spec.parquet)
        self._ledger = FolderLedger(self._folder, pipeline)
        self._columns: pa.Schema = pa.schema([])
        self._run = LocalRun(settings.runs_dir, pipeline)

    @property
    def target(self) -> str:
        return f"folder {self._folder.path}"

    @property
    def mirrors(self) -> bool:
        return True

    def prepare(self, shape: Shape) -> None:
        given = arrow_columns(self._kept(shape))
        self._folder.prepare()
        newest = self._ledger.newest()
        if newest is None:
            self._columns = given
            return
        if newest.pipeline != self._pipeline:
            raise TargetError(
                f"{self._folder.path} belongs to pipeline {newest.pipeline!r}: each needs a folder "
                "of its own."
            )
        if newest.goes_on_elsewhere:
            raise TargetError(
                f"{self._folder.path} was compacted into {newest.moved_to}, and pipeline "
                f"{self._pipeline!r} goes on there: set sink.parquet to it."
            )
        found = differences(newest.columns, described(given))
        if found:
            raise TargetError(
                f"{self._folder.path} has other columns: {'; '.join(found)}. Files of a folder "
                "must be alike; change the transform, or choose a new name and a new folder."
            )
        self._columns = pa.schema([given.field(name) for name, _ in newest.columns])

    def _kept(self, shape: Shape) -> t.StructType:
        """The columns that are written; coordinates that a transform did not ask for can be left
        out."""
        if self._spec.coordinates or not shape.carries:
            return shape.schema
        return t.StructType([f for f in shape.schema.fields if f.name not in COORDINATES])

    def known(self) -> Known | None:
        newest = self._ledger.newest()
        if newest is None:
            return None
        return Known(newest.positions, newest.topic_ids, newest.checkpoint_id)

    def keeper(self) -> Keeper:
        return self._found_letters()

    def _found_letters(self) -> FoundLetters:
        return FoundLetters(str(self._ledger.staging / "letters"))

    def begin(self, shape: Shape, checkpoint: str) -> None:
        self._ledger.begin(described(self._columns))
        epoch = self._ledger.run.epoch
        self._run.begin(target=self.target, delivery=self._delivery, run=epoch)

    def lose(self, lost: Iterable[Range], reason: str) -> None:
        ranges = tuple(lost)
        before = self._ledger.current()
        for each in ranges:
            if before.positions.get(each.place) != each.start:
                raise LedgerError(f"the ledger moved while {each} was given up; start again.")
        kept = (*before.lost, *ranges)
        self._change(ranges=ranges, lost=kept, **before.moved(ranges))

    def sink(self, shape: Shape) -> ParquetSink:
        return ParquetSink(
            self._ledger,
            self._found_letters(),
            self._columns,
            shape.carries,
            shape.stateful,
            self._spec.driver_rows,
        )

    def remember(self, checkpoint_id: str | None, topic_ids: Mapping[str, str]) -> None:
        """An entry of its own, if it says anything new."""
        before = self._ledger.current()
        ids = {**before.topic_ids, **topic_ids}
        if (ids, checkpoint_id) != (before.topic_ids, before.checkpoint_id):
            self._change(topic_ids=ids, checkpoint_id=checkpoint_id)

    def _change(self, **changes: Any) -> None:
        """A commit without rows; only a newer run can come before it."""
        try:
            self._ledger.commit(self._ledger.current(), self._ledger.fresh(), **changes)
        except MovedError:
            self._ledger.current()
            raise

    def letters(self) -> int:
        newest = self._ledger.newest()
        return 0 if newest is None else newest.letters

    def beat(self, progress: Mapping[str, Any]) -> bool:
        newest = self._ledger.newest()
        if newest is not None and newest.run.epoch > self._ledger.run.epoch:
            raise fenced(self._pipeline, self._ledger.run.epoch, newest.run)
        return self._run.beat(progress)

    def end(self, outcome: str) -> None:
        self._ledger.end()
        self._run.end(outcome)
