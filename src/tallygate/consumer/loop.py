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
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from tallygate.consumer.dedup import Dedup
from tallygate.consumer.deliveries import AtLeastOnce, AtMostOnce, AutoCommit
from tallygate.consumer.delivery import Delivery, Handler, UnknownOutcomeError, ends
from tallygate.consumer.into_kafka import ExactlyOnceKafka
from tallygate.consumer.into_postgres import ExactlyOncePostgres
from tallygate.consumer.retry import Retry
from tallygate.core.offsets import Place
from tallygate.core.record import Record
from tallygate.errors import HandlerError, LostRangeError
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.kafka.read import to_record

__all__ = ["ConsumeSummary", "Loop"]

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
    ) -> None:
        self._topics, self._group, self._start, self._until = topics, group, start, until
        self._stop, self._batch_size = stop, batch_size
        self._retry, self._connection = retry, connection
        self._summary = ConsumeSummary()
        self._owned: set[Place] = set()
        self._at_end: set[Place] = set()
        self._terms: dict[Place, int] = {}
        """How often we began to read each place: what we hold of it from before is stale."""
        self._delayed: dict[Place, int] = {}
        self._pending: list[Message] = []
        self._idling = False
        self._first_ends: dict[Place, int] | None = None
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
            retries = [self._retry.retry_topic(self._group, tier) for tier in self._retry.tiers]
            self._consumer.subscribe(
                [*self._topics, *retries],
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
        others = {place: end for place, end in self._ends().items() if place not in self._owned}
        saved = self._at_last(lambda: self._delivery.positions(others))
        self._look_again = time.monotonic() + 0.5
        return all(saved.get(place, 0) >= end for place, end in others.items())

    def _ends(self) -> dict[Place, int]:
        """The end of each partition, as it was when first asked for; empty ones are left out."""
        if self._first_ends is None:
            topics = self._consumer.list_topics(timeout=30).topics
            places = [(t, n) for t in self._topics for n in topics[t].partitions]
            marks = {place: self._watermarks(place) for place in places}
            self._first_ends = {place: high for place, (low, high) in marks.items() if high > low}
        return self._first_ends

    def _is_record(self, message: Message) -> bool:
        error, place = message.error(), (message.topic() or "", message.partition() or 0)
        if error is None:
            self._at_end.discard(place)
            return place in self._owned
        if error.code() == KafkaError._PARTITION_EOF:
            self._at_end.add(place)
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            self._check_range(place, message.offset(), error)
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

    def _is_ours(self, record: Record, terms: Mapping[Place, int]) -> bool:
        """Whether the partition is owned, and read on since the record was. One that was lost and
        came back, or whose saved position went back, is read again from there."""
        place = (record.topic, record.partition)
        return place in self._owned and self._terms.get(place) == terms.get(place)

    def _divert(self, record: Record, error: Exception) -> bool:
        """Write a record that failed for good elsewhere; False if the store did not answer."""
        if not self._retry.dead_letters:
            raise HandlerError(
                f"{record.where} failed {self._retry.tries} times: {type(error).__name__}: {error}"
            ) from error
        instead = self._retry.next_stop(record, self._group, error, int(time.time() * 1000))
        self._at_end = {place for place in self._at_end if place[0] != instead.topic}
        try:
            self._delivery.divert(record, instead)
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

    def _follow(self, records: Sequence[Record], at: Mapping[Place, int]) -> None:
        """Read on from where the store is, where that is not among the records that we hold.

        It is ahead of them if another consumer went further. It is before them if it went back, as
        when a standby takes over that lacks the last commits: the work since is undone with them,
        and to go on with what we hold would leave a gap.
        """
        firsts = {(r.topic, r.partition): r.offset for r in reversed(records)}
        for place, end in ends(records).items():
            if place not in self._owned:
                continue
            if place not in at and self._delivery.keeps_work:
                raise LostRangeError(
                    f"the store has no position of group {self._group!r} in {place[0]}/{place[1]} "
                    "any more: somebody removed it, or the store is one from before the group "
                    "began. Check what it has of the work before you start again."
                )
            before = self._delivery.keeps_work and at[place] < firsts[place]
            if before or at.get(place, 0) > end:
                self._read_from(place, at[place])

    def _read_from(self, place: Place, offset: int) -> None:
        self._terms[place] += 1
        self._at_end.discard(place)
        self._pending = [m for m in self._pending if (m.topic(), m.partition()) != place]
        self._consumer.seek(TopicPartition(*place, offset))

    def _idle(self, seconds: float) -> None:
        """Wait without leaving the group: everything paused, polling on."""
        until = time.monotonic() + seconds
        self._idling = True
        self._consumer.pause(_partitions(self._owned))
        try:
            while time.monotonic() < until and not self._stop.is_set():
                message = self._consumer.poll(min(0.1, seconds))
                if message is not None:
                    self._pending.append(message)
        finally:
            self._idling = False
            self._consumer.resume(_partitions(self._owned - set(self._delayed)))

    # Retry topics

    def _due(self, records: list[Record]) -> list[Record]:
        """Leave out what must wait longer, and its partition behind it, until it is due."""
        now = int(time.time() * 1000)
        ready = []
        for record in records:
            place = (record.topic, record.partition)
            due = int(record.header("tallygate.not-before") or b"0")
            if place in self._delayed:
                continue
            if due > now and record.topic not in self._topics:
                self._delayed[place] = due
                self._consumer.pause(_partitions([place]))
                self._consumer.seek(TopicPartition(*place, record.offset))
            else:
                ready.append(record)
        return ready

    def _resume_due(self) -> None:
        now = int(time.time() * 1000)
        for place in [place for place, due in self._delayed.items() if due <= now]:
            del self._delayed[place]
            self._consumer.resume(_partitions([place]))

    # Assignment

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Begin where the store says; without a word from it, where `start` says."""
        places = [(tp.topic, tp.partition) for tp in partitions]
        self._summary.rebalances += 1
        known = self._at_last(lambda: self._delivery.positions(places))
        for place in places:
            low, high = self._watermarks(place)
            if place not in known:
                first = low if self._start == "earliest" else high
                known[place] = self._at_last(partial(self._delivery.begin, place, first))
            elif not low <= known[place] <= high:
                self._refuse_range(place, known[place], low, high)
        consumer.incremental_assign([TopicPartition(*place, known[place]) for place in places])
        self._owned |= set(places)
        for place in places:
            self._terms[place] = self._terms.get(place, 0) + 1
        if self._idling:
            consumer.pause(_partitions(places))

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Let go. What was done is saved already, batch by batch; what was not is forgotten."""
        gone = {(tp.topic, tp.partition) for tp in partitions}
        self._owned -= gone
        self._at_end -= gone
        for place in gone:
            self._delayed.pop(place, None)
        self._pending = [m for m in self._pending if (m.topic(), m.partition()) not in gone]
        consumer.incremental_unassign(partitions)

    def _at_last(self, ask: Callable[[], T]) -> T:
        """The store may be away just now; an assignment waits for it."""
        while True:
            try:
                return ask()
            except UnknownOutcomeError as error:
                if self._stop.is_set():
                    raise HandlerError(f"stopped while the store was away: {error}") from error
                time.sleep(0.5)

    def _watermarks(self, place: Place) -> tuple[int, int]:
        return clients.ends(self._consumer, place, self._connection, timeout=30)

    def _check_range(self, place: Place, offset: int | None, error: KafkaError) -> None:
        """Raise if records are lost; else the refusal was an old one, as of a leader that did not
        show all that it has yet. After one, librdkafka neither fetches a place nor seeks in it, so
        it is assigned anew."""
        if place not in self._owned:
            return
        if offset is None or "truncation" in error.str():
            raise LostRangeError(
                f"{place[0]}/{place[1]} was cut off before where group {self._group!r} stands: "
                f"{error.str()} If that is right, move it: {self._delivery.moved_by}."
            )
        low, high = self._watermarks(place)
        if not low <= offset <= high:
            self._refuse_range(place, offset, low, high)
        self._consumer.incremental_unassign(_partitions([place]))
        self._consumer.incremental_assign([TopicPartition(*place, offset)])

    def _refuse_range(self, place: Place, offset: int, low: int, high: int) -> None:
        where = f"{place[0]}/{place[1]}"
        if offset < low:
            raise LostRangeError(
                f"{low - offset} records of {where} that group {self._group!r} has not read are "
                f"gone: it stands at {offset}, and the earliest there is {low}. If the loss is "
                f"acceptable, move it there: {self._delivery.moved_by}."
            )
        raise LostRangeError(
            f"group {self._group!r} stands at {offset} in {where}, which ends at {high}: the topic "
            f"was made anew, or lost records. If that is right, move it: {self._delivery.moved_by}."
        )


def _partitions(places: Iterable[Place]) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for topic, number in places]
