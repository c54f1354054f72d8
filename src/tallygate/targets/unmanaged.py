"""Sinks without a ledger: the console, a view in memory, a function of the user's own.

They keep no positions, so all that holds is what Spark's checkpoint gives: a batch that was under
way when the driver died comes again. Nothing more is claimed for them than at-least-once (and for
a source that cannot be read again, at-most-once).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession

from tallygate.core.letters import Letter
from tallygate.core.offsets import Known, Range
from tallygate.errors import ConfigError
from tallygate.failpoints import reach
from tallygate.settings import Settings
from tallygate.spec import Console, Foreach, Memory
from tallygate.spec.functions import referred
from tallygate.targets.local_run import LocalRun
from tallygate.targets.sink import Batch, Written
from tallygate.targets.store import Keeper, Shape

__all__ = ["PlainStore"]


class ForeachWriter(Protocol):
    """What `foreach` makes for each task: an object that takes rows one by one."""

    def process(self, row: Row) -> None: ...


@dataclass(frozen=True)
class _LetterFile:
    """Keeps unfit records as lines of JSON; a batch that comes again brings them again."""

    path: Path

    def keep(self, letters: list[Letter]) -> None:
        with self.path.open("a") as file:
            file.write("".join(f"{each.text()}\n" for each in letters))


class PlainStore:
    """In the place of a store: it knows nothing, and begins anew with every run."""

    def __init__(
        self,
        spec: Console | Memory | Foreach,
        pipeline: str,
        delivery: str,
        spark: SparkSession,
        settings: Settings,
    ) -> None:
        self._spec, self._delivery, self._spark = spec, delivery, spark
        self._run = LocalRun(settings.runs_dir, pipeline)
        self._letters = settings.state_dir / "dead-letters" / f"{pipeline}.jsonl"

    @property
    def target(self) -> str:
        if isinstance(self._spec, Memory):
            return f"view {self._spec.memory}"
        return "console" if isinstance(self._spec, Console) else f"foreach {self._spec.foreach}"

    @property
    def mirrors(self) -> bool:
        return True

    def prepare(self, shape: Shape) -> None:
        if isinstance(self._spec, Foreach):
            _maker(self._spec)

    def known(self) -> Known | None:
        return None

    def keeper(self) -> Keeper:
        return _LetterFile(self._letters)

    def begin(self, shape: Shape, checkpoint: str) -> None:
        self._letters.parent.mkdir(parents=True, exist_ok=True)
        self._run.begin(target=self.target, delivery=self._delivery, run=1)

    def lose(self, lost: Iterable[Range], reason: str) -> None:
        raise NotImplementedError  # nothing is known, so nothing can be lost

    def sink(self, shape: Shape) -> "_PlainSink":
        write: Callable[[DataFrame, int], int]
        if isinstance(self._spec, Console):
            write = _Printer(self._spec.console).write
        elif isinstance(self._spec, Memory):
            write = _View(self._spark, self._spec.memory, self._spec.mode == "replace").write
        else:
            write = _Foreach(_maker(self._spec)).write
        return _PlainSink(write)

    def remember(self, checkpoint_id: str | None, topic_ids: Mapping[str, str]) -> None:
        """There is nothing to compare with at a later start."""

    def letters(self) -> int:
        if not self._letters.exists():
            return 0
        with self._letters.open("rb") as file:
            return sum(1 for _ in file)

    def beat(self, progress: Mapping[str, Any]) -> bool:
        return self._run.beat(progress)

    def end(self, outcome: str) -> None:
        self._run.end(outcome)


@dataclass(frozen=True)
class _PlainSink:
    _rows: Callable[[DataFrame, int], int]

    def write(self, frame: DataFrame, batch: Batch) -> Written:
        reach("batch-planned", batch.id)
        rows = self._rows(frame, batch.id)
        reach("committed", batch.id)
        return Written("plain", rows)


@dataclass(frozen=True)
class _Printer:
    most: int

    def write(self, frame: DataFrame, batch: int) -> int:
        table = frame.toArrow()
        print(f"batch {batch}: {table.num_rows} rows", flush=True)
        for row in table.slice(0, self.most).to_pylist():
            print("  " + ", ".join(f"{name}={value}" for name, value in row.items()), flush=True)
        return int(table.num_rows)


@dataclass
class _View:
    spark: SparkSession
    name: str
    replaces: bool
    _tables: dict[int, pa.Table] = field(default_factory=dict)

    def write(self, frame: DataFrame, batch: int) -> int:
        table = frame.toArrow()
        self._tables = {} if self.replaces else self._tables
        self._tables[batch] = table
        whole = pa.concat_tables(self._tables.values())
        self.spark.createDataFrame(whole).createOrReplaceTempView(self.name)
        return int(table.num_rows)


@dataclass(frozen=True)
class _Foreach:
    maker: Callable[[], Any]

    def write(self, frame: DataFrame, batch: int) -> int:
        maker = self.maker

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

        return int(frame.rdd.mapPartitionsWithIndex(task).sum())


def _maker(spec: Foreach) -> Callable[[], Any]:
    made = spec.foreach
    if callable(made):
        return made
    found = referred(made)
    if isinstance(found, type) and not hasattr(found, "process"):
        raise ConfigError(
            f"sink.foreach {made!r} has no method process(row); write a class with it, and with "
            "open(partition, batch) and close(error) if you need them."
        )
    return found  # type: ignore[no-any-return]
