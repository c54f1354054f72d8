"""Targets without a ledger: the console, a view in memory, a function of the user's own.

They keep no positions, so all that holds is what Spark's checkpoint gives: a batch that was under
way when the driver died comes again. Nothing more is claimed for them than at-least-once (and for
a source that cannot be read again, at-most-once).
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession

from tallygate.core.ledger import Claim, LedgerChange, LedgerState, Run
from tallygate.core.letters import DeadLetter, Letter
from tallygate.errors import ConfigError
from tallygate.failpoints import reach
from tallygate.settings import Settings
from tallygate.spec import Console, Foreach, Memory
from tallygate.spec.functions import referred
from tallygate.targets.base import LetterKeeper, RowShape, Target, Traits, WriteBatch, Written
from tallygate.targets.local_run import LocalRun
from tallygate.targets.snapshot import Snapshot


class RowWriter(Protocol):
    """What differs between the targets: where the rows of a batch go."""

    @property
    def name(self) -> str: ...

    def check(self) -> None:
        """Raise if rows cannot go there."""

    def write(self, rows: DataFrame, batch: int) -> int:
        """Write the rows, and say how many they were."""


def unmanaged_target(
    spec: Console | Memory | Foreach,
    *,
    pipeline: str,
    delivery: str,
    spark: SparkSession | None,
    settings: Settings,
    runs: Path | None = None,
) -> "UnmanagedTarget":
    writer: RowWriter
    if isinstance(spec, Console):
        writer = _Printer(spec.console)
    elif isinstance(spec, Memory):
        writer = _View(spark=spark, view=spec.memory, replaces=spec.mode == "replace")
    else:
        writer = _Foreach(spec.foreach)
    return UnmanagedTarget(
        writer,
        kind=spec.kind,
        pipeline=pipeline,
        delivery=delivery,
        settings=settings,
        runs=runs,
    )


class UnmanagedTarget(Target):
    """It knows nothing of a pipeline, which begins again with every run."""

    traits = Traits(keeps_ledger=False)

    def __init__(
        self,
        writer: RowWriter,
        *,
        kind: str,
        pipeline: str,
        delivery: str,
        settings: Settings,
        runs: Path | None = None,
    ) -> None:
        """`kind` is what such a sink is called in messages."""
        self._kind = kind
        self.pipeline, self.delivery = pipeline, delivery
        self.local_run = LocalRun(runs or settings.runs_dir, pipeline)
        self._writer = writer
        self._letter_file = settings.state_dir / "dead-letters" / f"{pipeline}.jsonl"

    @property
    def name(self) -> str:
        return self._writer.name

    def open(self, shape: RowShape) -> None:
        self._writer.check()

    def ledger(self) -> LedgerState | None:
        return None

    def take_over(self, shape: RowShape, checkpoint: str) -> Claim:
        """Nothing tells one run from another, so none is fenced."""
        self._letter_file.parent.mkdir(parents=True, exist_ok=True)
        claim = Claim(self.pipeline, Run.mine(1))
        self.local_run.begin(target=self.name, delivery=self.delivery, run=claim.run.epoch)
        return claim

    def write(self, claim: Claim, batch: WriteBatch) -> Written:
        rows = self._writer.write(batch.input.frame(), batch.id)
        reach("committed", batch.id)
        return Written("plain", rows)

    def amend(self, claim: Claim, change: LedgerChange) -> None:
        raise NotImplementedError(f"{self.name} keeps no ledger that could change")

    def letter_keeper(self, claim: Claim | None) -> LetterKeeper:
        return _LetterFile(self._letter_file)

    def letter_count(self) -> int:
        if not self._letter_file.exists():
            return 0
        with self._letter_file.open("rb") as file:
            return sum(1 for _ in file)

    def letters(self) -> list[DeadLetter]:
        raise ConfigError(
            f"a sink {self._kind} keeps no ledger, which would say what counts; what its runs have "
            f"set aside on this machine is in {self._letter_file}."
        )

    def snapshot(
        self, spark: SparkSession, shape: Callable[[], RowShape]
    ) -> AbstractContextManager[Snapshot]:
        raise ConfigError(f"a sink {self._kind} keeps no ledger, so there is nothing to audit.")


@dataclass(frozen=True)
class _LetterFile:
    """Keeps unfit records as lines of JSON; a batch that comes again brings them again."""

    path: Path

    def keep(self, letters: list[Letter]) -> None:
        with self.path.open("a") as file:
            file.write("".join(f"{each.text()}\n" for each in letters))


@dataclass(frozen=True)
class _Printer:
    most: int
    name = "console"

    def check(self) -> None:
        """A console takes all rows."""

    def write(self, rows: DataFrame, batch: int) -> int:
        table = rows.toArrow()
        print(f"batch {batch}: {table.num_rows} rows", flush=True)
        for row in table.slice(0, self.most).to_pylist():
            print("  " + ", ".join(f"{name}={value}" for name, value in row.items()), flush=True)
        return int(table.num_rows)


@dataclass(kw_only=True)
class _View:
    spark: SparkSession | None
    """None where nothing is to be written."""
    view: str
    replaces: bool
    _tables: dict[int, pa.Table] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"view {self.view}"

    def check(self) -> None:
        """A view takes all rows."""

    def write(self, rows: DataFrame, batch: int) -> int:
        assert self.spark is not None
        table = rows.toArrow()
        self._tables = {} if self.replaces else self._tables
        self._tables[batch] = table
        whole = pa.concat_tables(self._tables.values())
        self.spark.createDataFrame(whole).createOrReplaceTempView(self.view)
        return int(table.num_rows)


@dataclass(frozen=True)
class _Foreach:
    made_by: str | Callable[..., Any]
    """What makes the object that takes rows, or where that is found."""

    @property
    def name(self) -> str:
        return f"foreach {self.made_by}"

    def check(self) -> None:
        self._maker()

    def write(self, rows: DataFrame, batch: int) -> int:
        maker = self._maker()

        def task(partition: int, rows: Iterable[Row]) -> Iterator[int]:
            writer = maker()
            if hasattr(writer, "open") and writer.open(partition, batch) is False:
                yield 0
                return
            count, failure = 0, None
            try:
                for row in rows:
                    writer.process(row)
                    count += 1
            except Exception as error:
                failure = error
                raise
            finally:
                if hasattr(writer, "close"):
                    writer.close(failure)
            yield count

        return int(rows.rdd.mapPartitionsWithIndex(task).sum())

    def _maker(self) -> Callable[[], Any]:
        if callable(self.made_by):
            return self.made_by
        found = referred(self.made_by)
        if isinstance(found, type) and not hasattr(found, "process"):
            raise ConfigError(
                f"sink.foreach {self.made_by!r} has no method process(row); write a class with it, "
                "and with open(partition, batch) and close(error) if you need them."
            )
        return found  # type: ignore[no-any-return]
