"""A Delta table as the store of a pipeline: rows, ledger and dead letters in one folder."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import types as t

from tallygate.core.decoding import COORDINATES
from tallygate.core.offsets import Known, Place, Range
from tallygate.errors import TargetError
from tallygate.settings import Settings
from tallygate.spec import Delta
from tallygate.targets.delta.entry import Entry
from tallygate.targets.delta.ledger import DeltaLedger
from tallygate.targets.delta.letters import LetterFolder
from tallygate.targets.delta.sink import DeltaSink
from tallygate.targets.delta.table import FORGETS, DeltaTable
from tallygate.targets.local_run import LocalRun
from tallygate.targets.store import Keeper, Shape

__all__ = ["DeltaStore"]


class DeltaStore:
    def __init__(
        self, spec: Delta, pipeline: str, delivery: str, spark: SparkSession, settings: Settings
    ) -> None:
        self._spec, self._delivery = spec, delivery
        self._table = DeltaTable(spark, spec.delta)
        self._ledger = DeltaLedger(self._table, pipeline)
        self._letters = LetterFolder(self._table.own(f"{pipeline}/letters"))
        self._counted: dict[Place, int] = {}
        self._count = 0
        self._run = LocalRun(settings.runs_dir, pipeline)

    @property
    def target(self) -> str:
        return f"Delta table {self._spec.delta}"

    @property
    def mirrors(self) -> bool:
        return True

    def prepare(self, shape: Shape) -> None:
        wanted = self._wanted(shape)
        missing = [name for name in self._spec.key if name not in wanted.fieldNames()]
        if missing:
            raise TargetError(f"the key {missing[0]!r} is no column of what the pipeline gives.")
        transaction = self._table.begin()
        if not transaction.exists:
            self._table.make(wanted)
            return
        if transaction.forgets:
            raise TargetError(
                f"{self.target} has the property {FORGETS}, so it would forget which rows it holds "
                f"of a pipeline that rests; ALTER TABLE … UNSET TBLPROPERTIES ('{FORGETS}') first."
            )
        differences = _differences(wanted, transaction.schema)
        if differences:
            raise TargetError(
                f"{self.target} does not fit what the pipeline gives: {'; '.join(differences)}. "
                "Change the table or the transform, or name another table."
            )

    def _wanted(self, shape: Shape) -> t.StructType:
        kept = self._spec.coordinates and self._spec.mode == "append"
        hidden = COORDINATES if shape.carries and not kept else ()
        return t.StructType([each for each in shape.schema.fields if each.name not in hidden])

    def known(self) -> Known | None:
        entry = self._ledger.known()
        return None if entry is None else entry.known

    def keeper(self) -> Keeper:
        return self._letters

    def begin(self, shape: Shape, checkpoint: str) -> None:
        entry = self._ledger.begin()
        self._letters.remove_beyond(entry.positions)
        self._run.begin(target=self.target, delivery=self._delivery, run=entry.epoch)

    def lose(self, lost: Iterable[Range], reason: str) -> None:
        gone = tuple(lost)
        self._ledger.move(lambda entry: entry.without(gone, reason))

    def sink(self, shape: Shape) -> DeltaSink:
        columns = tuple(self._wanted(shape).fieldNames())
        spec = self._spec
        return DeltaSink(self._ledger, columns, spec.mode, spec.key, shape.carries, shape.stateful)

    def remember(self, checkpoint_id: str | None, topic_ids: Mapping[str, str]) -> None:
        held = self._ledger.current()
        ids = {**held.topic_ids, **topic_ids}
        if (held.checkpoint_id, held.topic_ids) == (checkpoint_id, ids):
            return

        def change(entry: Entry) -> Entry:
            return replace(entry.next(), checkpoint_id=checkpoint_id, topic_ids=ids)

        self._ledger.move(change)

    def letters(self) -> int:
        """Counting goes on from where it was: only what the ledger moved past since is new."""
        for place, at in self._ledger.current().positions.items():
            before = self._counted.get(place, 0)
            if at > before:
                self._count += self._letters.count(place, before, at)
                self._counted[place] = at
        return self._count

    def beat(self, progress: Mapping[str, Any]) -> bool:
        """A newer run is found out by the next commit."""
        return self._run.beat(progress)

    def end(self, outcome: str) -> None:
        self._run.end(outcome)


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
