"""What writes rows: in a task of Spark's, or on the driver for a small batch.

Rows come as blocks of Arrow, are decoded if the pipeline's transform needs no JVM, are trimmed to
what the ledger lacks, and go to the table by COPY as they come: no more than a block is in memory.

**A bad record neither blocks nor vanishes.** If PostgreSQL refuses a row, the whole transaction is
gone, and the batch is written again carefully: each block within a savepoint, and a block that is
refused is halved until the row is found, which becomes a dead letter in the same transaction.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tallygate.core.decoding import COORDINATES, Decoder
from tallygate.core.letters import Letter, letter_of
from tallygate.core.offsets import MovedError, Place, Range
from tallygate.errors import LedgerError, TargetError
from tallygate.failpoints import reach
from tallygate.postgres.arrow import Connected, is_gone, is_lost, is_refusal, pooled
from tallygate.postgres.plain import shown
from tallygate.targets.postgres.ledger import Claim
from tallygate.targets.postgres.nested import as_json
from tallygate.targets.task_report import Report, raised_as, trimmed

__all__ = ["Blocks", "Writer", "committed", "problem_of", "reason", "refused"]


def problem_of(error: BaseException) -> str | None:
    """Tell apart what the driver treats differently; None is a defect and not for retrying."""
    raised = raised_as(error)
    if raised is not None:
        return raised
    if isinstance(error, MovedError) or is_lost(error):
        return "retry"
    if is_refusal(error):
        return "refused"
    if is_gone(error):
        return "target"
    return None


def committed(
    connection: Connected,
    delivery: str,
    batch: int,
    rows: Callable[[], None],
    ledger: Callable[[], None],
) -> float:
    """Save rows and offsets in the order that the delivery's name means; return the commit's time.

    exactly-once: both in one transaction. at-least-once and idempotent: the rows, then the offsets,
    so that a crash in between writes the rows again. at-most-once: the offsets, then the rows, so
    that a crash in between loses them.
    """
    steps = {
        "exactly-once": [[rows, ledger]],
        "at-most-once": [[ledger], [rows]],
    }.get(delivery, [[rows], [ledger]])
    for transaction in steps:
        for step in transaction:
            step()
            reach("rows-written" if step is rows else "ledger-moved", batch)
        reach("commit-sent", batch)
        started = time.perf_counter()
        connection.commit()
        took = time.perf_counter() - started
        reach("committed", batch)
    return took


@dataclass
class Blocks:
    """Blocks on their way to the table: decoded, trimmed, in the table's own types."""

    writer: "Writer"
    source: Iterator[pa.RecordBatch]
    places: set[Place] = field(default_factory=set)
    """What the task holds: known before it reads, or from the rows as they come."""
    letters: list[Letter] = field(default_factory=list)
    seconds: float = 0.0
    failure: BaseException | None = None

    def __iter__(self) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch | None]]:
        """Each block as it is sent, and its rows' coordinates if they have any."""
        while True:
            started = time.perf_counter()
            try:
                raw = next(self.source, None)
                if raw is None:
                    return
                found = self._prepared(raw)
            except BaseException as error:
                self.failure = error
                raise
            finally:
                self.seconds += time.perf_counter() - started
            if found is not None:
                yield found

    def _prepared(self, raw: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch | None] | None:
        writer = self.writer
        if not raw.num_rows:
            return None
        if writer.decoder is not None:
            raw = writer.left(raw, ("topic", "partition", "offset"))
            decoded, unfit = writer.decoder.decode(raw)
            if raw.num_rows:
                self._note(raw.column("topic"), raw.column("partition"))
            self.letters += [letter_of(raw, each.index, each.cause) for each in unfit]
            raw = decoded
        elif writer.divisible:
            raw = writer.left(raw, COORDINATES)
        if not raw.num_rows:
            return None
        coordinates = raw.select(list(COORDINATES)) if writer.divisible else None
        if coordinates is not None and writer.decoder is None:
            self._note(coordinates.column("_topic"), coordinates.column("_partition"))
        return writer.sent(raw), coordinates

    def _note(self, topics: pa.Array, partitions: pa.Array) -> None:
        """Remember the one place that the rows come from, where there must be one."""
        if not self.writer.single:
            return
        ends = {(topics[i].as_py(), partitions[i].as_py()) for i in (0, len(topics) - 1)}
        numbers = pc.min_max(partitions).as_py()
        self.places |= ends
        if len(self.places) > 1 or numbers["min"] != numbers["max"]:
            raise LedgerError(
                f"a task holds rows of {sorted(self.places)}: the plan is not narrow."
            )


@dataclass(frozen=True)
class Writer:
    """Everything that a task needs to know; it is pickled and sent to the workers."""

    dsn: str
    schema: str
    table: str
    columns: pa.Schema
    claim: Claim
    delivery: str
    batch: int
    ranges: Mapping[Place, Range]
    """What is left to do, by place."""
    trim: bool
    divisible: bool
    single: bool
    """Whether each task must hold the rows of one place only, which it is to find out."""
    careful: bool
    decoder: Decoder | None = None

    def write(
        self, source: Iterable[pa.RecordBatch], places: Iterable[Place]
    ) -> Iterator[pa.RecordBatch]:
        """A task of the partition way: its rows and the ledger rows of the partitions that it
        holds, committed by itself.

        A second attempt of the same task, after a failure or by speculation, finds the ledger
        moved: its rows are rolled back, and the driver sees that nothing is left to do.
        """
        yield from self._reported(Blocks(self, iter(source), set(places)), self._write)

    def stage(
        self, source: Iterable[pa.RecordBatch], places: Iterable[Place]
    ) -> Iterator[pa.RecordBatch]:
        """A task of the staged way: its rows go to the staging table under an id of this attempt,
        of which the driver hears only if the attempt succeeds."""
        yield from self._reported(Blocks(self, iter(source), set(places)), self._stage)

    def _reported(
        self, blocks: Blocks, work: Callable[[Blocks, Report], None]
    ) -> Iterator[pa.RecordBatch]:
        report = Report()
        started = time.perf_counter()
        try:
            work(blocks, report)
        except Exception as error:
            cause = blocks.failure or error
            report.problem, report.message = problem_of(cause), str(cause)
            if report.problem is None:
                raise cause from None
        report.places = blocks.places
        report.letters, report.read = len(blocks.letters), blocks.seconds
        report.write = time.perf_counter() - started - report.read - report.commit
        yield report.block()

    def _write(self, blocks: Blocks, report: Report) -> None:
        incoming = iter(blocks)
        first = next(incoming, None)
        if first is None and not blocks.places:
            return  # which partition this was is not known here: the driver moves it
        with pooled(self.dsn, careful=self.careful) as connection:

            def rows() -> None:
                report.rows = self.ingest(
                    connection, chain([first] if first else [], incoming), blocks
                )
                self.claim.keep(connection, blocks.letters)

            def ledger() -> None:
                self.claim.check(connection)
                self.claim.move(connection, [self.ranges[at] for at in sorted(blocks.places)])

            report.commit = committed(connection, self.delivery, self.batch, rows, ledger)

    def _stage(self, blocks: Blocks, report: Report) -> None:
        report.attempt = uuid.uuid4().hex
        with pooled(self.dsn, careful=self.careful) as connection:
            report.rows = self.ingest(connection, blocks, blocks, report.attempt)
            if blocks.letters:
                self.claim.check(connection)
                self.claim.keep(connection, blocks.letters)
            connection.commit()

    def ingest(
        self,
        connection: Connected,
        incoming: Iterable[tuple[pa.RecordBatch, pa.RecordBatch | None]],
        blocks: Blocks,
        attempt: str | None = None,
    ) -> int:
        """COPY all blocks; rows that are refused become letters of `blocks`, if this is careful."""
        like = self.columns
        if attempt is not None:
            like = like.append(pa.field("_attempt", pa.string()))

        def marked(block: pa.RecordBatch) -> pa.RecordBatch:
            if attempt is None:
                return block
            marks = pa.repeat(pa.scalar(attempt), block.num_rows)
            return pa.RecordBatch.from_arrays([*block.columns, marks], schema=like)

        if not self.careful:
            sent = (marked(block) for block, _ in self._watched(incoming))
            return connection.ingest(self.schema, self.table, sent, like)
        connection.rows("SET CONSTRAINTS ALL IMMEDIATE")
        count = 0
        for block, coordinates in self._watched(incoming):
            whole = marked(block)
            count += self._carefully(connection, whole, coordinates, like, blocks.letters)
        return count

    def _watched(self, incoming: Iterable[Any]) -> Iterator[Any]:
        for number, each in enumerate(incoming):
            yield each
            if number == 0:
                reach("rows-begun", self.batch)

    def _carefully(
        self,
        connection: Connected,
        block: pa.RecordBatch,
        coordinates: pa.RecordBatch | None,
        like: pa.Schema,
        letters: list[Letter],
    ) -> int:
        connection.rows("SAVEPOINT tallygate_block")
        try:
            count = connection.ingest(self.schema, self.table, [block], like)
            connection.rows("RELEASE SAVEPOINT tallygate_block")
            return count
        except Exception as error:
            if not is_refusal(error):
                raise
            # Released too: one that is left stays open below all that come after it.
            connection.rows("ROLLBACK TO SAVEPOINT tallygate_block")
            connection.rows("RELEASE SAVEPOINT tallygate_block")
            if block.num_rows == 1:
                letters.append(refused(block, coordinates, str(error)))
                return 0
        half = block.num_rows // 2
        return sum(
            self._carefully(
                connection,
                block.slice(*part),
                None if coordinates is None else coordinates.slice(*part),
                like,
                letters,
            )
            for part in ((0, half), (half,))
        )

    def left(self, block: pa.RecordBatch, names: tuple[str, str, str]) -> pa.RecordBatch:
        """The rows that the ledger still lacks."""
        return trimmed(block, self.ranges, names) if self.trim else block

    def sent(self, block: pa.RecordBatch) -> pa.RecordBatch:
        """The block with the table's columns alone, in the types that are sent."""
        arrays = []
        for each in self.columns:
            column = block.column(each.name)
            if pa.types.is_nested(column.type) and pa.types.is_string(each.type):
                column = as_json(column)
            arrays.append(column if column.type == each.type else column.cast(each.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.columns)


def refused(row: pa.RecordBatch, coordinates: pa.RecordBatch | None, message: str) -> Letter:
    """A row that PostgreSQL refused, as a dead letter."""
    cause = reason(message)
    fields = {
        name: value for name, value in shown(row).to_pylist()[0].items() if name != "_attempt"
    }
    if coordinates is None:
        raise TargetError(
            f"PostgreSQL refuses a row: {cause}. The row, {fields}, does not carry the coordinates "
            "of a record, so it cannot be set aside; change the transform or the table."
        )
    place = coordinates.to_pylist()[0]
    value = orjson.dumps(fields, default=str)
    return Letter(place["_topic"], place["_partition"], place["_offset"], cause, value=value)


def reason(message: str) -> str:
    """What PostgreSQL said, without what the driver put around it."""
    _, found, said = message.partition("ERROR:")
    lines = (said if found else message).strip().splitlines()
    return lines[0].strip().rstrip(".") if lines else message
