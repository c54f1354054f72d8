"""What writes records to Kafka, in a task of Spark's: rows and ledger in one transaction."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from pyspark import TaskContext

from tallygate.errors import FencedError, LedgerError, TopicError, UnreachableError
from tallygate.failpoints import reach
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.kafka.producer import producer_properties
from tallygate.ledger.group import ANSWER_TIMEOUT, GroupClaim, Held, Names, open_producer
from tallygate.ledger.letters import Letter, letter_of
from tallygate.ledger.ranges import MovedError, Place, Range
from tallygate.records.decoding import COORDINATES, Decoder
from tallygate.sinks.tasks import Report, trimmed

__all__ = ["KafkaWriter", "letter_headers", "send_letters"]


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
    headers: bool
    decoder: Decoder | None = None
    key: str | None = None

    def write(self, source: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """A narrow task: the rows of one source partition and its offset."""
        yield from self._reported(iter(source), self._write)

    def write_lane(self, source: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """A task after a shuffle: the rows of one lane, and all source offsets in its group."""
        yield from self._reported(iter(source), self._write_lane)

    def move(self, ranges: Iterable[Range]) -> None:
        """Move the offsets of partitions that gave no rows; for the driver."""
        for each in ranges:
            name = self.names.place_id(each.place)
            self._commit(_Transfer(self.claims[0], name, [each], iter(()), _Work()))

    def _reported(
        self, source: Iterator[pa.RecordBatch], work: Callable[[Iterator[Any], "_Work"], None]
    ) -> Iterator[pa.RecordBatch]:
        done = _Work()
        started = time.perf_counter()
        try:
            work(done.timed(source), done)
        except FencedError as error:
            done.report.problem, done.report.message = "fenced", str(error)
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
        work.report.topic, work.report.partition = work.place
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
                producer = open_producer(self.connection, transfer.transactional_id)
                if transfer.is_due(consumer):
                    self._in_transaction(producer, consumer, transfer)
            elif transfer.is_due(consumer):
                self._apart(consumer, transfer)
        finally:
            consumer.close()

    def _in_transaction(
        self, producer: Producer, consumer: Consumer, transfer: "_Transfer"
    ) -> None:
        try:
            producer.begin_transaction()
            self._send(producer, transfer)
            producer.flush()
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
            raise

    def _apart(self, consumer: Consumer, transfer: "_Transfer") -> None:
        """At least once: the rows, then the offsets. At most once: the other way round."""
        failures: list[KafkaError] = []
        producer = clients.producer(
            self.connection,
            **producer_properties(),
            delivery_report_only_error=True,
            on_delivery=lambda error, _: failures.append(error),
        )

        def rows() -> None:
            self._send(producer, transfer)
            if producer.flush(ANSWER_TIMEOUT) or failures:
                raise UnreachableError("Kafka did not acknowledge the rows in time")
            reach("rows-written", self.batch)

        def offsets() -> None:
            consumer.commit(offsets=transfer.offsets(), asynchronous=False)
            reach("ledger-moved", self.batch)

        steps = (offsets, rows) if self.delivery == "at-most-once" else (rows, offsets)
        for step in steps:
            step()
            reach("committed", self.batch)

    def _send(self, producer: Producer, transfer: "_Transfer") -> None:
        count, work = 0, transfer.work
        for number, block in enumerate(transfer.blocks):
            _produce(producer, self.topic, block)
            count += len(block.values)
            if number == 0:
                reach("rows-begun", self.batch)
        send_letters(producer, self.letters_topic, work.letters)
        work.report.rows, work.report.letters = count, len(work.letters)

    def _blocks(self, source: Iterator[pa.RecordBatch], work: "_Work") -> Iterator["_Rows"]:
        for raw in source:
            if not raw.num_rows:
                continue
            names = ("topic", "partition", "offset") if self.decoder else COORDINATES
            block = trimmed(raw, self.ranges, names) if self.trim else raw
            if not block.num_rows:
                continue
            if self.carries:
                work.note(block.column(names[0]), block.column(names[1]))
            if self.decoder is None:
                yield self._rows(block, block.column("value"), block.column("key"), names)
                continue
            decoded, unfit = self.decoder.decode(block)
            work.letters += [letter_of(block, each.index, each.cause) for each in unfit]
            if unfit:
                bad = {each.index for each in unfit}
                good = [index for index in range(block.num_rows) if index not in bad]
                block = block.take(pa.array(good, pa.int64()))
            keys = block.column("key")
            if self.key is not None:
                keys = decoded.column(self.key).cast(pa.string())
            yield self._rows(block, block.column("value"), keys, names)

    def _rows(
        self, block: pa.RecordBatch, values: pa.Array, keys: pa.Array, names: tuple[str, ...]
    ) -> "_Rows":
        if not (self.headers and self.carries):
            return _Rows(values.to_pylist(), keys.to_pylist(), None)
        begin = f"{block.column(names[0])[0].as_py()}/{block.column(names[1])[0].as_py()}@"
        headers: list[Any] = [
            [("tallygate.source", begin + str(offset))]
            for offset in block.column(names[2]).to_pylist()
        ]
        return _Rows(values.to_pylist(), keys.to_pylist(), headers)


@dataclass
class _Work:
    """What a task has done so far."""

    place: Place | None = None
    letters: list[Letter] = field(default_factory=list)
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
    blocks: Iterator["_Rows"]
    work: _Work

    def is_due(self, consumer: Consumer) -> bool:
        self.work.held = self.claim.at(consumer, [each.place for each in self.wanted])
        return self.claim.check(self.wanted, self.work.held)

    def offsets(self) -> list[TopicPartition]:
        return self.claim.offsets(self.wanted, self.work.held)


def letter_headers(letter: Letter) -> list[tuple[str, str]]:
    return [
        ("tallygate.topic", letter.topic),
        ("tallygate.partition", str(letter.partition)),
        ("tallygate.offset", str(letter.offset)),
        ("tallygate.timestamp", str(letter.time_ms or 0)),
        ("tallygate.tries", "1"),
        ("tallygate.cause", letter.cause[:1000]),
    ]


def send_letters(producer: Producer, topic: str, letters: Iterable[Letter]) -> None:
    given = list(letters)
    rows = _Rows(
        [each.value for each in given],
        [each.key for each in given],
        [letter_headers(each) for each in given],
    )
    _produce(producer, topic, rows)


@dataclass(frozen=True)
class _Rows:
    """A block of records to send, by columns: that is how Arrow gives them, and it is quickest."""

    values: list[bytes | None]
    keys: list[bytes | None]
    headers: list[Any] | None


def _produce(producer: Producer, topic: str, rows: _Rows) -> None:
    """Hand a block to the producer, waiting whenever its queue is full."""
    produce, none = producer.produce, [None] * len(rows.values)
    for value, key, headers in zip(rows.values, rows.keys, rows.headers or none, strict=True):
        while True:
            try:
                produce(topic, value, key, headers=headers)
                break
            except BufferError:
                producer.poll(0.05)
