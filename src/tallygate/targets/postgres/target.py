"""A table in PostgreSQL as a target: its rows and the ledger in one database."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tallygate import __version__
from tallygate.core.ledger import (
    Claim,
    CutOff,
    Forget,
    LedgerChange,
    LedgerState,
    Lose,
    Lost,
    Retarget,
    Run,
)
from tallygate.core.letters import DeadLetter, Letter, first_distinct
from tallygate.core.offsets import Range
from tallygate.errors import LedgerError, TargetError
from tallygate.postgres import ledger_tables, letter_tables
from tallygate.postgres.arrow import Connected, is_lost, pooled
from tallygate.postgres.connect import connect
from tallygate.postgres.forgotten_topics import forget
from tallygate.postgres.ledger_tables import KnownTable
from tallygate.postgres.plain import PlainConnection
from tallygate.postgres.sessions import ANY_EPOCH, LOCK_WAIT, bounded, insist, session_name
from tallygate.postgres.tables import upgrade
from tallygate.quoting import backticked
from tallygate.spec import Postgres
from tallygate.targets.base import (
    RefusedRowsError,
    RowShape,
    Target,
    Traits,
    UnknownOutcomeError,
    WriteBatch,
    Written,
    check_key,
)
from tallygate.targets.postgres.nested import to_json
from tallygate.targets.postgres.rows import said_by, translate_errors
from tallygate.targets.postgres.snapshot import ledger_there, snapshot_of
from tallygate.targets.postgres.staging import Staging
from tallygate.targets.postgres.table import Column, TableName, columns_of, ensure_table, table_id
from tallygate.targets.postgres.write import BatchWriter
from tallygate.targets.snapshot import Snapshot
from tallygate.targets.task_report import report_step_errors


@dataclass(frozen=True)
class _LetterTable:
    """Keeps unfit records as they are found. They count as dead letters once their batch is in the
    ledger, so a batch that is never committed leaves none that a reader sees."""

    dsn: str
    claim: Claim

    def keep(self, letters: list[Letter]) -> None:
        name = session_name(self.claim)
        with report_step_errors(is_lost), pooled(self.dsn, name=name) as connection:
            with bounded(self.dsn, connection):
                ledger_tables.check_claim(connection, self.claim)
                letter_tables.keep_letters(connection, self.claim, letters)
            connection.commit()


class PostgresTarget(Target):
    traits = Traits(decodes=True)

    def __init__(
        self,
        spec: Postgres,
        *,
        pipeline: str,
        delivery: str,
        dsn: str,
        timeout: float,
        lock_wait: float = LOCK_WAIT,
    ) -> None:
        """`lock_wait` is how long a start waits for what an older run has locked before it ends
        that run's sessions, and a commit before it is given up and planned again."""
        self.pipeline, self.delivery = pipeline, delivery
        self._lock_wait = lock_wait
        self._spec, self._dsn, self._timeout = spec, dsn, timeout
        self._table: TableName | None = None
        self._columns: tuple[Column, ...] = ()
        self._staged: tuple[Column, ...] = ()
        self._narrow = False
        self._table_id: str | None = None
        self._writer: BatchWriter | None = None

    @property
    def name(self) -> str:
        return f"table {self._table or self._spec.table}"

    def open(self, shape: RowShape) -> None:
        given = columns_of(shape.schema)
        check_key(self._spec.key, [column.name for column in given])
        wanted = given
        if not (self._spec.coordinates and self._spec.mode == "append"):
            wanted = columns_of(shape.without_coordinates())
        with connect(self._dsn, timeout=self._timeout, autocommit=True) as connection:
            self._table = TableName.parse(self._spec.table, connection)
            self._columns = ensure_table(connection, self._table, wanted, self._spec.key)
            insist(
                self._dsn,
                upgrade,
                pipeline=self.pipeline,
                older=ANY_EPOCH,
                doing="to the ledger's tables",
                wait=self._lock_wait,
            )
            self._table_id = table_id(connection, self._table)
        sent = {column.name: column for column in self._columns}
        self._staged = tuple(sent.get(column.name, column) for column in given)
        self._narrow = shape.narrow

    def identity(self) -> str | None:
        return self._table_id

    def ledger(self) -> LedgerState | None:
        with self._connection() as connection:
            if self._table is None and not ledger_tables.are_there(connection):
                return None  # no pipeline has been opened in this database yet
            return ledger_tables.state_of(connection, self.pipeline)

    def take_over(self, shape: RowShape, checkpoint: str) -> Claim:
        if self._table is None:
            raise LedgerError("the target was not opened")
        run = Run.mine(0)
        about = {
            "target": self.name,
            "target_id": self._table_id,
            "delivery": self.delivery,
            "stateful": shape.stateful,
            "checkpoint": checkpoint,
            "version": __version__,
        }
        before = self.ledger() or LedgerState()

        def take_over(session: psycopg.Connection) -> int:
            started = Claim(self.pipeline, run)
            return ledger_tables.take_over(PlainConnection(session), started, about)

        with translate_errors(str(self._table)):
            epoch = insist(
                self._dsn,
                take_over,
                pipeline=self.pipeline,
                older=before.run.epoch,
                doing="from its ledger",
                wait=self._lock_wait,
            )
            claim = Claim(self.pipeline, replace(run, epoch=epoch))
            staging = self._make_staging(claim, self._table)
        self._writer = BatchWriter(
            dsn=self._dsn,
            claim=claim,
            delivery=self.delivery,
            staging=staging,
            target=str(self._table),
            driver_rows=self._spec.driver_rows,
            narrow=self._narrow,
            # At most once, what is refused is not written again: the ledger has moved by then.
            careful=self.delivery == "at-most-once",
            known=self._known(),
            lock_wait=self._lock_wait,
        )
        return claim

    def _known(self) -> KnownTable | None:
        if self._table is None or self._table_id is None:
            return None
        return KnownTable(self._table.quoted, int(self._table_id.rpartition(":")[2]))

    def _make_staging(self, claim: Claim, table: TableName) -> Staging:
        def make(session: psycopg.Connection) -> Staging:
            return Staging.make(
                session,
                claim,
                table=table,
                columns=self._columns,
                staged=self._staged,
                key=self._spec.key,
                mode=self._spec.mode,
            )

        return insist(
            self._dsn,
            make,
            pipeline=self.pipeline,
            older=claim.run.epoch - 1,
            name=session_name(claim),
            doing="to a staging table of its own",
            wait=self._lock_wait,
        )

    def write(self, claim: Claim, batch: WriteBatch) -> Written:
        if self._writer is None or self._writer.claim != claim:
            raise LedgerError("the claim is of another run than the one that took over here")
        if batch.letters:
            self.letter_keeper(claim).keep(list(batch.letters))
        try:
            with translate_errors(str(self._table)):
                return self._writer.write(batch)
        except RefusedRowsError as refusal:
            raise self._refused(self._writer, refusal) from refusal
        except TargetError:
            # A newer run removes the staging table of this one; then that is gone, and this is why.
            with self._connection() as connection:
                ledger_tables.check_claim(connection, claim)
            raise

    def _refused(self, writer: BatchWriter, refusal: RefusedRowsError) -> Exception:
        """The first time a row is refused the batch is written again, carefully."""
        if writer.careful:
            said = said_by(refusal)
            return TargetError(f"PostgreSQL refuses the batch for {self._table}: {said}.")
        self._writer = replace(writer, careful=True)
        return UnknownOutcomeError(str(refusal))

    def amend(self, claim: Claim, change: LedgerChange) -> None:
        with self._connection() as connection:
            ledger_tables.check_claim(connection, claim)
            if isinstance(change, Lose):
                lost = [Lost(each, change.reason) for each in change.ranges]
                ledger_tables.lose(connection, claim, lost)
            elif isinstance(change, CutOff):
                cut = [Lost(each, change.reason) for each in change.ranges]
                ledger_tables.cut_off(connection, claim, cut)
            elif isinstance(change, Retarget):
                ledger_tables.retarget(connection, claim, change.target)
            elif isinstance(change, Forget):
                forget(connection, claim, change)
            else:
                ledger_tables.remember(connection, claim, change)
            connection.commit()

    def letter_keeper(self, claim: Claim | None) -> _LetterTable:
        return _LetterTable(self._dsn, claim or Claim(self.pipeline, Run()))

    def letter_count(self) -> int:
        with self._connection() as connection:
            return letter_tables.letter_count(connection, self.pipeline)

    def first_causes(self, ranges: Sequence[Range], most: int) -> list[str]:
        with self._connection() as connection:
            found = letter_tables.causes_in(connection, self.pipeline, ranges)
            return first_distinct(found, most)

    def letters(self) -> list[DeadLetter]:
        with connect(self._dsn, timeout=self._timeout, autocommit=True) as connection:
            plain = PlainConnection(connection)
            ledger_there(plain, self.pipeline)
            letters = letter_tables.letters_of(plain, self.pipeline)
        return [DeadLetter.of(each) for each in sorted(letters, key=lambda each: each.at)]

    def snapshot(
        self, spark: SparkSession, shape: Callable[[], RowShape]
    ) -> AbstractContextManager[Snapshot]:
        return snapshot_of(
            self._spec, self.pipeline, dsn=self._dsn, spark=spark, timeout=self._timeout
        )

    def prepared(self, frame: DataFrame) -> DataFrame:
        """With values that Arrow cannot carry, or PostgreSQL not take, as text."""
        special = {
            column.name: to_json(f.col(backticked(column.name)))
            if column.json
            else f.col(backticked(column.name)).cast("string")
            for column in self._columns
            if column.json or column.text
        }
        return frame.withColumns(special) if special else frame

    def beat(self, claim: Claim, progress: Mapping[str, Any]) -> bool:
        with self._connection() as connection:
            asked = ledger_tables.beat(connection, claim, progress)
            connection.commit()
        return asked

    def end(self, claim: Claim, outcome: str) -> None:
        with self._connection() as connection:
            ledger_tables.end_run(connection, claim, outcome)
            connection.commit()

    @contextmanager
    def _connection(self) -> Iterator[Connected]:
        """The driver's own, for the ledger. One that broke while it was idle is opened again."""
        where = str(self._table or self._spec.table)
        name = session_name(self._writer.claim) if self._writer is not None else ""
        with translate_errors(where), pooled(self._dsn, careful=True, name=name) as connection:
            yield connection
