"""By which columns the lane of a row is chosen.

After a crash some lanes have a batch and others have not, and Spark computes it again. A row that
goes to another lane this time is lost or comes twice. So the choice is made by what is the same
whenever a batch is computed: the coordinates of the record, or else the record's key, or else all
columns that no aggregate is in (see `spark.settled`).
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql import types as t

from tallygate.core.decoding import COORDINATES
from tallygate.errors import LedgerError, TargetError
from tallygate.quoting import backticked
from tallygate.spark.settled import AGGREGATE
from tallygate.targets.base import RowShape

LONGEST = 100
"""Of what marks say of a choice: Kafka takes 4096 bytes with an offset, of which this is a part."""


@dataclass(frozen=True, kw_only=True)
class LaneChoice:
    key: str | None
    """The column that becomes the record's key, where it can choose."""
    columns: tuple[str, ...]
    """Those that choose without a key, or where it is null."""

    @classmethod
    def of(cls, shape: RowShape, key: str | None) -> "LaneChoice":
        """The choice for rows of this shape; raise if nothing of them is settled."""
        if shape.has_coordinates:
            return cls(key=None, columns=COORDINATES)
        columns = tuple(
            field.name
            for field in shape.schema.fields
            if field.name not in shape.unsettled and _has_hash(field.dataType)
        )
        chosen = None
        if key is not None and shape.unsettled.get(key) != AGGREGATE:
            chosen = key if _has_hash(shape.schema[key].dataType) else None
        if chosen is None and not columns:
            raise TargetError(
                "no column of these rows is sure to be the same when Spark computes a batch "
                f"again: {_listed(shape.schema.fieldNames())}. Rows in lanes need one, or they "
                "could come twice or not at all; select the group's column, and give the "
                "group's column as sink.key."
            )
        return cls(key=chosen, columns=columns)

    def value(self) -> Column:
        """A number that is the same for rows that are to be in the same lane."""
        whole = f.xxhash64(*(f.col(backticked(name)) for name in self.columns or (self.key or "",)))
        if self.key is None:
            return whole
        key = f.col(backticked(self.key))
        return f.when(key.isNotNull(), f.xxhash64(key)).otherwise(whole)

    def text(self) -> str:
        """What marks keep of it; long ones are cut, but no two are the same."""
        said = _listed(self.columns)
        if self.key is not None:
            said = f"key {self.key!r}, or {said}"
        if len(said.encode()) <= LONGEST:
            return said
        digest = hashlib.sha256(said.encode()).hexdigest()[:16]
        return f"{said.encode()[: LONGEST // 2].decode(errors='ignore')}… ({digest})"


def check_unchanged(pipeline: str, was: str | None, now: str) -> None:
    """Raise if a batch that is in some lanes only would now go to others."""
    if was == now:
        return
    before = "by their text, as an older Tallygate does" if was is None else f"by {was}"
    raise LedgerError(
        f"pipeline {pipeline!r} has a batch in some of its lanes and not in others. Rows went to "
        f"lanes {before}, and would go by {now} with this transform, sink.key or version: some "
        "would come twice, and others not at all. Set it back until that batch is done, and "
        "change it then."
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def _has_hash(type_: t.DataType) -> bool:
    """Whether Spark can hash it: maps have no order, and variants have more than one form."""
    if isinstance(type_, t.ArrayType):
        return _has_hash(type_.elementType)
    if isinstance(type_, t.StructType):
        return all(_has_hash(field.dataType) for field in type_.fields)
    return not isinstance(type_, t.MapType | t.VariantType)
