"""Loading a file into a topic, plainly or so that each line gets there exactly once.

A transactional load keeps its position in Kafka itself: how many records of the file are in the
topic is committed, as a consumer group's offset, *inside the same transaction* as those records.
So the two cannot differ. A loader that starts

  1. opens its producer with the load's own transactional id, which ends whatever transaction an
     earlier loader left open and fences that loader for good,
  2. and only then reads the position, and goes on from there.

A commit whose answer is lost is neither done nor failed: after any error whose outcome is unknown
the loader starts again from step 1 and so asks Kafka. So it does after a request that was sent
twice, for the first may still come (`kafka/transactions.py`). A file that is not the one whose
position was kept is refused, by a digest of what was loaded so far at the file's beginning.
"""

import copy
import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka import Producer as RawProducer
from confluent_kafka.admin import OffsetSpec

from tallygate.errors import ConfigError, DeliveryError, FencedError, InputError
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.kafka.csv_cells import Cells
from tallygate.kafka.read import list_offsets
from tallygate.kafka.record_files import BadRow, Chunk, FileFormat, Position, read_chunks
from tallygate.kafka.record_template import RecordTemplate
from tallygate.kafka.transactions import TransactionalProducer

FINGERPRINT_BYTES = 64 * 1024
ROWS_PER_CHUNK = 10_000
DEAD_LETTER_BYTES = 10_000
TRIES = 10


@dataclass(frozen=True)
class Load:
    """What to load, and how."""

    topic: str
    file: str
    kind: FileFormat
    template: RecordTemplate = field(default_factory=RecordTemplate)
    cells: Cells = field(default_factory=Cells)
    """What the cells of a CSV file become."""
    encode: Callable[[Any], bytes] | None = None
    """Makes the value from the row's fields; without it a row is its text or its JSON."""
    properties: dict[str, Any] = field(default_factory=dict)
    """The producer's properties, by `producer_properties`."""
    rate: float | None = None
    transaction_size: int | None = None
    """Records for each transaction; None loads without transactions."""
    name: str | None = None
    """The name under which a transactional load keeps its position."""
    again: bool = False
    """Load from the beginning, whatever was loaded before under that name."""
    dead_letters: str | None = None
    """The topic for rows that cannot be read; None stops at the first."""

    @property
    def load_name(self) -> str:
        if self.name:
            return self.name
        path = str(Path(self.file).resolve())
        return f"{self.topic}.{hashlib.sha256(path.encode()).hexdigest()[:12]}"

    @property
    def group(self) -> str:
        return f"tallygate.load.{self.load_name}"


@dataclass
class LoadSummary:
    """What became of a load, so far or in the end."""

    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    dead_letters: int = 0
    bytes: int = 0
    retried: int = 0
    resumed_from: int = 0
    first_failure: str = ""
    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)
    """For each partition where it ended before and where it ends after. Others may have written
    there too; transactions take an offset of their own."""


Progress = Callable[[LoadSummary], None]


def load(what: Load, connection: Connection, progress: Progress = lambda _: None) -> LoadSummary:
    """Load the file; raise if anything could not be read or was not acknowledged."""
    if what.transaction_size is not None:
        if what.file == "-":
            raise ConfigError(
                "a transactional load needs a file: standard input cannot be read again."
            )
        if what.transaction_size < 1:
            raise ConfigError("--transaction-size must be 1 or more.")
        return _Transactional(what, connection, progress).run()
    return _Plain(what, connection, progress).run()


class _Loader:
    """What both kinds of loads share: reading, shaping, sending, counting."""

    def __init__(self, what: Load, connection: Connection, progress: Progress) -> None:
        self.what, self.connection, self.progress = what, connection, progress
        self.summary = LoadSummary()
        self._started = time.monotonic()
        self._paced = 0
        self.producer: RawProducer = self._open()
        self.partitions = self._count_partitions()
        self._begins = self._ends()

    def _open(self) -> RawProducer:
        return clients.producer(self.connection, **self._properties())

    def _properties(self) -> dict[str, Any]:
        return {
            **self.what.properties,
            "statistics_interval_ms": 1000,
            "stats_cb": self._count_retries,
            "on_delivery": self._failed,
            "delivery_report_only_error": True,
        }

    def _count_partitions(self) -> int:
        with clients.explain_errors(self.connection, f"asking for topic {self.what.topic!r}"):
            topics = self.producer.list_topics(timeout=10).topics
        return len(topics[self.what.topic].partitions)

    def _count_retries(self, statistics: str) -> None:
        brokers = json.loads(statistics)["brokers"].values()
        self.summary.retried = sum(broker["txretries"] for broker in brokers)

    def chunks(self, start: Position, rows: int) -> Iterator[Chunk]:
        if self.what.rate:
            rows = max(1, min(rows, int(self.what.rate / 10)))
        for chunk in read_chunks(
            self.what.file,
            self.what.kind,
            start=start,
            rows=rows,
            want_fields=self.what.template.needs_fields or self.what.encode is not None,
            cells=self.what.cells,
        ):
            yield chunk
            self._keep_pace(len(chunk.values))

    def _keep_pace(self, count: int) -> None:
        self._paced += count
        if self.what.rate:
            due = self._started + self._paced / self.what.rate
            while (left := due - time.monotonic()) > 0:
                self.producer.poll(min(left, 0.1))

    def send(self, chunk: Chunk) -> None:
        """Queue a chunk; the rows that cannot become records go the way of the bad ones."""
        bad = list(chunk.bad)
        if self.what.template.is_plain and self.what.encode is None:
            self._send_plain(chunk, bad)
        else:
            self._send_by_template(chunk, bad)
        for row in bad:
            self._refuse(row)
        self.summary.bytes += sum(map(len, chunk.values))
        self.producer.poll(0)
        self.count()

    def _send_plain(self, chunk: Chunk, bad: list[BadRow]) -> None:
        produce, topic = self.producer.produce, self.what.topic
        sent = 0
        for index, value in enumerate(chunk.values):
            try:
                produce(topic, value)
                sent += 1
            except BufferError:
                sent += self._send_one(chunk.numbers[index], value, {}, bad)
            except KafkaException as error:
                bad.append(self._oversized(chunk.numbers[index], value, error))
        self.summary.sent += sent

    def _send_by_template(self, chunk: Chunk, bad: list[BadRow]) -> None:
        what, fields = self.what, chunk.fields or [None] * len(chunk.values)
        for number, value, row in zip(chunk.numbers, chunk.values, fields, strict=True):
            try:
                arguments = what.template.arguments(row, self.partitions)
                payload = what.encode(row) if what.encode else value
            except InputError as error:
                bad.append(BadRow(number, str(error), value))
                continue
            self.summary.sent += self._send_one(number, payload, arguments, bad)

    def _send_one(
        self, number: int, value: bytes, arguments: dict[str, Any], bad: list[BadRow]
    ) -> int:
        while True:
            try:
                self.producer.produce(self.what.topic, value, **arguments)
                return 1
            except BufferError:
                self.producer.poll(0.05)
            except KafkaException as error:
                bad.append(self._oversized(number, value, error))
                return 0

    def _oversized(self, number: int, value: bytes, error: KafkaException) -> BadRow:
        """A record that is over the limit is the row's fault; every other error is not."""
        if error.args[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
            raise error
        return BadRow(number, f"is {len(value):,} bytes, over the producer's limit", value)

    def _refuse(self, row: BadRow) -> None:
        if self.what.dead_letters is None:
            raise InputError(
                f"{self.what.file}, record {row.number}: {row.reason}; mend it, or send such "
                "rows to the dead letters with --bad dead-letter."
            )
        headers: list[tuple[str, str | bytes | None]] = [
            ("tallygate.file", self.what.file),
            ("tallygate.record", str(row.number)),
            ("tallygate.cause", row.reason),
        ]
        if len(row.raw) > DEAD_LETTER_BYTES:
            headers.append(("tallygate.cut-from", str(len(row.raw))))
        while True:
            try:
                self.producer.produce(
                    self.what.dead_letters, row.raw[:DEAD_LETTER_BYTES], headers=headers
                )
                break
            except BufferError:
                self.producer.poll(0.05)
        self.summary.dead_letters += 1

    def _failed(self, error: KafkaError | None, _: Message) -> None:
        """Called for records that failed; to be called for each of millions would cost a third."""
        if error is not None:
            self.summary.failed += 1
            self.summary.first_failure = self.summary.first_failure or error.str()

    def count(self) -> LoadSummary:
        """Bring the summary up to date: what is neither queued nor failed is acknowledged."""
        summary = self.summary
        queued = len(self.producer)
        summary.acknowledged = max(0, summary.sent - summary.failed - queued)
        self.progress(summary)
        return summary

    def finish(self) -> LoadSummary:
        self.summary.offsets = {
            number: (self._begins[number], end) for number, end in self._ends().items()
        }
        self.summary.acknowledged = self.summary.sent - self.summary.failed
        self.progress(self.summary)
        return self.summary

    def _ends(self) -> dict[int, int]:
        """The end of each partition, open transactions included."""
        partitions = [(self.what.topic, number) for number in range(self.partitions)]
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        ends = list_offsets(partitions, latest, self.connection)
        return {number: ends[topic, number] for topic, number in partitions}


class _Plain(_Loader):
    """Without transactions: a load that is started again starts from the beginning."""

    def run(self) -> LoadSummary:
        try:
            for chunk in self.chunks(Position(), ROWS_PER_CHUNK):
                self.send(chunk)
        finally:
            self._flush()
        self.finish()
        if self.summary.failed:
            raise DeliveryError(
                f"{self.summary.failed:,} of {self.summary.sent:,} records were not acknowledged; "
                f"the first: {self.summary.first_failure}."
            )
        return self.summary

    def _flush(self) -> None:
        """Every record ends acknowledged or failed: librdkafka gives each its time-out."""
        while self.producer.flush(1):
            self.count()


class _TryAgainError(Exception):
    """The outcome of a transaction is unknown or it was aborted: begin again from the position."""


class _Transactional(_Loader):
    def __init__(self, what: Load, connection: Connection, progress: Progress) -> None:
        super().__init__(what, connection, progress)
        self._committed = copy.deepcopy(self.summary)
        self._run = secrets.token_hex(8)
        self._tries = 0

    def _open(self) -> RawProducer:
        """Step 1: a producer of this load's id, alone in the world once it is initialized."""
        given = self._properties()
        self._transactions = TransactionalProducer(
            self.connection, given.pop("transactional_id"), any_size=False, **given
        )
        return self._transactions.raw

    def run(self) -> LoadSummary:
        reader = clients.consumer(self.connection, group_id=self.what.group)
        try:
            while True:
                try:
                    if self._run_from(self._position(reader), reader):
                        return self.finish()
                    self.producer = self._open()
                except _TryAgainError as reason:
                    self._tries += 1
                    if self._tries == TRIES:
                        raise DeliveryError(
                            f"the load {self.what.load_name!r} failed {TRIES} times in a row: "
                            f"{reason}; what was committed stays, and the load can go on later."
                        ) from reason.__cause__
                    time.sleep(min(0.1 * 2**self._tries, 5))
                    self.producer = self._open()
        finally:
            reader.close()

    def _position(self, reader: Any) -> Position:
        """Step 2: where the load stands, by Kafka's word, if the file is still the same."""
        with clients.explain_errors(self.connection, f"asking how far {self.what.group!r} is"):
            (found,) = reader.committed([TopicPartition(self.what.topic, 0)], timeout=60)
        if found.offset < 0:
            return Position()
        kept = json.loads(found.metadata)
        if self.what.again and kept["run"] != self._run:
            return Position()
        position = Position(found.offset, kept["byte"])
        if position.byte > self._size() or kept["fingerprint"] != self._fingerprint(
            kept["fingerprinted"]
        ):
            raise InputError(
                f"{self.what.file} is not the file of which {position.records:,} records were "
                f"loaded as {self.what.load_name!r}; give this load another --load-name, or load "
                "from the beginning with --again."
            )
        self.summary.resumed_from = self.summary.resumed_from or position.records
        return position

    def _run_from(self, position: Position, reader: Any) -> bool:
        """Load what is left; return False if the producer is spent before that."""
        assert self.what.transaction_size is not None
        size = self.what.transaction_size
        pending, open_records, is_open = position, 0, False
        try:
            for chunk in self.chunks(position, min(size, ROWS_PER_CHUNK)):
                if not is_open:
                    if self._transactions.is_spent:
                        return False
                    self._transactions.begin()
                    is_open = True
                self.send(chunk)
                open_records += len(chunk.numbers) + len(chunk.bad)
                pending = chunk.end
                if open_records >= size:
                    self._commit(pending, reader)
                    open_records, is_open = 0, False
            if is_open:
                self._commit(pending, reader)
            return True
        except KafkaException as error:
            self._give_up_transaction(error.args[0], error)
        except BaseException:
            if is_open:
                self._transactions.abort()
            self._forget_open()
            raise

    def _forget_open(self) -> None:
        """What was not committed does not count."""
        self.summary = copy.deepcopy(self._committed)
        self.progress(self.summary)

    def _commit(self, position: Position, reader: Any) -> None:
        """Records and position in one transaction."""
        length = min(position.byte or self._size(), FINGERPRINT_BYTES)
        kept = {
            "run": self._run,
            "byte": position.byte,
            "fingerprint": self._fingerprint(length),
            "fingerprinted": length,
        }
        where = TopicPartition(self.what.topic, 0, position.records, json.dumps(kept))
        self.producer.send_offsets_to_transaction([where], reader.consumer_group_metadata(), 60)
        self._transactions.commit()
        self._tries = 0
        self.summary.acknowledged = self.summary.sent
        self._committed = copy.deepcopy(self.summary)

    def _give_up_transaction(self, error: KafkaError, cause: KafkaException) -> NoReturn:
        if error.code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED):
            raise FencedError(
                f"another loader of {self.what.load_name!r} took over; this one has stopped, and "
                "nothing of its open transaction will be seen."
            ) from cause
        self._transactions.abort()
        self._forget_open()
        raise _TryAgainError(error.str()) from cause

    def _size(self) -> int:
        return Path(self.what.file).stat().st_size

    def _fingerprint(self, length: int) -> str:
        with Path(self.what.file).open("rb") as file:
            return hashlib.sha256(file.read(length)).hexdigest()[:16]
