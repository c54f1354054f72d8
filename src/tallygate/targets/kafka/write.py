"""Writing a batch to Kafka: a transaction for each task, which holds rows and offsets.

  narrow     each task holds one source partition: its transaction commits that offset.
  lanes      after a shuffle rows are sent to a fixed number of lanes by what is settled in them
             (`LaneChoice`): each lane's transaction commits all source offsets, in a group of the
             lane's own.

A lane may be ahead of another by one batch after a crash. Spark repeats that batch with the same
rows, and each lane skips it or writes it by its own offsets.

Kafka aborts a transaction that takes too long. Rows of one partition are told apart by their
records, so they may take several (`Transfer.parts`); rows in lanes have one.

Where a delivery saves rows and offsets apart, each has a commit of its own. The offsets' is still a
transaction of that id: a run that was paused must not set back what a newer one has moved.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Offset

from tallygate.core.blocks import Block, Blocks
from tallygate.core.ledger import OtherTargetError
from tallygate.core.letters import Coordinates, Letter, letter_of
from tallygate.core.offsets import Range
from tallygate.delivery import in_order
from tallygate.errors import LedgerError, TargetError
from tallygate.failpoints import reach
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.kafka.producer import Failures, producer_properties, sized
from tallygate.kafka.topic_ids import ids_now
from tallygate.targets.base import TaskReport, WriteBatch, Written
from tallygate.targets.kafka.ledger import (
    GroupLedger,
    Names,
    commit_offsets,
    longest_transaction,
    open_producer,
)
from tallygate.targets.kafka.limits import Limits
from tallygate.targets.kafka.marks import Positions
from tallygate.targets.kafka.records import LANE, RecordRows, record_rows
from tallygate.targets.kafka.sending import (
    Outlet,
    denied,
    produce,
    raise_unknown_outcome,
    send_letters,
)
from tallygate.targets.kafka.transfer import BlockRows, Transfer
from tallygate.targets.task_report import slowest, unmoved


@dataclass(frozen=True, kw_only=True)
class BatchWriter:
    """Everything that a task needs to know to write its part of a batch; it travels to the
    workers."""

    connection: Connection
    topic: str
    letters_topic: str
    largest_letter: int
    """Bytes that the topic of dead letters takes at a time."""
    ledgers: tuple[GroupLedger, ...]
    """One if each task holds one partition; else one a lane."""
    delivery: str
    batch: int
    left: tuple[Range, ...]
    letters: tuple[Letter, ...] = ()
    """Records of the batch that are dead letters already."""
    narrow: bool
    """Whether each task holds the rows of one partition."""
    coordinates: bool
    """Whether records say where they are from, if that is known."""
    key: str | None = None
    limits: Limits | None = None
    """Of the topic, once it has refused something."""
    topic_id: str | None = None
    """What the topic was when the run began."""

    @property
    def _names(self) -> Names:
        return Names(self.ledgers[0].claim.pipeline)

    @property
    def _transactional(self) -> bool:
        return self.delivery == "exactly-once"

    def by_partition(self, batch: WriteBatch) -> Written:
        if not batch.input.keeps_partitions_whole():
            raise LedgerError(
                "the batch does not have one Spark partition for each partition of Kafka that it "
                "holds; remove the source's option minPartitions or maxRecordsPerPartition."
            )
        # Where partitions begin is written down at once, before any of them moves: one that is not
        # known when others of its topic are is one that was added, and begins at 0.
        if batch.new:
            first = min(each.topic_partition for each in batch.new)
            self.begin(self.ledgers[0], self._names.partition_id(first), batch.new)
        reports = batch.input.run(self.commit_partition, one_partition=True)
        with raise_unknown_outcome():
            for each in unmoved(batch.left, reports):
                self._commit_range(each)
        return _written("narrow", reports)

    def by_lane(self, batch: WriteBatch) -> Written:
        reports = batch.input.run_in_lanes(self.commit_lane, len(self.ledgers), LANE)
        return _written("lanes", reports)

    def begin(self, ledger: GroupLedger, transactional_id: str, ranges: Iterable[Range]) -> None:
        """Write down where partitions begin, all at once, and fenced as what follows."""
        starts = sorted(replace(each, until=each.start) for each in ranges)

        def begun(positions: Positions) -> list[Offset]:
            return ledger.ends(starts, positions) if ledger.is_due(starts, positions) else []

        with raise_unknown_outcome():
            commit_offsets(
                ledger,
                [each.topic_partition for each in starts],
                begun,
                connection=self.connection,
                transactional_id=transactional_id,
            )

    def commit_partition(self, blocks: Blocks, report: TaskReport) -> None:
        """A task: the rows of one source partition, and its offset."""
        with raise_unknown_outcome():
            rows = self._records(blocks, blocks.letters)
            first = next(rows, None)  # which tells the partition
            if not blocks.partitions:
                return
            (wanted,) = blocks.ranges
            rest = rows if first is None else chain([first], rows)
            self._commit_range(wanted, rows=rest, letters=blocks.letters, report=report)

    def commit_lane(self, blocks: Blocks, report: TaskReport) -> None:
        """A task after a shuffle: the rows of one lane, and all source offsets in its group. The
        first lane has the dead letters that came with the batch."""
        if blocks.lane == 0:
            blocks.letters += self.letters
        transfer = Transfer(
            ledger=self.ledgers[blocks.lane],
            transactional_id=self._names.lane_id(blocks.lane),
            wanted=sorted(self.left),
            rows=self._records(blocks, blocks.letters),
            letters=blocks.letters,
            report=report,
        )
        with raise_unknown_outcome():
            self._commit(transfer)

    def _commit_range(
        self, wanted: Range, letters: list[Letter] | None = None, **given: Any
    ) -> None:
        letters = [] if letters is None else letters
        letters += [each for each in self.letters if wanted.topic_partition == each.at[:2]]
        self._commit(
            Transfer(
                ledger=self.ledgers[0],
                transactional_id=self._names.partition_id(wanted.topic_partition),
                wanted=[wanted],
                letters=letters,
                **given,
            )
        )

    def _commit(self, transfer: Transfer) -> None:
        """Save rows and offsets in the order that the delivery's name means."""
        failures = Failures()
        consumer = clients.consumer(self.connection, group_id=transfer.ledger.group)
        try:
            # Opened before the offsets are read: this ends what an older producer left open.
            fenced = open_producer(
                self.connection, transfer.transactional_id, failures, **self._sized
            )
            if not transfer.is_due(consumer):
                return
            out = Outlet(
                producer=fenced if self._transactional else self._producer(failures),
                fenced=fenced,
                consumer=consumer,
                failures=failures,
                transactional=self._transactional,
                longest=longest_transaction(self.connection),
            )
            divisible = self.narrow and self._transactional
            for part in transfer.parts(out.longest / 2) if divisible else [transfer]:
                self._save(out, part)
        finally:
            consumer.close()

    def _save(self, out: Outlet, part: Transfer) -> None:
        for steps in in_order(
            self.delivery, lambda: self._send(out, part), lambda: self._move(out, part)
        ):
            with self._transaction(out, part.report):
                for step in steps:
                    step()

    @property
    def _sized(self) -> dict[str, int]:
        """Records that are taken one by one are also refused if they are too large together."""
        taken = self.largest_letter if self.limits is None else self.limits.largest
        return sized(min(taken, self.largest_letter))

    def _producer(self, failures: Failures) -> Producer:
        """Of rows that no transaction holds."""
        return clients.producer(
            self.connection,
            **{**producer_properties(any_size=True), **self._sized},
            delivery_report_only_error=True,
            on_delivery=failures.note,
        )

    @contextmanager
    def _transaction(self, out: Outlet, report: TaskReport) -> Iterator[None]:
        """Commit what is done in here, if it is a transaction."""
        started = time.perf_counter()
        with out.transaction():
            yield
            if out.transactional:
                reach("commit-sent", self.batch)
                started = time.perf_counter()
        if out.transactional:
            report.commit += time.perf_counter() - started
        reach("committed", self.batch)

    def _send(self, out: Outlet, transfer: Transfer) -> None:
        for number, block in enumerate(transfer.rows):
            produce(out.producer, self.topic, block.rows)
            transfer.report.rows += len(block.rows.values)
            if number == 0:
                reach("rows-begun", self.batch)
        pipeline = transfer.ledger.claim.pipeline
        letters, largest = transfer.due_letters(), self.largest_letter
        send_letters(out.producer, self.letters_topic, letters, pipeline, largest)
        out.settle()
        self.check_topic()
        reach("rows-written", self.batch)

    def check_topic(self) -> None:
        """Raise if the topic was deleted and made again: nothing that went into the new one is to
        be committed. Brokers that are late may still know the old one, so it is asked for in each
        transaction and once more after a batch."""
        if self.topic_id is not None:
            now = ids_now([self.topic], self.connection).get(self.topic, self.topic_id)
            if now != self.topic_id:
                raise OtherTargetError.of(f"topic {self.topic}")

    def _move(self, out: Outlet, transfer: Transfer) -> None:
        out.move(transfer.offsets())
        reach("ledger-moved", self.batch)

    def _records(self, blocks: Iterable[Block], letters: list[Letter]) -> Iterator[BlockRows]:
        refused: set[Coordinates] = set()
        for block in blocks:
            rows = record_rows(block, self.key, coordinates=self.coordinates and self.narrow)
            if self.limits is not None:
                rows = self._allowed(rows, self.limits, block, refused, letters)
            yield BlockRows.of(block, rows)

    def _allowed(
        self,
        rows: RecordRows,
        limits: Limits,
        block: Block,
        refused: set[Coordinates],
        letters: list[Letter],
    ) -> RecordRows:
        """What the topic takes; the rest becomes dead letters, of several rows of a record one.
        In lanes those rows are apart, and none of them knows of the others."""
        found = {
            index: cause
            for index, record in enumerate(rows)
            if (cause := limits.refusal(*record)) is not None
        }
        if not found:
            return rows
        if not self.narrow or block.coordinates is None:
            raise TargetError(
                denied(self.topic, next(iter(found.values())))
                + " It cannot be set aside: after a shuffle a row is not of one record alone."
            )
        raw = block.raw
        if raw is None:
            names = [name.removeprefix("_") for name in block.rows.schema.names]
            raw = block.rows.rename_columns(names)
        for index, cause in found.items():
            letter = letter_of(raw, index, cause, is_row=block.raw is None)
            if letter.at not in refused:
                refused.add(letter.at)
                letters.append(letter)
        return rows.without(found)


def _written(strategy: str, reports: list[TaskReport]) -> Written:
    return Written(strategy, sum(report.rows for report in reports), slowest(reports))
