"""A target that Tallygate does not have: a table in a file of SQLite, with the ledger beside it.

It is here to show what it takes: rows, dead letters and ledger in one store that has transactions,
and the calls of `Target`. Nothing elsewhere knows of it. SQLite lets one transaction write at a
time, so within one the ledger's newest entry is final, and `LedgerState.moved` compares and sets.

  driver      one transaction for the whole batch
  partition   one for each task, which holds the rows of one partition
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from pyspark.sql import SparkSession

from contract.sqlite_snapshot import SqliteSnapshot
from tallygate.core.blocks import Block, Blocks
from tallygate.core.halving import write_in_halves
from tallygate.core.ledger import Claim, Forget, LedgerChange, LedgerEntry, LedgerState, Run
from tallygate.core.letters import DeadLetter, Letter, first_distinct
from tallygate.core.offsets import Range, TopicPartition, lies_in
from tallygate.delivery import in_order
from tallygate.errors import LedgerError
from tallygate.failpoints import reach
from tallygate.targets.base import (
    LetterKeeper,
    RowShape,
    Target,
    TaskReport,
    Traits,
    UnknownOutcomeError,
    WriteBatch,
    Written,
)
from tallygate.targets.local_run import LocalRun
from tallygate.targets.task_report import unmoved

WAIT = 30.0
"""How long a transaction waits for another, in seconds."""
TABLES = (
    "CREATE TABLE IF NOT EXISTS tallygate_ledger (pipeline TEXT PRIMARY KEY, entry TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS tallygate_letters (pipeline TEXT, topic TEXT, partition INT, "
    '"offset" INT, letter TEXT NOT NULL, PRIMARY KEY (pipeline, topic, partition, "offset"))',
    # A letter counts from the moment that its batch is in the ledger.
    "CREATE VIEW IF NOT EXISTS tallygate_dead_letters AS "
    "SELECT letters.rowid AS number, letters.* FROM tallygate_letters AS letters "
    "JOIN tallygate_ledger AS ledger USING (pipeline) "
    "JOIN json_each(ledger.entry, '$.state.positions') AS held "
    "ON held.value ->> 0 = letters.topic AND held.value ->> 1 = letters.partition "
    'WHERE letters."offset" < held.value ->> 2',
)


@dataclass(frozen=True)
class Database:
    """The file, and what is done in one transaction of it. It travels to the tasks."""

    file: str
    table: str
    delivery: str

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self.file, timeout=WAIT, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            for table in TABLES:
                connection.execute(table)
            yield connection
            connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise UnknownOutcomeError(str(error)) from error
        finally:
            connection.close()  # which rolls back what was not committed

    def entry(self, connection: sqlite3.Connection, pipeline: str) -> LedgerEntry | None:
        found = connection.execute(
            "SELECT entry FROM tallygate_ledger WHERE pipeline = ?", (pipeline,)
        ).fetchone()
        return None if found is None else LedgerEntry.parse(found[0])

    def keep_entry(self, connection: sqlite3.Connection, entry: LedgerEntry) -> None:
        connection.execute(
            "INSERT OR REPLACE INTO tallygate_ledger VALUES (?, ?)", (entry.pipeline, entry.text())
        )

    def held(self, connection: sqlite3.Connection, claim: Claim) -> LedgerEntry:
        """The newest entry, if the claim still is the newest run's."""
        entry = self.entry(connection, claim.pipeline)
        if entry is None:
            raise LedgerError(f"pipeline {claim.pipeline!r} is not in the ledger any more.")
        claim.check_newest(entry.state.run)
        return entry

    def move(
        self,
        connection: sqlite3.Connection,
        claim: Claim,
        ranges: Iterable[Range],
        epochs: Mapping[TopicPartition, int],
    ) -> None:
        """Compare and set positions, for the run that may."""
        done, entry = tuple(ranges), self.held(connection, claim)
        state = entry.state.moved(done, epochs)
        self.keep_entry(connection, entry.next(ranges=done, state=state))

    def keep_letters(
        self, connection: sqlite3.Connection, pipeline: str, letters: Iterable[Letter]
    ) -> None:
        """They count once the ledger has moved past them."""
        connection.executemany(
            "INSERT OR IGNORE INTO tallygate_letters VALUES (?, ?, ?, ?, ?)",
            [(pipeline, *each.at, each.text()) for each in letters],
        )

    def letters(self, connection: sqlite3.Connection, pipeline: str) -> list[Letter]:
        """Those that count."""
        query = "SELECT letter FROM tallygate_dead_letters WHERE pipeline = ?"
        return [Letter.read(text) for (text,) in connection.execute(query, (pipeline,))]


@dataclass(frozen=True)
class _Letters:
    """Where the step that decodes leaves what is unfit."""

    database: Database
    claim: Claim

    def keep(self, letters: list[Letter]) -> None:
        with self.database.transaction() as connection:
            self.database.held(connection, self.claim)
            self.database.keep_letters(connection, self.claim.pipeline, letters)


@dataclass(frozen=True)
class _Writer:
    """A batch on its way into the file. It travels to the tasks."""

    database: Database
    claim: Claim
    columns: tuple[str, ...]
    batch: int
    epochs: Mapping[TopicPartition, int]

    def commit_partition(self, blocks: Blocks, report: TaskReport) -> None:
        """A task: its rows and the position of its partition, committed by itself."""
        incoming = iter(blocks)
        first = next(incoming, None)
        if blocks.partitions:
            self.commit(blocks, chain([first] if first else [], incoming), report)

    def commit(
        self,
        blocks: Blocks,
        incoming: Iterable[Block],
        report: TaskReport,
        ranges: tuple[Range, ...] = (),
    ) -> None:
        """Save rows and offsets in the order that the delivery's name means. The `ranges` are known
        once the rows went by, unless they are given."""
        open_now: sqlite3.Connection

        def rows() -> None:
            for block in incoming:
                report.rows += self._insert(open_now, block, blocks.letters)
                reach("rows-begun", self.batch)
            self.database.keep_letters(open_now, self.claim.pipeline, blocks.letters)
            reach("rows-written", self.batch)

        def ledger() -> None:
            self.database.move(open_now, self.claim, ranges or blocks.ranges, self.epochs)
            reach("ledger-moved", self.batch)

        for steps in in_order(self.database.delivery, rows, ledger):
            with self.database.transaction() as open_now:
                for step in steps:
                    step()
                reach("commit-sent", self.batch)
            reach("committed", self.batch)

    def _insert(self, connection: sqlite3.Connection, block: Block, letters: list[Letter]) -> int:
        """Insert the rows; those that SQLite refuses become letters."""
        values = list(
            zip(*(block.rows.column(name).to_pylist() for name in self.columns), strict=True)
        )
        names, marks = ", ".join(self.columns), ", ".join("?" * len(self.columns))
        statement = f"INSERT INTO {self.database.table} ({names}) VALUES ({marks})"

        def write(low: int, high: int) -> int:
            connection.execute("SAVEPOINT part")
            try:
                return connection.executemany(statement, values[low:high]).rowcount
            except sqlite3.IntegrityError:
                connection.execute("ROLLBACK TO part")
                raise
            finally:
                connection.execute("RELEASE part")

        def set_aside(index: int, error: Exception) -> None:
            letters.append(_refused(block, index, str(error)))

        return write_in_halves(len(values), write, set_aside, _is_refusal)


def _is_refusal(error: Exception) -> bool:
    return isinstance(error, sqlite3.IntegrityError)


def _refused(block: Block, index: int, cause: str) -> Letter:
    if block.coordinates is None:
        raise LedgerError(f"SQLite refuses a row that has no coordinates: {cause}")
    topic, partition, offset = block.coordinates.slice(index, 1).to_pylist()[0].values()
    (row,) = block.rows.slice(index, 1).to_pylist()
    return Letter(topic, partition, offset, cause, value=str(row).encode())


class SqliteTarget(Target):
    traits = Traits(decodes=True)

    def __init__(
        self, file: Path, table: str, *, pipeline: str, delivery: str, by_task: bool
    ) -> None:
        self.pipeline, self.delivery = pipeline, delivery
        self.local_run = LocalRun(file.parent, pipeline)
        self._database = Database(str(file), table, delivery)
        self._by_task = by_task
        self._columns: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"table {self._database.table} of {self._database.file}"

    def open(self, shape: RowShape) -> None:
        self._columns = tuple(shape.schema.fieldNames())
        with self._database.transaction() as connection:
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {self._database.table} ({', '.join(self._columns)})"
            )

    def ledger(self) -> LedgerState | None:
        with self._database.transaction() as connection:
            entry = self._database.entry(connection, self.pipeline)
        return None if entry is None else entry.state

    def take_over(self, shape: RowShape, checkpoint: str) -> Claim:
        with self._database.transaction() as connection:
            entry = self._database.entry(connection, self.pipeline)
            entry = entry or LedgerEntry(pipeline=self.pipeline)
            run = Run.mine(entry.state.run.epoch + 1)
            self._database.keep_entry(connection, entry.next(state=replace(entry.state, run=run)))
            # Of batches that were never committed: their records may be fit by now.
            connection.execute(
                "DELETE FROM tallygate_letters WHERE pipeline = ? "
                "AND rowid NOT IN (SELECT number FROM tallygate_dead_letters)",
                (self.pipeline,),
            )
        self.local_run.begin(target=self.name, delivery=self.delivery, run=run.epoch)
        return Claim(self.pipeline, run)

    def write(self, claim: Claim, batch: WriteBatch) -> Written:
        if batch.letters:
            self.letter_keeper(claim).keep(list(batch.letters))
        writer = _Writer(self._database, claim, self._columns, batch.id, batch.epochs)
        if not self._by_task:
            report, blocks = TaskReport(), batch.input.blocks()
            writer.commit(blocks, blocks, report, batch.left)
            return Written("driver", report.rows)
        # A partition that is not known when others of its topic are would be taken for a new one.
        self._move(claim, batch, [replace(each, until=each.start) for each in batch.new])
        reports = batch.input.run(writer.commit_partition, one_partition=True)
        self._move(claim, batch, unmoved(batch.left, reports))
        return Written("partition", sum(each.rows for each in reports))

    def _move(self, claim: Claim, batch: WriteBatch, ranges: list[Range]) -> None:
        with self._database.transaction() as connection:
            self._database.move(connection, claim, ranges, batch.epochs)

    def amend(self, claim: Claim, change: LedgerChange) -> None:
        with self._database.transaction() as connection:
            entry = self._database.held(connection, claim)
            self._database.keep_entry(connection, entry.next(state=change.applied(entry.state)))
            if isinstance(change, Forget):
                connection.execute(
                    "UPDATE tallygate_letters SET topic = ? WHERE pipeline = ? AND topic = ?",
                    (change.name, self.pipeline, change.topic),
                )

    def letter_keeper(self, claim: Claim | None) -> LetterKeeper:
        return _Letters(self._database, claim or Claim(self.pipeline, Run()))

    def letters(self) -> list[DeadLetter]:
        with self._database.transaction() as connection:
            return list(map(DeadLetter.of, self._database.letters(connection, self.pipeline)))

    def first_causes(self, ranges: Sequence[Range], most: int) -> list[str]:
        return first_distinct((x.cause for x in self.letters() if lies_in(ranges, *x.at)), most)

    def letter_count(self) -> int:
        return len(self.letters())

    def snapshot(
        self, spark: SparkSession, shape: Callable[[], RowShape]
    ) -> AbstractContextManager[SqliteSnapshot]:
        with self._database.transaction() as connection:
            rows = connection.execute(f"SELECT * FROM {self._database.table}").fetchall()
            letters = self._database.letters(connection, self.pipeline)
            entry = self._database.entry(connection, self.pipeline)
        frame = spark.createDataFrame(rows, shape().schema)
        return nullcontext(SqliteSnapshot.of(self.name, entry, letters, frame))
