"""What puts rows into a table: in a task of Spark's, or on the driver for a small batch.

Blocks go to the table by COPY as they come: no more than a block is in memory.

**A bad record neither blocks nor vanishes.** If PostgreSQL refuses a row, the whole transaction is
gone, and the batch is written again carefully: each block within a savepoint, and a block that is
refused is halved until the row is found, which becomes a dead letter in the same transaction.
"""

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import chain

import orjson
import pyarrow as pa

from tallygate.core.blocks import Block, Blocks
from tallygate.core.halving import write_in_halves
from tallygate.core.ledger import Claim
from tallygate.core.letters import MOST_KEPT, Letter
from tallygate.core.offsets import TopicPartition
from tallygate.delivery import Step, in_order
from tallygate.errors import TargetError
from tallygate.failpoints import reach
from tallygate.postgres.arrow import (
    Connected,
    driver_refusal,
    is_gone,
    is_lost,
    is_refusal,
    pooled,
)
from tallygate.postgres.ledger_tables import KnownTable, check_claim, move
from tallygate.postgres.letter_tables import keep_letters
from tallygate.postgres.plain import shown
from tallygate.postgres.sessions import LOCK_WAIT, bounded, session_name
from tallygate.targets.base import RefusedRowsError, TaskReport, UnknownOutcomeError
from tallygate.targets.postgres.nested import as_json


@contextmanager
def translate_errors(table: str) -> Iterator[None]:
    """Raise what PostgreSQL means: an unknown outcome, a row refused, or a table that is gone."""
    try:
        yield
    except Exception as error:
        if is_lost(error):
            raise UnknownOutcomeError(str(error)) from error
        if is_refusal(error):
            raise RefusedRowsError(str(error)) from error
        if is_gone(error):
            raise TargetError(
                f"PostgreSQL cannot write to {table} any more: {said_by(error)}; if the table was "
                "dropped or altered, start again: it is made or checked at the start."
            ) from error
        raise


def commit_in_order(
    connection: Connected, delivery: str, batch: int, rows: Step, ledger: Step
) -> float:
    """Save rows and offsets in the order that the delivery's name means; return the time that the
    last commit took."""
    took = 0.0
    for transaction in in_order(delivery, rows, ledger):
        for step in transaction:
            step()
            reach("rows-written" if step is rows else "ledger-moved", batch)
        reach("commit-sent", batch)
        started = time.perf_counter()
        connection.commit()
        took = time.perf_counter() - started
        reach("committed", batch)
    return took


@contextmanager
def savepoint(connection: Connected) -> Iterator[None]:
    """Undo what is done in here if it fails, and nothing else. The savepoint is released in either
    case: one that is left stays open below all that come after it."""
    connection.rows("SAVEPOINT tallygate_part")
    try:
        yield
    except Exception as error:
        connection.rows("ROLLBACK TO SAVEPOINT tallygate_part")
        connection.rows("RELEASE SAVEPOINT tallygate_part")
        if (refusal := driver_refusal(error)) is not None:
            raise refusal from error
        raise
    connection.rows("RELEASE SAVEPOINT tallygate_part")


@dataclass(frozen=True, kw_only=True)
class RowWriter:
    """Everything that a task needs to know; it is pickled and sent to the workers."""

    dsn: str
    target: str
    """The target's name, for messages."""
    schema: str
    table: str
    """Where the rows go: the target table, or a staging table."""
    columns: pa.Schema
    claim: Claim
    delivery: str
    batch: int
    careful: bool
    epochs: Mapping[TopicPartition, int]
    """Of the leaders that had the ends of the batch's ranges."""
    known: KnownTable | None = None
    """The target table, as the run found it."""
    lock_wait: float = LOCK_WAIT

    def commit_partitions(self, blocks: Blocks, report: TaskReport) -> None:
        """A task of the strategy `partition`: its rows and the positions of the partitions that it
        holds, committed by itself.

        A second attempt of the same task, after a failure or by speculation, finds the ledger
        moved: its rows are rolled back, and the driver sees that nothing is left to do."""
        incoming = iter(blocks)
        first = next(incoming, None)
        if first is None and not blocks.partitions:
            return  # which partition this was is not known here: the driver moves it
        given = chain([first] if first else [], incoming)
        with translate_errors(self.target), self._connection() as connection:

            def rows() -> None:
                report.rows = self.ingest(connection, given, blocks.letters)
                self._keep(connection, blocks.letters)

            def ledger() -> None:
                with bounded(self.dsn, connection, self.lock_wait):
                    check_claim(connection, self.claim, self.known)
                    move(connection, self.claim, blocks.ranges, self.epochs)

            report.commit = commit_in_order(connection, self.delivery, self.batch, rows, ledger)

    def stage(self, blocks: Blocks, report: TaskReport) -> None:
        """A task of the strategy `staged`: its rows go to the staging table under a name of this
        attempt, of which the driver hears only if the attempt succeeds."""
        report.attempt = uuid.uuid4().hex
        with translate_errors(self.target), self._connection() as connection:
            report.rows = self.marked().ingest(connection, blocks, blocks.letters, report.attempt)
            if blocks.letters:
                check_claim(connection, self.claim)
                self._keep(connection, blocks.letters)
            connection.commit()

    def _keep(self, connection: Connected, letters: list[Letter]) -> None:
        """Keep dead letters, which another attempt that hangs may be keeping too."""
        if letters:
            with bounded(self.dsn, connection, self.lock_wait):
                keep_letters(connection, self.claim, letters)

    def _connection(self) -> AbstractContextManager[Connected]:
        return pooled(self.dsn, careful=self.careful, name=session_name(self.claim))

    def marked(self) -> "RowWriter":
        """One whose rows say of which attempt they are."""
        return replace(self, columns=self.columns.append(pa.field("_attempt", pa.string())))

    def ingest(
        self,
        connection: Connected,
        incoming: Iterable[Block],
        letters: list[Letter],
        attempt: str | None = None,
    ) -> int:
        """COPY all blocks; if this is careful, rows that are refused become dead letters."""
        watched = self._watched(incoming)
        if not self.careful:
            sent = (self._sent(block.rows, attempt) for block in watched)
            return connection.ingest(self.schema, self.table, sent, self.columns)
        connection.rows("SET CONSTRAINTS ALL IMMEDIATE")
        return sum(self._carefully(connection, block, letters, attempt) for block in watched)

    def _watched(self, incoming: Iterable[Block]) -> Iterator[Block]:
        for number, each in enumerate(incoming):
            yield each
            if number == 0:
                reach("rows-begun", self.batch)

    def _carefully(
        self, connection: Connected, block: Block, letters: list[Letter], attempt: str | None
    ) -> int:
        def write(low: int, high: int) -> int:
            part = self._sent(block.rows.slice(low, high - low), attempt)
            with savepoint(connection):
                return connection.ingest(self.schema, self.table, [part], self.columns)

        def set_aside(index: int, error: Exception) -> None:
            where = None if block.coordinates is None else block.coordinates.slice(index, 1)
            names = [each for each in self.columns.names if each != "_attempt"]
            letters.append(refused_row(block.rows.slice(index, 1).select(names), where, str(error)))

        return write_in_halves(block.rows.num_rows, write, set_aside, is_refusal)

    def _sent(self, rows: pa.RecordBatch, attempt: str | None) -> pa.RecordBatch:
        """The rows with the table's columns alone, in the types that are sent."""
        arrays = []
        for each in self.columns:
            if each.name == "_attempt" and attempt is not None:
                arrays.append(pa.repeat(pa.scalar(attempt), rows.num_rows))
                continue
            column = rows.column(each.name)
            if pa.types.is_nested(column.type) and pa.types.is_string(each.type):
                column = as_json(column)
            arrays.append(column if column.type == each.type else column.cast(each.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.columns)


def refused_row(row: pa.RecordBatch, coordinates: pa.RecordBatch | None, message: str) -> Letter:
    """A row that PostgreSQL refused, as a dead letter."""
    cause = said_by(message)
    (fields,) = shown(_as_unicode(row)).to_pylist()
    if coordinates is None:
        raise TargetError(
            f"PostgreSQL refuses a row: {cause}. The row, {fields}, does not have the coordinates "
            "of a record, so it cannot be set aside; change the transform or the table."
        )
    at = coordinates.to_pylist()[0]
    value = orjson.dumps(fields, default=str)
    return Letter(at["_topic"], at["_partition"], at["_offset"], cause, value=value).cut(MOST_KEPT)


def _as_unicode(row: pa.RecordBatch) -> pa.RecordBatch:
    """The row with texts that Python can have: what is refused may be bytes that are no text."""
    columns = [
        pa.array([str(column.cast(pa.binary())[0].as_py(), errors="replace")])
        if pa.types.is_string(column.type) and column.null_count == 0
        else column
        for column in row.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=row.schema.names)


def said_by(message: object) -> str:
    """What PostgreSQL said, without what the driver put around it."""
    _, found, said = str(message).partition("ERROR:")
    lines = (said if found else str(message)).strip().splitlines()
    return lines[0].strip().rstrip(".") if lines else str(message)
