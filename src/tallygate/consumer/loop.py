"""The loop of a consumer, which keeps a group's membership whatever the handler and the stores do.

The invariant of the loop: a record is handed to the delivery only while its partition is owned, in
offset order, and the loop goes past it only when the delivery has said that it is done and saved,
or that something else was written and saved in its stead. Whenever the outcome is unknown, the
store is asked for its position, and what it has is not done again.

While a record has to wait (its handler failed, the database is away) all partitions are paused and
the loop keeps polling: the group sees a healthy member, and no rebalance happens.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as Offset

from tallygate.consumer.dedup import Dedup
from tallygate.consumer.delivery import (
    AtLeastOnce,
    AtMostOnce,
    AutoCommit,
    Delivery,
    Handler,
    UnknownOutcomeError,
    ends,
)
from tallygate.consumer.into_kafka import ExactlyOnceKafka
from tallygate.consumer.into_postgres import ExactlyOncePostgres
from tallygate.consumer.letter_limits import LetterLimits
from tallygate.consumer.retry import Retry, fit_only, said
from tallygate.core.marks import number
from tallygate.core.offsets import TopicPartition
from tallygate.core.record import Output, Record
from tallygate.errors import HandlerError, LostRangeError
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.kafka.read import to_record

T = TypeVar("T")

_GROUP_DELIVERIES: Mapping[str, Callable[[Consumer, Connection, Handler], Delivery]] = {
    "at-most-once": AtMostOnce,
    "at-least-once": AtLeastOnce,
    "auto-commit": AutoCommit,
}


_NOT_PERMITTED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
}


@dataclass
class ConsumeSummary:
    handled: int = 0
    duplicates: int = 0
    retries: int = 0
    diverted: int = 0
    """Records that went to a retry topic or the dead letters."""
    outages: int = 0
    """How often a store did not answer or its outcome was unknown."""
    rebalances: int = 0


class Loop:
    """One member of a group, from its first poll to its leave."""

    def __init__(
        self,
        topics: list[str],
        connection: Connection,
        *,
        group: str,
        start: str,
        until: str,
        stop: threading.Event,
        batch_size: int,
        retry: Retry,
        limits: LetterLimits,
    ) -> None:
        self._limits = limits
        self._topics, self._group, self._start, self._until = topics, group, start, until
        self._stop, self._batch_size = stop, batch_size
        self._retry, self._connection = retry, connection
        self._retries = retry.retry_topics(group)
        self._summary = ConsumeSummary()
        self._owned: set[TopicPartition] = set()
        self._at_end: set[TopicPartition] = set()
        self._terms: dict[TopicPartition, int] = {}
        """How often we began to read each partition: what we hold of it from before is stale."""
        self._delayed: dict[TopicPartition, tuple[int, int]] = {}
        """Until when each partition waits, and at which record."""
        self._waited: dict[TopicPartition, int] = {}
        """The last record of each that has."""
        self._pending: list[Message] = []
        self._idling = False
        self._first_ends: dict[TopicPartition, int] | None = None
        self._look_again = 0.0
        self._consumer: Consumer
        self._delivery: Delivery

    def run(
        self,
        handler: Handler,
        delivery: str,
        dsn: str | None,
        dedup: Dedup | None,
        instance: str | None,
        properties: Mapping[str, Any],
    ) -> ConsumeSummary:
        handler = fit_only(handler, self._retries)
        if dedup is not None:
            dedup = replace(dedup, id=fit_only(dedup.id, self._retries))
        own = AutoCommit.properties if delivery == "auto-commit" else {}
        self._consumer = clients.consumer(
            self._connection,
            **{
                "group_id": self._group,
                "partition_assignment_strategy": "cooperative-sticky",
                # Nothing is skipped in silence: where to begin is said at each assignment.
                "auto_offset_reset": "error",
                "enable_partition_eof": True,
                **own,
                **properties,
            },
        )
        try:
            if dsn is not None:
                postgres = ExactlyOncePostgres(self._connection, handler, dsn, self._group, dedup)
                self._delivery = postgres
            elif delivery == "exactly-once":
                name = instance and f"{self._group}.{instance}"
                self._delivery = ExactlyOnceKafka(self._consumer, self._connection, handler, name)
            else:
                kind = _GROUP_DELIVERIES[delivery]
                self._delivery = kind(self._consumer, self._connection, handler)
            self._consumer.subscribe(
                [*self._topics, *self._retries],
                on_assign=self._assigned,
                on_revoke=self._revoked,
                on_lost=self._revoked,
            )
            self._loop()
        finally:
            self._consumer.close()
            if hasattr(self, "_delivery"):
                self._delivery.close()
        self._summary.duplicates = getattr(self._delivery, "duplicates", 0)
        return self._summary

    def _loop(self) -> None:
        while not self._stop.is_set() and not self._finished():
            self._resume_due()
            messages = self._pending or self._consumer.consume(self._batch_size, 0.1)
            self._pending = []
            records = [to_record(m) for m in messages if self._is_record(m)]
            if records:
                self._process(self._due(records))

    def _finished(self) -> bool:
        """With until="available": whether all that there was at the start is done, by whomever.

        A partition that is not ours may belong to another member, or to one that died and is
        still counted: it is done when the group's saved position says so.
        """
        if self._until != "available" or self._pending or self._delayed:
            return False
        if not self._summary.rebalances:
            return False  # not a member yet
        if not self._owned <= self._at_end or time.monotonic() < self._look_again:
            return False
        others = {
            partition: end
            for partition, end in self._ends().items()
            if partition not in self._owned
        }
        saved = self._at_last(lambda: self._delivery.positions(others))
        self._look_again = time.monotonic() + 0.5
        return all(saved.get(partition, 0) >= end for partition, end in others.items())

    def _ends(self) -> dict[TopicPartition, int]:
        """The end of each partition, as it was when first asked for; empty ones are left out."""
        if self._first_ends is None:
            topics = self._consumer.list_topics(timeout=30).topics
            partitions = [(t, n) for t in self._topics for n in topics[t].partitions]
            marks = {partition: self._watermarks(partition) for partition in partitions}
            self._first_ends = {
                partition: high for partition, (low, high) in marks.items() if high > low
            }
        return self._first_ends

    def _is_record(self, message: Message) -> bool:
        error, partition = message.error(), (message.topic() or "", message.partition() or 0)
        if error is None:
            self._at_end.discard(partition)
            return partition in self._owned
        if error.code() == KafkaError._PARTITION_EOF:
            self._at_end.add(partition)
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            self._check_range(partition, message.offset(), error)
        elif error.fatal() or error.code() in _NOT_PERMITTED:
            raise clients.translate(error, self._connection, f"consuming as {self._group!r}")
        return False

    # Handling

    def _process(self, records: list[Record]) -> None:
        """Hand records on until each is done, diverted, or no longer ours."""
        tries = outages = 0
        failing: Record | None = None
        most = len(records)
        terms = dict(self._terms)
        while records and not self._stop.is_set():
            records = [r for r in records if self._is_ours(r, terms)]
            try:
                done, error = self._delivery.apply(records[:most]) if records else (0, None)
            except UnknownOutcomeError:
                outages += 1
                self._summary.outages += 1
                self._idle(self._retry.pause(outages))
                left = self._still_to_do(records)
                if left == records:  # so many may be more than the store takes in its time
                    most = max(1, min(most, len(records)) // 2)
                records = left
                continue
            outages = 0
            self._summary.handled += done
            records = records[done:]
            if error is None:
                continue
            tries = tries + 1 if records[0] is failing else 1
            failing = records[0]
            if tries < self._retry.tries:
                self._summary.retries += 1
                self._idle(self._retry.pause(tries))
            elif self._divert(records[0], error):
                records = records[1:]

    def _is_ours(self, record: Record, terms: Mapping[TopicPartition, int]) -> bool:
        """Whether the partition is owned, and read on since the record was. One that was lost and
        came back, or whose saved position went back, is read again from there."""
        partition = (record.topic, record.partition)
        return partition in self._owned and self._terms.get(partition) == terms.get(partition)

    def _divert(self, record: Record, error: Exception) -> bool:
        """Write a record that failed for good elsewhere; False if the store did not answer."""
        if not self._retry.dead_letters:
            raise HandlerError(
                f"{record.where} failed {self._retry.tries} times: {said(error)}"
            ) from error
        now = int(time.time() * 1000)

        def instead(largest: Callable[[str], int]) -> Output:
            letter = self._retry.next_stop(record, self._group, error, now, largest)
            self._at_end = {each for each in self._at_end if each[0] != letter.topic}
            return letter

        try:
            self._limits.send(instead, partial(self._delivery.divert, record))
        except UnknownOutcomeError:
            self._idle(self._retry.first)
            return not self._still_to_do([record])
        self._summary.diverted += 1
        return True

    def _still_to_do(self, records: list[Record]) -> list[Record]:
        """What is left of the records by the store's word, once it answers again."""
        while not self._stop.is_set():
            try:
                at = self._delivery.positions({(r.topic, r.partition) for r in records})
            except UnknownOutcomeError:
                self._idle(self._retry.pause(5))
                continue
            self._follow(records, at)
            return [r for r in records if r.offset >= at.get((r.topic, r.partition), 0)]
        return []

    def _follow(self, records: Sequence[Record], at: Mapping[TopicPartition, int]) -> None:
        """Read on from where the store is, where that is not among the records that we hold.

        It is ahead of them if another consumer went further. It is before them if it went back, as
        when a standby takes over that lacks the last commits: the work since is undone with them,
        and to go on with what we hold would leave a gap.
        """
        firsts = {(r.topic, r.partition): r.offset for r in reversed(records)}
        for partition, end in ends(records).items():
            if partition not in self._owned:
                continue
            if partition not in at and self._delivery.keeps_work:
                raise LostRangeError(
                    f"the store has no position of group {self._group!r} in {_named(partition)} "
                    "any more: it was removed, or the store was restored from a time before the "
                    "group began. Check what it has of the work before you start again."
                )
            before = self._delivery.keeps_work and at[partition] < firsts[partition]
            if before or at.get(partition, 0) > end:
                self._read_from(partition, at[partition])

    def _read_from(self, partition: TopicPartition, offset: int) -> None:
        self._terms[partition] += 1
        self._at_end.discard(partition)
        self._pending = [m for m in self._pending if (m.topic(), m.partition()) != partition]
        self._consumer.seek(Offset(*partition, offset))

    def _idle(self, seconds: float) -> None:
        """Wait without leaving the group: everything paused, polling on."""
        until = time.monotonic() + seconds
        self._idling = True
        self._consumer.pause(_offsets(self._owned))
        try:
            while time.monotonic() < until and not self._stop.is_set():
                message = self._consumer.poll(min(0.1, seconds))
                if message is not None:
                    self._pending.append(message)
        finally:
            self._idling = False
            self._consumer.resume(_offsets(self._owned - set(self._delayed)))

    # Retry topics

    def _due(self, records: list[Record]) -> list[Record]:
        """Leave out what must wait longer, and its partition behind it, until it is due."""
        now = int(time.time() * 1000)
        ready = []
        for record in records:
            partition = (record.topic, record.partition)
            if partition in self._delayed:
                continue
            due = self._due_at(record, now)
            if due > now:
                self._delayed[partition] = (due, record.offset)
                self._consumer.pause(_offsets([partition]))
                self._consumer.seek(Offset(*partition, record.offset))
            else:
                ready.append(record)
        return ready

    def _due_at(self, record: Record, now: int) -> int:
        """When a record is to be handled. None waits longer than its topic says, whatever is
        written in it, or those behind it would wait as well."""
        if record.topic not in self._retries or record.topic in self._topics:
            return 0
        if self._waited.get((record.topic, record.partition)) == record.offset:
            return 0
        longest = now + self._retry.delay_ms(record.topic, self._group)
        return min(number(record.header("tallygate.not-before")), longest)

    def _resume_due(self) -> None:
        now = int(time.time() * 1000)
        for partition, (due, offset) in list(self._delayed.items()):
            if due <= now:
                del self._delayed[partition]
                self._waited[partition] = offset
                self._consumer.resume(_offsets([partition]))

    # Assignment

    def _assigned(self, consumer: Consumer, given: list[Offset]) -> None:
        """Begin where the store says; without a word from it, where `start` says."""
        partitions = [(tp.topic, tp.partition) for tp in given]
        self._summary.rebalances += 1
        known = self._at_last(lambda: self._delivery.positions(partitions))
        for partition in partitions:
            low, high = self._watermarks(partition)
            if partition not in known:
                first = low if self._start == "earliest" else high
                known[partition] = self._at_last(partial(self._delivery.begin, partition, first))
            elif not low <= known[partition] <= high:
                self._refuse_range(partition, known[partition], low, high)
        consumer.incremental_assign(
            [Offset(*partition, known[partition]) for partition in partitions]
        )
        self._owned |= set(partitions)
        for partition in partitions:
            self._terms[partition] = self._terms.get(partition, 0) + 1
        if self._idling:
            consumer.pause(_offsets(partitions))

    def _revoked(self, consumer: Consumer, taken: list[Offset]) -> None:
        """Let go. What was done is saved already, batch by batch; what was not is forgotten."""
        gone = {(tp.topic, tp.partition) for tp in taken}
        self._owned -= gone
        self._at_end -= gone
        for partition in gone:
            self._delayed.pop(partition, None)
        self._pending = [m for m in self._pending if (m.topic(), m.partition()) not in gone]
        consumer.incremental_unassign(taken)

    def _at_last(self, ask: Callable[[], T]) -> T:
        """The store may be away just now; an assignment waits for it."""
        while True:
            try:
                return ask()
            except UnknownOutcomeError as error:
                if self._stop.is_set():
                    raise HandlerError(f"stopped while the store was away: {error}") from error
                time.sleep(0.5)

    def _watermarks(self, partition: TopicPartition) -> tuple[int, int]:
        return clients.ends(self._consumer, partition, self._connection, timeout=30)

    def _check_range(
        self, partition: TopicPartition, offset: int | None, error: KafkaError
    ) -> None:
        """Raise if records are lost. Otherwise the refusal is out of date: a new leader did not yet
        show all that it has. After a refusal librdkafka neither fetches a partition nor seeks in
        it, so it is assigned again."""
        if partition not in self._owned:
            return
        if offset is None or "truncation" in error.str():
            raise LostRangeError(
                f"{_named(partition)} was cut off before where group {self._group!r} stands: "
                f"{error.str()} If that is right, move it: {self._delivery.moved_by}."
            )
        low, high = self._watermarks(partition)
        if not low <= offset <= high:
            self._refuse_range(partition, offset, low, high)
        self._consumer.incremental_unassign(_offsets([partition]))
        self._consumer.incremental_assign([Offset(*partition, offset)])

    def _refuse_range(self, partition: TopicPartition, offset: int, low: int, high: int) -> None:
        where = _named(partition)
        if offset < low:
            raise LostRangeError(
                f"{low - offset} records of {where} that group {self._group!r} has not read are "
                f"gone: it stands at {offset}, and the earliest there is {low}. If the loss is "
                f"acceptable, move it there: {self._delivery.moved_by}."
            )
        raise LostRangeError(
            f"group {self._group!r} stands at {offset} in {where}, which ends at {high}: the topic "
            f"was recreated, or lost records. If that is right, move it: {self._delivery.moved_by}."
        )


def _named(partition: TopicPartition) -> str:
    return f"{partition[0]}/{partition[1]}"


def _offsets(partitions: Iterable[TopicPartition]) -> list[Offset]:
    return [Offset(topic, number) for topic, number in partitions]
