"""The files in which tasks leave dead letters, as their own results name them.

A listing may be stale, and a file may be on another disk than the driver sees: what is not found
would be lost, and the ledger move past it. So the names come back with what tasks report to Spark,
and the driver looks for each.

The step that decodes gives out rows that go on to others, so it has no report. Its names come by
one of Spark's accumulators, which a task fills, and of which Spark hands on what successful tasks
have added. A task that is repeated adds a name of its own; that file is there too.
"""

from collections.abc import Iterable
from typing import Any

from pyspark import AccumulatorParam, SparkContext


class KeptFiles:
    """It travels to the workers, if Spark runs here; there names can only be added."""

    def __init__(self) -> None:
        context = SparkContext._active_spark_context
        self._names: Any = None if context is None else context.accumulator(set(), _Union())
        self._here: set[str] = set()

    def add(self, names: Iterable[str]) -> None:
        if self._names is None:
            self._here.update(names)
        else:
            self._names.add(set(names))

    def names(self) -> frozenset[str]:
        """Those that were not forgotten."""
        return frozenset(self._here if self._names is None else self._names.value)

    def forget(self, names: Iterable[str]) -> None:
        """The driver has found them. In one step, since results come in by another thread."""
        held: set[str] = self._here if self._names is None else self._names.value
        held.difference_update(set(names))


class _Union(AccumulatorParam[set[str]]):
    def zero(self, value: set[str]) -> set[str]:
        return set()

    def addInPlace(self, value1: set[str], value2: set[str]) -> set[str]:  # noqa: N802 - Spark's
        value1 |= value2
        return value1
