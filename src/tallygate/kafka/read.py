"""Reading topics for people and programs: from anywhere, to the end or on and on.

Without a group partitions are assigned outright and nothing is committed. With one, the group's
offsets are where reading starts, and they are committed after each batch was handed on.

`exit_at_end` means the end as it was when reading began: what is written meanwhile is left for
another time, so reading ends even while others write.

**Who has committed reads what was committed.** Kafka answers a commit when it is decided, and only
then writes the transaction's end to each partition: until it is there, the records are as hidden as
those of a transaction that is open. So transactions that are open when reading begins are given a
moment to end; one that takes longer hides what comes after it, and reading stops before it.
"""

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from confluent_kafka import (
    OFFSET_END,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from tallygate.core.record import Record
from tallygate.errors import LostRangeError, TopicError, UnreachableError
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.kafka.headers import headers_of
from tallygate.settings import nearest
from tallygate.waiting import wait_until

BATCH = 10_000
ANSWER_TIMEOUT = 10.0
MOMENT = 2.0
"""How long open transactions are waited for. A commit takes some milliseconds to be seen, or a few
hundred while brokers are busy."""

Ends = dict[tuple[str, int], int]


class From(StrEnum):
    beginning = "beginning"
    end = "end"
    offset = "offset"
    timestamp = "timestamp"
    tail = "tail"


@dataclass(frozen=True)
class Reading:
    """What to read."""

    topics: Sequence[str]
    start: From = From.beginning
    value: int = 0
    """The offset, the timestamp in ms, or for a tail how many records of each partition."""
    group: str | None = None
    partitions: Sequence[int] | None = None
    exit_at_end: bool = False
    committed_only: bool = True
    limit: int | None = None
    timeout: float = ANSWER_TIMEOUT


def read(what: Reading, connection: Connection) -> Iterator[list[Message]]:
    """Batches of messages; empty ones while there is nothing, so that the caller can look up."""
    isolation = "read_committed" if what.committed_only else "read_uncommitted"
    consumer = clients.consumer(
        connection,
        group_id=what.group or "tallygate.none",
        isolation_level=isolation,
        auto_offset_reset="error" if what.group is None else "earliest",
        enable_partition_eof=True,
        queued_max_messages_kbytes=32 * 1024,
        partition_assignment_strategy="cooperative-sticky",
        # A broker that has nothing more holds its answer back for so long, and with it the end.
        **({"fetch_wait_max_ms": 20} if what.exit_at_end else {}),
    )
    try:
        found = _partitions(what, consumer, connection)
        ends = _ends(what, found, connection) if what.exit_at_end else None
        if what.group is None:
            consumer.assign(_starts(what, found, connection))
        else:
            consumer.subscribe(list(what.topics))
        yield from _batches(what, consumer, connection, ends)
    finally:
        consumer.close()


def records_in(topic: str, connection: Connection) -> list[Record]:
    """All that a topic holds now."""
    batches = read(Reading([topic], exit_at_end=True), connection)
    return [to_record(message) for batch in batches for message in batch]


def to_record(message: Message) -> Record:
    """To be called once for a message (see `headers`)."""
    return Record(
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        message.timestamp()[1],
        _bytes(message.key()),
        _bytes(message.value()),
        headers_of(message),
    )


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _batches(
    what: Reading, consumer: Any, connection: Connection, ends: Ends | None
) -> Iterator[list[Message]]:
    open_ends = {key for key, end in (ends or {}).items() if end > 0}
    left = what.limit
    passing = clients.GROUPLESS if what.group is None else clients.PASSING
    while (ends is None or open_ends) and left != 0:
        messages = consumer.consume(BATCH, 0.2)
        batch = [message for message in messages if message.error() is None]
        if len(batch) < len(messages):
            for message in messages:
                _note(message, open_ends, connection, passing)
        if ends is not None and batch:
            batch = _within(batch, ends, open_ends, consumer)
        if left is not None:
            batch = batch[:left]
            left -= len(batch)
        yield batch
        if batch and what.group is not None:
            with clients.explain_errors(connection, f"committing for group {what.group!r}"):
                consumer.commit(offsets=_after(batch), asynchronous=False)


def _note(
    message: Message,
    open_ends: set[tuple[str, int]],
    connection: Connection,
    passing: Collection[int],
) -> None:
    """Take in what is no record: the end of a partition, or an error."""
    error = message.error()
    if error is not None and error.code() == KafkaError._PARTITION_EOF:
        open_ends.discard((message.topic() or "", message.partition() or 0))
    elif error is not None and error.code() not in passing:
        _raise(error, message, connection)


def _within(
    batch: list[Message], ends: Ends, open_ends: set[tuple[str, int]], consumer: Any
) -> list[Message]:
    """The batch without what lies beyond the ends. Positions are asked for once a batch: a look
    at every message's offset would cost more than reading it."""
    beyond = set()
    for position in consumer.position(consumer.assignment()):
        key = (position.topic, position.partition)
        if position.offset >= ends.get(key, 0):
            open_ends.discard(key)
        if position.offset > ends.get(key, 0):
            beyond.add(key)
    if not beyond:
        return batch
    return [
        m for m in batch if (m.offset() or 0) < ends.get((m.topic() or "", m.partition() or 0), 0)
    ]


def _after(batch: list[Message]) -> list[TopicPartition]:
    last = {(m.topic() or "", m.partition() or 0): (m.offset() or 0) + 1 for m in batch}
    return [TopicPartition(topic, number, offset) for (topic, number), offset in last.items()]


def _raise(error: KafkaError, message: Message, connection: Connection) -> None:
    if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        raise LostRangeError(
            f"offset {message.offset()} of {message.topic()}/{message.partition()} is not there "
            "any more (or not yet); `tallygate topic describe` shows which offsets are."
        )
    raise clients.translate(error, connection, "reading") from KafkaException(error)


def _partitions(what: Reading, consumer: Any, connection: Connection) -> list[tuple[str, int]]:
    with clients.explain_errors(connection, "asking for the topics"):
        known = consumer.list_topics(timeout=what.timeout).topics
    found = []
    for topic in what.topics:
        if topic not in known:
            raise TopicError(f"there is no topic {topic!r}{nearest(topic, known)}")
        numbers = sorted(known[topic].partitions)
        strange = set(what.partitions or ()) - set(numbers)
        if strange:
            raise TopicError(
                f"topic {topic!r} has no partition {min(strange)}; it has 0 to {numbers[-1]}."
            )
        found += [(topic, n) for n in numbers if what.partitions is None or n in what.partitions]
    return found


def _ends(what: Reading, partitions: list[tuple[str, int]], connection: Connection) -> Ends:
    """The end of each partition now, as far as it is seen."""
    ends = list_offsets(partitions, OffsetSpec.latest(), connection)  # type: ignore[no-untyped-call]
    if not what.committed_only:
        return ends
    with suppress(TimeoutError):
        wait_until(lambda: is_settled(ends, connection), MOMENT, "still open", error=TimeoutError)
    seen = _stable(ends, connection)
    return {partition: min(end, seen[partition]) for partition, end in ends.items()}


def is_settled(ends: Ends, connection: Connection) -> bool:
    """Whether no transaction is open before those ends."""
    seen = _stable(ends, connection)
    return all(seen[partition] >= end for partition, end in ends.items())


def _stable(partitions: Collection[tuple[str, int]], connection: Connection) -> Ends:
    """The last stable offset of each partition: where the first open transaction begins."""
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    return list_offsets(list(partitions), latest, connection, IsolationLevel.READ_COMMITTED)


def list_offsets(
    partitions: list[tuple[str, int]],
    spec: OffsetSpec,
    connection: Connection,
    level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> Ends:
    """One end of each partition, or where a time begins. A broker that has only just become the
    leader may not know of that yet, or of the topic, though all name it: it is asked again."""
    if not partitions:
        return {}
    admin = clients.shared_admin(connection)
    asked = {TopicPartition(topic, number): spec for topic, number in partitions}
    deadline = time.monotonic() + ANSWER_TIMEOUT

    def ends() -> Ends:
        # Without a connection that is up already, librdkafka often waits half a second for one.
        admin.list_topics(partitions[0][0], timeout=ANSWER_TIMEOUT)
        futures = admin.list_offsets(asked, isolation_level=level, request_timeout=ANSWER_TIMEOUT)
        try:
            return {(at.topic, at.partition): each.result().offset for at, each in futures.items()}
        except KafkaException as error:
            if error.args[0].code() not in clients.NOT_YET or time.monotonic() > deadline:
                raise
            return {}

    with clients.explain_errors(connection, "asking for offsets"):
        return wait_until(ends, 2 * ANSWER_TIMEOUT, "no end", error=UnreachableError)


def _starts(
    what: Reading, partitions: list[tuple[str, int]], connection: Connection
) -> list[TopicPartition]:
    earliest = list_offsets(partitions, OffsetSpec.earliest(), connection)  # type: ignore[no-untyped-call]
    if what.start is From.beginning:
        chosen: Ends = earliest
    elif what.start is From.end:
        chosen = list_offsets(partitions, OffsetSpec.latest(), connection)  # type: ignore[no-untyped-call]
    elif what.start is From.tail:
        latest = list_offsets(partitions, OffsetSpec.latest(), connection)  # type: ignore[no-untyped-call]
        chosen = {key: max(earliest[key], latest[key] - what.value) for key in latest}
    elif what.start is From.timestamp:
        chosen = list_offsets(partitions, OffsetSpec.for_timestamp(what.value), connection)
        chosen = {key: OFFSET_END if offset < 0 else offset for key, offset in chosen.items()}
    else:
        chosen = dict.fromkeys(partitions, what.value)
        low = [key for key in partitions if what.value < earliest[key]]
        if low:
            topic, number = low[0]
            raise LostRangeError(
                f"{earliest[low[0]] - what.value} records of {topic}/{number} from offset "
                f"{what.value} are gone; the earliest there is {earliest[low[0]]}."
            )
    return [TopicPartition(topic, number, offset) for (topic, number), offset in chosen.items()]
