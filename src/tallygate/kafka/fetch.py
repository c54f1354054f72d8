"""Reading exact ranges of offsets as blocks of Arrow, with no JVM in between.

The caller has planned what to read: `[start, until)` of some partitions. Not every offset holds
a record for us: there are the markers of transactions, records of aborted ones, and what compaction
removed. So a range is over when Kafka has shown what comes after it: a record at `until - 1` or
beyond, or the partition's end there.

**Nothing is skipped in silence.** An offset is never reset. When Kafka says that an offset is not
there, it is asked where the log begins and ends: what lies before is lost, and a log that ends
before what was planned was cut off or recreated, so its offsets mean other records. An end within
the range does not end it, since right after a failover a leader may not yet show all that it has:
the reader waits there. After too long a silence the reading fails, and the caller plans it again.
"""

import contextlib
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import groupby
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as Offset

from tallygate.core.offsets import Range, TopicPartition, count
from tallygate.errors import LostRangeError, UnreachableError
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.kafka.headers import headers_of_each
from tallygate.kafka.topic_ids import check_ids
from tallygate.pool import Pool
from tallygate.units import FIRST_RECORD_MS, LAST_MS

RECORDS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)
"""A record as Spark's Kafka source gives it, without the columns that are never used."""
BARE = pa.schema([each for each in RECORDS if each.name != "timestamp"])
"""The same without what takes time to ask for, if the value is all that is looked at. The key is a
part of the record's size."""
HEADERS = pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
HEADERS_DDL = "array<struct<key:string,value:binary>>"
"""Come with it if they are asked for; and their type, as Spark calls it."""
BLOCK = 10_000
BLOCK_BYTES = 8 << 20
"""A block is full with so many records, or bytes: a small one takes longer to decode, a record."""
AT_ONCE = 1_000
"""Records that the client is asked for at a time. When they show that a range is over, its
partition is given up, and what else was fetched of it never becomes a Python object."""
AT_FIRST = 16
"""How large they are is not known before some are there. Then no more are asked for than make a
block, if they are as large: ten thousand of a megabyte would not fit into memory."""
LENGTHS = (8_192, 16_384, 32_768)
"""Ranges are told apart by their usual length, up to the last of these: what lies beyond the end of
one is fetched, unpacked and thrown away, in each partition of each batch. So as much is fetched at
a time as such a range may take, and more is asked for when less than a quarter of it is there."""
RECORD = 32
"""Bytes that a record is taken for, packed together with others. Less than for the shortest of the
lengths is never asked for: Kafka gives whole batches of records, and where each is larger than what
was asked for, those of one partition at a time. Many a producer makes them of 100 KiB and more."""
FETCH_SIZE = {"max.partition.fetch.bytes", "fetch.message.max.bytes"}
"""Two names of one property; what the user has set stays."""
LOOK_UP = 0.05
ANSWER_TIMEOUT = 10.0
PATIENCE = 30.0


def fetch(
    ranges: Iterable[Range],
    connection: Connection,
    patience: float = PATIENCE,
    *,
    headers: bool = False,
    bare: bool = False,
    apart: bool = False,
    ids: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[pa.RecordBatch]:
    """The records of the ranges in blocks, in order within a partition; `bare` ones have no
    timestamp. If they are to be `apart`, each block is of one partition.

    With the `ids` that the topics had when the ranges were planned, the end is reached only if they
    are still the same: a topic that was made again may have records at the same offsets."""
    planned = {each.topic_partition: each for each in ranges if len(each)}
    if planned:
        reading = _Reading(planned, connection, headers, bare)
        yield from _together(_read(reading, connection, patience), apart)
        check_ids({topic: ids[topic] for topic in ids.keys() & reading.topics}, connection)


def _read(
    reading: "_Reading", connection: Connection, patience: float
) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
    """What the client gives, as it comes."""
    with _pooled(connection, _length(reading.left.values())) as consumer:
        consumer.assign(reading.starts())
        heard = time.monotonic()
        at_once, largest = AT_FIRST, 0.0
        while reading.left:
            # A call waits until it has as many as it was asked for, or until it is to look up.
            wanted = min(at_once, count(reading.left.values()))
            messages = consumer.consume(wanted, LOOK_UP)
            before = dict(reading.left)
            for partition, block in reading.blocks(messages):
                largest = max(largest, block.nbytes / block.num_rows)
                at_once = min(AT_ONCE, max(1, int(BLOCK_BYTES / largest)))
                yield partition, block
            done = [Offset(*partition) for partition in before.keys() - reading.left.keys()]
            if done:
                consumer.incremental_unassign(done)
            if reading.left != before:
                heard = time.monotonic()
            elif time.monotonic() > heard + patience:
                raise UnreachableError(
                    f"reading: Kafka at {connection.bootstrap_servers} has shown nothing of "
                    f"{min(reading.left.values())} for {patience:.0f} s."
                )
            if reading.refused:
                reading.check_refused(consumer)
                consumer.assign(reading.starts())


def _together(
    parts: Iterable[tuple[TopicPartition, pa.RecordBatch]], apart: bool
) -> Iterator[pa.RecordBatch]:
    kept: list[pa.RecordBatch] = []
    rows = size = 0
    last = None
    for partition, part in parts:
        if kept and (rows >= BLOCK or size >= BLOCK_BYTES or (apart and partition != last)):
            yield from _combined(kept)
            kept, rows, size = [], 0, 0
        kept.append(part)
        rows, size, last = rows + part.num_rows, size + part.nbytes, partition
    if kept:
        yield from _combined(kept)


def _combined(parts: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return parts if len(parts) == 1 else pa.Table.from_batches(parts).combine_chunks().to_batches()


def _length(ranges: Collection[Range]) -> int:
    usual = count(ranges) / len(ranges)
    return next((length for length in LENGTHS if usual <= length), LENGTHS[-1])


class _Reading:
    def __init__(
        self,
        left: dict[TopicPartition, Range],
        connection: Connection,
        headers: bool,
        bare: bool = False,
    ) -> None:
        self.left, self._connection = left, connection
        """What has not been seen yet."""
        self._headers, self._bare = headers, bare
        self.refused: set[TopicPartition] = set()
        """Where Kafka said that the offset is not there."""
        # Asking each message for its topic costs more than for its number.
        self.topics = {topic for topic, _ in left}
        self._only_topic = min(self.topics) if len(self.topics) == 1 else None

    def starts(self) -> list[Offset]:
        return [Offset(*each.topic_partition, each.start) for each in self.left.values()]

    def check_refused(self, consumer: Consumer) -> None:
        """Raise if records are lost that were to be read; else the refusal was an old one."""
        for partition in self.refused & self.left.keys():
            wanted = self.left[partition]
            first, end = clients.ends(consumer, partition, self._connection, ANSWER_TIMEOUT)
            if first > wanted.start:
                lost = min(first, wanted.until) - wanted.start
                raise LostRangeError(
                    f"{lost} records of {wanted} are gone; the earliest there is {first}."
                )
            if end < wanted.start:
                raise LostRangeError(_CUT.format(f"{_named(partition)} ends at {end}", wanted))
        self.refused.clear()

    def blocks(self, messages: list[Message]) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
        # `map` over a method takes two thirds of the time of a comprehension.
        records = messages
        if any(map(Message.error, messages)):
            records = [message for message in messages if message.error() is None]
        if self._only_topic is not None:
            numbers: Callable[[Message], int | None] = Message.partition
            for number, run in groupby(records, numbers):
                yield from self._taken((self._only_topic, number or 0), list(run))
        else:
            for partition, run in groupby(records, _partition_of):
                yield from self._taken(partition, list(run))
        if len(records) < len(messages):
            for message in messages:
                self._note(message)

    def _taken(
        self, partition: TopicPartition, run: list[Message]
    ) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
        wanted = self.left.get(partition)
        if wanted is None:
            return  # read ahead of the range's end
        offsets: list[int] = list(map(Message.offset, run))  # type: ignore[arg-type]
        if offsets[0] < wanted.start:
            raise LostRangeError(
                _CUT.format(f"{_named(partition)} went back to {offsets[0]}", wanted)
            )
        fit = bisect_left(offsets, wanted.until)
        self._seen(wanted, offsets[-1] + 1)
        if fit:
            block = _block(partition, run[:fit], offsets[:fit], BARE if self._bare else RECORDS)
            yield partition, block if not self._headers else _with_headers(block, run[:fit])

    def _seen(self, wanted: Range, until: int) -> None:
        if until >= wanted.until:
            del self.left[wanted.topic_partition]
        else:
            self.left[wanted.topic_partition] = Range(*wanted.topic_partition, until, wanted.until)

    def _note(self, message: Message) -> None:
        """Take in what is no record: the end of a partition, or an error."""
        error = message.error()
        if error is None:
            return
        partition, offset = _partition_of(message), message.offset() or 0
        if error.code() == KafkaError._PARTITION_EOF:
            if partition in self.left and offset > self.left[partition].start:
                self._seen(self.left[partition], offset)
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            if "truncation" in error.str() and partition in self.left:
                raise LostRangeError(_CUT.format(error.str(), self.left[partition]))
            self.refused.add(partition)
        elif error.code() not in clients.GROUPLESS:
            raise clients.translate(error, self._connection, "reading")


_CUT = "{}, and {} was to be read: its log was cut off, or the topic was recreated."


def _named(partition: TopicPartition) -> str:
    return f"{partition[0]}/{partition[1]}"


def _partition_of(message: Message) -> TopicPartition:
    return message.topic() or "", message.partition() or 0


def _block(
    partition: TopicPartition, run: list[Message], offsets: list[int], schema: pa.Schema
) -> pa.RecordBatch:
    columns = {
        "value": pa.array(list(map(Message.value, run)), pa.binary()),
        "topic": pa.repeat(pa.scalar(partition[0]), len(run)),
        "partition": pa.repeat(pa.scalar(partition[1], pa.int32()), len(run)),
        "offset": pa.array(offsets, pa.int64()),
        "key": pa.array(list(map(Message.key, run)), pa.binary()),
    }
    if schema is RECORDS:
        columns["timestamp"] = _times(run)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _times(run: list[Message]) -> pa.Array:
    """Null beyond the years 1900 to 9999: Kafka takes any number for a record's time."""
    times = pa.array([message.timestamp()[1] for message in run], pa.int64())
    ends = pc.min_max(times).as_py()
    if not FIRST_RECORD_MS <= ends["min"] <= ends["max"] <= LAST_MS:
        fit = pc.and_(pc.greater_equal(times, FIRST_RECORD_MS), pc.less_equal(times, LAST_MS))
        times = pc.if_else(fit, times, None)
    return times.cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))


def _with_headers(block: pa.RecordBatch, run: list[Message]) -> pa.RecordBatch:
    return block.append_column(HEADERS, pa.array(headers_of_each(run), HEADERS.type))


def _consumer(connection: Connection, length: int) -> Consumer:
    chosen = FETCH_SIZE & connection.librdkafka().keys()
    fetched = {} if chosen else {"max_partition_fetch_bytes": length * RECORD}
    return clients.consumer(
        connection,
        auto_offset_reset="error",
        enable_partition_eof=True,
        check_crcs=True,
        queued_min_messages=length // 4,
        queued_max_messages_kbytes=32 * 1024,
        # A fetch at the end of a partition waits for more, although the range's end is known.
        fetch_wait_max_ms=20,
        **fetched,
    )


_consumers: Pool[Consumer] = Pool()


@contextlib.contextmanager
def _pooled(connection: Connection, length: int) -> Iterator[Consumer]:
    """To connect takes longer than to read a small batch."""
    kind = length, tuple(sorted(connection.librdkafka().items()))
    with _consumers.taken(kind, lambda: _consumer(connection, length)) as consumer:
        yield consumer
        consumer.unassign()


def close_idle() -> None:
    """Close the connections that are not in use."""
    _consumers.close()
    clients.forget_shared()
