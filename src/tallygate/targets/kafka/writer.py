"""What writes records to Kafka, in a task of Spark's: rows and ledger in one transaction."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import pyarrow as pa
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from pyspark import TaskContext

from tallygate.core.decoding import COORDINATES, Decoder, fit_records
from tallygate.core.letters import Coordinates, Letter, letter_of
from tallygate.core.offsets import MovedError, Place, Range
from tallygate.errors import (
    FencedError,
    LedgerError,
    LostRangeError,
    TargetError,
    TopicError,
    UnreachableError,
)
from tallygate.failpoints import reach
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.kafka.fetch import HEADERS
from tallygate.kafka.producer import (
    ANSWER_TIMEOUT,
    REFUSED,
    Failures,
    abort,
    producer_properties,
    settle,
)
from tallygate.targets.kafka.ledger import (
    GroupClaim,
    Held,
    Names,
    commit_offsets,
    open_producer,
)
from tallygate.targets.kafka.limits import Limits
from tallygate.targets.kafka.sending import Header, RecordRows, produce, send_letters
from tallygate.targets.task_report import Report, raised_as, trimmed

__all__ = ["SOURCE", "KafkaWriter", "as_key"]

SOURCE = "tallygate.source"
"""The header that says where a record came from."""


@dataclass(frozen=True)
class KafkaWriter:
    """Everything that a task needs to know; it is pickled and sent to the workers."""

    connection: Connection
    topic: str
    letters_topic: str
    claims: tuple[GroupClaim, ...]
    """One for a narrow plan; one a lane after a shuffle."""
    names: Names
    delivery: str
    batch: int
    ranges: Mapping[Place, Range]
    trim: bool
    carries: bool
    located: bool
    """Whether records say where they are from, if that is known."""
    decoder: Decoder | None = None
    key: str | None = None
    limits: Limits | None = None
    """Of the topic, once it has refused something."""

    def write(
        self, source: Iterable[pa.RecordBatch], places: Iterable[Place]
    ) -> Iterator[pa.RecordBatch]:
        """A narrow task: the rows of one source partition and its offset."""
        yield from self._reported(iter(source), self._write, _Work(next(iter(places), None)))

    def write_lane(self, source: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """A task after a shuffle: the rows of one lane, and all source offsets in its group."""
        yield from self._reported(iter(source), self._write_lane, _Work())

    def begin(self, claim: GroupClaim, transactional_id: str, ranges: Iterable[Range]) -> None:
        """Write down where partitions begin, all at once, and fenced as what follows; for the
        driver."""
        starts = sorted(replace(each, until=each.start) for each in ranges)
        if not starts:
            return

        def begun(held: Mapping[Place, Held]) -> list[TopicPartition]:
            return claim.offsets(starts, held) if claim.check(starts, held) else []

        places = [each.place for each in starts]
        commit_offsets(self.connection, claim, transactional_id, places, begun)

    def move(self, ranges: Iterable[Range]) -> None:
        """Move the offsets of partitions that gave no rows; for the driver."""
        for each in ranges:
            name = self.names.place_id(each.place)
            self._commit(_Transfer(self.claims[0], name, [each], iter(()), _Work()))

    def _reported(
        self,
        source: Iterator[pa.RecordBatch],
        work: Callable[[Iterator[Any], "_Work"], None],
        done: "_Work",
    ) -> Iterator[pa.RecordBatch]:
        started = time.perf_counter()
        try:
            work(done.timed(source), done)
        except (FencedError, LostRangeError, TargetError) as error:
            done.report.problem, done.report.message = raised_as(error), str(error)
        except (KafkaException, MovedError, TopicError, UnreachableError) as error:
            done.report.problem, done.report.message = "retry", str(error)
        total = time.perf_counter() - started
        done.report.write = total - done.report.read - done.report.commit
        yield done.report.block()

    def _write(self, source: Iterator[pa.RecordBatch], work: "_Work") -> None:
        blocks = self._blocks(source, work)
        first = next(blocks, None)
        if work.place is None:
            return
        work.report.places = {work.place}
        wanted = [self.ranges[work.place]]
        rest = chain([first] if first else [], blocks)
        name = self.names.place_id(work.place)
        self._commit(_Transfer(self.claims[0], name, wanted, rest, work))

    def _write_lane(self, source: Iterator[pa.RecordBatch], work: "_Work") -> None:
        context = TaskContext.get()
        assert context is not None
        lane = context.partitionId()
        wanted = sorted(self.ranges.values())
        blocks = self._blocks(source, work)
        name = self.names.lane_id(lane)
        self._commit(_Transfer(self.claims[lane], name, wanted, blocks, work))

    def _commit(self, transfer: "_Transfer") -> None:
        """Save rows and offsets in the order that the delivery's name means."""
        consumer = clients.consumer(self.connection, group_id=transfer.claim.group)
        try:
            if self.delivery == "exactly-once":
                # Opened before the offsets are read: this ends what an older producer left open.
                failures = Failures()
                name = transfer.transactional_id
                producer = open_producer(self.connection, name, failures, **self._sized())
                if transfer.is_due(consumer):
                    self._in_transaction(producer, consumer, transfer, failures)
            elif transfer.is_due(consumer):
                self._apart(consumer, transfer)
        finally:
            consumer.close()

    def _in_transaction(
        self,
        producer: Producer,
        consumer: Consumer,
        transfer: "_Transfer",
        failures: Failures,
    ) -> None:
        try:
            producer.begin_transaction()
            self._send(producer, transfer)
            settle(producer, failures)
            reach("rows-written", self.batch)
            producer.send_offsets_to_transaction(
                transfer.offsets(), consumer.consumer_group_metadata(), ANSWER_TIMEOUT
            )
            reach("ledger-moved", self.batch)
            reach("commit-sent", self.batch)
            started = time.perf_counter()
            producer.commit_transaction(ANSWER_TIMEOUT)
            transfer.work.report.commit = time.perf_counter() - started
            reach("committed", self.batch)
        except KafkaException as error:
            code = error.args[0].code()
            if code in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED):
                raise MovedError(
                    "the transaction was fenced: another attempt or another run opened the same id"
                ) from error
            abort(producer)
            self._check_refused([*failures.known, (self.topic, error.args[0])])
            raise
        except BaseException:
            abort(producer)
            raise

    def _apart(self, consumer: Consumer, transfer: "_Transfer") -> None:
        """At least once: the rows, then the offsets. At most once: the other way round."""
        failures = Failures()
        producer = clients.producer(
            self.connection,
            **{**producer_properties(any_size=True), **self._sized()},
            delivery_report_only_error=True,
            on_delivery=failures.note,
        )

        def rows() -> None:
            try:
                self._send(producer, transfer)
            except KafkaException as error:
                self._check_refused([(self.topic, error.args[0])])
                raise
            left = producer.flush(ANSWER_TIMEOUT)
            self._check_refused(failures.known)
            if left or failures.known:
                raise UnreachableError("Kafka did not acknowledge the rows in time")
            reach("rows-written", self.batch)

        def offsets() -> None:
            consumer.commit(offsets=transfer.offsets(), asynchronous=False)
            reach("ledger-moved", self.batch)

        steps = (offsets, rows) if self.delivery == "at-most-once" else (rows, offsets)
        for step in steps:
            step()
            reach("committed", self.batch)

    def _sized(self) -> dict[str, int]:
        """Records that are taken one by one are also refused if they are too large together."""
        if self.limits is None:
            return {}
        return {"batch_size": min(self.limits.largest, producer_properties()["batch_size"])}

    def _check_refused(self, failures: Iterable[tuple[str, KafkaError]]) -> None:
        """What a topic refuses once it refuses always: to try again would never end."""
        for topic, error in failures:
            if error.code() in REFUSED:
                raise TargetError(_DENIED.format(topic, error.str().rstrip(".")))

    def _send(self, producer: Producer, transfer: "_Transfer") -> None:
        count, work = 0, transfer.work
        for number, block in enumerate(transfer.blocks):
            produce(producer, self.topic, block)
            count += len(block.values)
            if number == 0:
                reach("rows-begun", self.batch)
        send_letters(producer, self.letters_topic, work.letters, self.claims[0].pipeline)
        work.report.rows, work.report.letters = count, len(work.letters)

    def _blocks(self, source: Iterator[pa.RecordBatch], work: "_Work") -> Iterator[RecordRows]:
        for raw in source:
            if not raw.num_rows:
                continue
            names = ("topic", "partition", "offset") if self.decoder else COORDINATES
            block = trimmed(raw, self.ranges, names) if self.trim else raw
            if not block.num_rows:
                continue
            if self.carries:
                work.note(block.column(names[0]), block.column(names[1]))
            keys = None
            if self.decoder is not None:
                decoded, unfit = self.decoder.decode(block)
                work.letters += [letter_of(block, each.index, each.cause) for each in unfit]
                block = fit_records(block, unfit)
                if not block.num_rows:
                    continue
                if self.key is not None:
                    keys = as_key(decoded.column(self.key))
            rows = self._rows(block, block.column("key") if keys is None else keys, names)
            yield rows if self.limits is None else self._allowed(rows, self.limits, block, work)

    def _allowed(
        self, rows: RecordRows, limits: Limits, block: pa.RecordBatch, work: "_Work"
    ) -> RecordRows:
        """What the topic takes; the rest becomes dead letters."""
        found = {
            index: cause
            for index, record in enumerate(rows)
            if (cause := limits.refusal(*record)) is not None
        }
        if found and not self.carries:
            cause = next(iter(found.values()))
            raise TargetError(
                _DENIED.format(self.topic, cause)
                + " It cannot be set aside, since it does not carry the coordinates of a record."
            )
        if not found:
            return rows
        raw = block.rename_columns([name.removeprefix("_") for name in block.schema.names])
        for index, cause in found.items():
            letter = letter_of(raw, index, cause, is_row=self.decoder is None)
            if letter.at not in work.refused:  # of several rows of a record one is enough
                work.refused.add(letter.at)
                work.letters.append(letter)
        return rows.without(found)

    def _rows(self, block: pa.RecordBatch, keys: pa.Array, names: tuple[str, ...]) -> RecordRows:
        headers: list[list[Header]] | None = None
        if HEADERS.name in block.schema.names:
            own = block.column(HEADERS.name)
            if own.null_count < len(own):
                headers = [_pairs(each) for each in own.to_pylist()]
        if self.located and self.carries:
            begin = f"{block.column(names[0])[0].as_py()}/{block.column(names[1])[0].as_py()}@"
            offsets = block.column(names[2]).to_pylist()
            where: list[Header] = [(SOURCE, begin + str(offset)) for offset in offsets]
            if headers is None:
                headers = [[each] for each in where]
            else:
                headers = [_marked(*each) for each in zip(headers, where, strict=True)]
        return RecordRows(block.column("value").to_pylist(), keys.to_pylist(), headers)


def as_key(column: pa.Array) -> pa.Array:
    """A column as keys of records: bytes as they are, all else as text."""
    binary = pa.types.is_binary(column.type)
    return column if binary else column.cast(pa.string()).cast(pa.binary())


def _pairs(headers: list[dict[str, Any]] | None) -> list[Header]:
    return [(each["key"], each["value"]) for each in headers or ()]


def _marked(own: list[Header], where: Header) -> list[Header]:
    """A record's own headers and where it is from; it may come from a topic of another pipeline,
    and have such a mark already."""
    return [*(each for each in own if each[0] != SOURCE), where]


_DENIED = (
    "topic {!r} refuses a record: {}. Nothing of the batch is written. Raise the topic's "
    "max.message.bytes if the record is too large; if the topic is compacted, every record needs a "
    "key; or filter it out in the transform."
)


@dataclass
class _Work:
    """What a task has done so far."""

    place: Place | None = None
    """Known before it reads, or from the rows as they come."""
    letters: list[Letter] = field(default_factory=list)
    refused: set[Coordinates] = field(default_factory=set)
    """Records of which the topic would not have taken all."""
    held: Mapping[Place, Held] = field(default_factory=dict)
    """Where the group was before."""
    report: Report = field(default_factory=Report)

    def timed(self, source: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        while True:
            started = time.perf_counter()
            block = next(source, None)
            self.report.read += time.perf_counter() - started
            if block is None:
                return
            yield block

    def note(self, topics: pa.Array, partitions: pa.Array) -> None:
        """Remember the one place that the rows come from."""
        ends = {(topics[i].as_py(), partitions[i].as_py()) for i in (0, len(topics) - 1)}
        if len(ends | ({self.place} if self.place else set())) != 1:
            raise LedgerError(f"a task holds rows of {sorted(ends)}: the plan is not narrow.")
        self.place = ends.pop()


@dataclass(frozen=True)
class _Transfer:
    """Rows that are to be sent, and the ranges of offsets that they stand for."""

    claim: GroupClaim
    transactional_id: str
    wanted: list[Range]
    blocks: Iterator[RecordRows]
    work: _Work

    def is_due(self, consumer: Consumer) -> bool:
        self.work.held = self.claim.at(consumer, [each.place for each in self.wanted])
        return self.claim.check(self.wanted, self.work.held)

    def offsets(self) -> list[TopicPartition]:
        return self.claim.offsets(self.wanted, self.work.held)
