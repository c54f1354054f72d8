"""The deliveries: each is an order of two acts, saving the offsets and doing the work.

  at-most-once     save, then work: what a crash interrupts is lost
  at-least-once    work, then save: what a crash interrupts is done again
  auto-commit      saved every few seconds by the client, whatever the work: a crash loses or
                   repeats, by chance
  exactly-once     saved and worked in one transaction of one store: PostgreSQL or Kafka

A delivery is given records that follow each other in each partition, and says how many of them,
from the front, are done *and* saved, and what stopped it. It never guesses: when the store does
not answer, the outcome is unknown, and `positions` asks the store before anything is done again.
"""

import contextlib
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import psycopg
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tallygate.consumer.dedup import Dedup
from tallygate.errors import ConfigError, DeliveryError, UnreachableError
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.kafka.producer import producer_properties
from tallygate.postgres.connecting import connect
from tallygate.postgres.schema import upgrade
from tallygate.records.record import Output, Record

__all__ = [
    "AtLeastOnce",
    "AtMostOnce",
    "AutoCommit",
    "Delivery",
    "ExactlyOnceKafka",
    "ExactlyOncePostgres",
    "UnknownOutcomeError",
    "ends",
]

Place = tuple[str, int]
Handler = Callable[..., Any]
ANSWER_TIMEOUT = 30.0


class UnknownOutcomeError(Exception):
    """The store did not answer, or somebody else moved on: ask it where things stand."""


class Delivery(Protocol):
    properties: Mapping[str, Any]
    """What the consumer needs to be set to."""

    def apply(self, records: Sequence[Record]) -> tuple[int, Exception | None]:
        """Handle the records; return how many are done and saved, and the handler's failure."""

    def divert(self, record: Record, instead: Output) -> None:
        """Save a record as done by writing another in its stead."""

    def positions(self, places: Iterable[Place]) -> dict[Place, int]:
        """The next offset of each place that has one, by the store's word."""

    def begin(self, place: Place, offset: int) -> int:
        """Save that a place is read from this offset on, unless one is saved already; return the
        one that counts. Otherwise "latest" would move on with every restart."""

    def close(self) -> None: ...


def ends(records: Iterable[Record]) -> dict[Place, int]:
    """For each partition the offset after the last of its records."""
    return {(record.topic, record.partition): record.offset + 1 for record in records}


def _offsets(positions: Mapping[Place, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, number, at) for (topic, number), at in positions.items()]


def _committed(consumer: Consumer, places: Iterable[Place]) -> dict[Place, int]:
    """The group's offsets. Kafka answers once no transaction that holds one of them is open."""
    asked = [TopicPartition(topic, number) for topic, number in places]
    if not asked:
        return {}
    try:
        found = consumer.committed(asked, timeout=ANSWER_TIMEOUT)
    except KafkaException as error:
        raise UnknownOutcomeError(error.args[0].str()) from error
    return {(tp.topic, tp.partition): tp.offset for tp in found if tp.offset >= 0}


def _begin(consumer: Consumer, place: Place, offset: int) -> int:
    try:
        consumer.commit(offsets=_offsets({place: offset}), asynchronous=False)
    except KafkaException as error:
        raise UnknownOutcomeError(error.args[0].str()) from error
    return offset


class _GroupDelivery:
    """What the deliveries share whose offsets are the consumer group's."""

    properties: Mapping[str, Any] = {}

    def __init__(self, consumer: Consumer, connection: Connection, handler: Handler) -> None:
        self._consumer, self._connection, self._handler = consumer, connection, handler
        self._producer = clients.producer(connection, **producer_properties())

    def positions(self, places: Iterable[Place]) -> dict[Place, int]:
        return _committed(self._consumer, places)

    def begin(self, place: Place, offset: int) -> int:
        return _begin(self._consumer, place, offset)

    def close(self) -> None:
        pass

    def divert(self, record: Record, instead: Output) -> None:
        """The other record is acknowledged before this one is saved as done."""
        _deliver(self._producer, instead, record)
        self._save([record])

    def _save(self, records: Sequence[Record]) -> None:
        """Commit, or leave it to the group's offsets to tell whether that was done."""
        try:
            self._consumer.commit(offsets=_offsets(ends(records)), asynchronous=False)
        except KafkaException as error:
            raise UnknownOutcomeError(error.args[0].str()) from error

    def _work(self, records: Sequence[Record]) -> tuple[int, Exception | None]:
        for index, record in enumerate(records):
            try:
                self._handler(record)
            except Exception as error:
                return index, error
        return len(records), None


class AtMostOnce(_GroupDelivery):
    def apply(self, records: Sequence[Record]) -> tuple[int, Exception | None]:
        self._save(records)
        return self._work(records)


class AtLeastOnce(_GroupDelivery):
    def apply(self, records: Sequence[Record]) -> tuple[int, Exception | None]:
        done, error = self._work(records)
        if done:
            self._save(records[:done])
        return done, error


class AutoCommit(_GroupDelivery):
    properties: Mapping[str, Any] = {"enable_auto_commit": True, "auto_commit_interval_ms": 1000}

    def apply(self, records: Sequence[Record]) -> tuple[int, Exception | None]:
        return self._work(records)

    def _save(self, records: Sequence[Record]) -> None:
        """The client does, in its own time."""


class ExactlyOncePostgres:
    """Rows and offsets in one transaction. An offset moves only by compare-and-set from where this
    consumer knows it to be, so a second consumer of the same partition, however it came to be, is
    noticed in the transaction that would have overlapped."""

    properties: Mapping[str, Any] = {}

    def __init__(
        self,
        connection: Connection,
        handler: Handler,
        dsn: str,
        group: str,
        dedup: Dedup | None,
    ) -> None:
        self._dsn, self._handler, self._group, self._dedup = dsn, handler, group, dedup
        self._producer = clients.producer(connection, **producer_properties())
        self._next: dict[Place, int] = {}
        self.duplicates = 0
        self._database: psycopg.Connection | None = connect(dsn, autocommit=True)
        upgrade(self._database)

    def apply(self, records: Sequence[Record]) -> tuple[int, Exception | None]:
        at = -1
        duplicates = 0
        if any(r.offset < self._next.get((r.topic, r.partition), 0) for r in records):
            raise UnknownOutcomeError("some of these records are in the store already")
        try:
            with self._transaction() as database:
                fresh = [True] * len(records)
                if self._dedup is not None:
                    fresh = self._dedup.fresh(records, self._group, database)
                for at, record in enumerate(records):
                    if fresh[at]:
                        self._handler(record, database)
                    else:
                        duplicates += 1
                at = len(records)
                self._move(database, ends(records))
        except UnknownOutcomeError:
            raise
        except Exception as error:
            if isinstance(error, psycopg.IntegrityError | psycopg.DataError) and at == len(records):
                return self._one_by_one(records, error)
            if self._is_down(error) or at == len(records):
                raise UnknownOutcomeError(str(error)) from error
            if at < 0:  # the dedup could not find an id: find out whose
                at = self._first_without_id(records)
            if at > 0:
                done, earlier = self.apply(records[:at])
                if earlier is not None:
                    return done, earlier
            return at, error
        self.duplicates += duplicates
        self._next.update(ends(records))
        return len(records), None

    def divert(self, record: Record, instead: Output) -> None:
        """The dead letter is acknowledged before the offset moves. A crash in between writes it
        twice; it carries its record's coordinates, by which a replay knows it."""
        _deliver(self._producer, instead, record)
        with self._transaction() as database:
            self._move(database, ends([record]))
        self._next.update(ends([record]))

    def positions(self, places: Iterable[Place]) -> dict[Place, int]:
        with self._transaction() as database:
            rows = database.execute(
                "SELECT topic, partition, next_offset FROM tallygate.consumer_offsets "
                "WHERE group_name = %s",
                (self._group,),
            ).fetchall()
        wanted = set(places)
        found = {(topic, number): at for topic, number, at in rows if (topic, number) in wanted}
        self._next.update(found)
        return found

    def begin(self, place: Place, offset: int) -> int:
        """Give a place its first row, unless somebody was faster; then theirs counts."""
        with self._transaction() as database:
            database.execute(
                "INSERT INTO tallygate.consumer_offsets (group_name, topic, partition, next_offset)"
                " VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING",
                (self._group, *place, offset),
            )
        return self.positions([place])[place]

    def close(self) -> None:
        if self._database is not None:
            self._database.close()

    @contextlib.contextmanager
    def _transaction(self) -> Any:
        try:
            if self._database is None or self._database.closed:
                self._database = psycopg.connect(self._dsn, connect_timeout=5, autocommit=True)
        except psycopg.OperationalError as error:
            raise UnknownOutcomeError(str(error).strip()) from error
        try:
            with self._database.transaction():
                yield self._database
        except psycopg.OperationalError as error:
            if self._is_down(error):
                raise UnknownOutcomeError(str(error).strip()) from error
            raise

    def _is_down(self, error: Exception) -> bool:
        """Whether the database is the reason: it is away, or it chose us to break a deadlock."""
        if isinstance(error, psycopg.Error) and (error.sqlstate or "").startswith("40"):
            return True
        broken = self._database is None or self._database.closed or self._database.broken
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and bool(broken)

    def _move(self, database: psycopg.Connection, positions: Mapping[Place, int]) -> None:
        """Compare and set, in one order for everybody, so that two cannot wait for each other."""
        for place in sorted(positions):
            moved = database.execute(
                "UPDATE tallygate.consumer_offsets SET next_offset = %s, updated_at = now() "
                "WHERE group_name = %s AND topic = %s AND partition = %s AND next_offset = %s",
                (positions[place], self._group, *place, self._next.get(place, -1)),
            )
            if moved.rowcount != 1:
                raise UnknownOutcomeError(f"{place[0]}/{place[1]} was moved by another consumer")

    def _one_by_one(
        self, records: Sequence[Record], error: Exception
    ) -> tuple[int, Exception | None]:
        """A constraint that is checked at commit does not say whose row breaks it: find out."""
        if len(records) == 1:
            return 0, error
        for index, record in enumerate(records):
            _, problem = self.apply([record])
            if problem is not None:
                return index, problem
        return len(records), None

    def _first_without_id(self, records: Sequence[Record]) -> int:
        assert self._dedup is not None
        for index, record in enumerate(records):
            try:
                self._dedup.id(record)
            except Exception:
                return index
        return 0


class ExactlyOnceKafka:
    """The handler's records and the offsets in one transaction of Kafka's.

    The group's generation goes into the transaction, so a consumer that lost its partitions without
    noticing is fenced by the broker. What it left open is ended by its successor if both have the
    same `instance`, and otherwise by the transaction's time-out.
    """

    properties: Mapping[str, Any] = {}
    TRANSACTION_TIMEOUT_MS = 10_000

    def __init__(
        self, consumer: Consumer, connection: Connection, handler: Handler, instance: str | None
    ) -> None:
        self._consumer, self._connection, self._handler = consumer, connection, handler
        self._id = f"tallygate.consumer.{instance or uuid.uuid4()}"
        self._producer = self._open()

    def _open(self) -> Any:
        producer = clients.producer(
            self._connection,
            **producer_properties(transactional_id=self._id),
            transaction_timeout_ms=self.TRANSACTION_TIMEOUT_MS,
        )
        with clients.explained(self._connection, "opening the transactional producer"):
            producer.init_transactions(60)
        return producer

    def apply(self, records: Sequence[Record]) -> tuple[int, Exception | None]:
        outputs: list[list[Output]] = []
        for index, record in enumerate(records):
            try:
                outputs.append(_outputs(self._handler(record)))
            except Exception as error:
                return self._write_good(outputs, records[:index], error)
        return self._write_good(outputs, records, None)

    def _write_good(
        self, outputs: list[list[Output]], records: Sequence[Record], error: Exception | None
    ) -> tuple[int, Exception | None]:
        """Write what the records made, up to the first of which something cannot even be queued."""
        if not records:
            return 0, error
        bad = self._write(outputs, records)
        if bad is None:
            return len(records), error
        index, problem = bad
        return self._write_good(outputs[:index], records[:index], problem)

    def divert(self, record: Record, instead: Output) -> None:
        bad = self._write([[instead]], [record])
        if bad is not None:
            raise DeliveryError(f"{record.where} could not be written: {bad[1]}") from bad[1]

    def positions(self, places: Iterable[Place]) -> dict[Place, int]:
        return _committed(self._consumer, places)

    def begin(self, place: Place, offset: int) -> int:
        return _begin(self._consumer, place, offset)

    def close(self) -> None:
        pass

    def _write(
        self, outputs: Sequence[Sequence[Output]], records: Sequence[Record]
    ) -> tuple[int, Exception] | None:
        """All or nothing; on any error of Kafka's the outcome is the store's to tell.

        An output that cannot be queued (too large, no such partition) is its record's fault: the
        transaction is undone, and the record's index returned with the error.
        """
        try:
            self._producer.begin_transaction()
            for index, made in enumerate(outputs):
                try:
                    for output in made:
                        send(self._producer, output)
                except KafkaException as error:
                    if error.args[0].fatal() or error.args[0].txn_requires_abort():
                        raise
                    self._give_up()
                    return index, error
            self._producer.send_offsets_to_transaction(
                _offsets(ends(records)), self._consumer.consumer_group_metadata(), 30
            )
            while True:
                try:
                    self._producer.commit_transaction(30)
                    return None
                except KafkaException as error:
                    if not error.args[0].retriable():
                        raise
        except KafkaException as error:
            self._give_up()
            raise UnknownOutcomeError(error.args[0].str()) from error

    def _give_up(self) -> None:
        """Abort, or if even that is not possible open a new producer, which aborts for us."""
        try:
            self._producer.abort_transaction(10)
        except KafkaException:
            self._producer.purge()
            try:
                self._producer = self._open()
            except UnreachableError as error:
                raise UnknownOutcomeError(str(error)) from error


def _deliver(producer: Any, output: Output, record: Record) -> None:
    """Write a record and wait until it is acknowledged, or say that it was not."""
    failures: list[str] = []

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            failures.append(error.str())

    try:
        send(producer, output, on_delivery=delivered)
        left = producer.flush(ANSWER_TIMEOUT)
    except KafkaException as error:
        failures.append(error.args[0].str())
    if failures or left:
        reason = failures[0] if failures else "it was not acknowledged in time"
        raise DeliveryError(f"{record.where} could not be written to {output.topic!r}: {reason}.")


def send(producer: Any, output: Output, **place: Any) -> None:
    if output.partition is not None:
        place["partition"] = output.partition
    if output.timestamp is not None:
        place["timestamp"] = output.timestamp
    while True:
        try:
            producer.produce(
                output.topic, output.value, output.key, headers=list(output.headers), **place
            )
            return
        except BufferError:
            producer.poll(0.05)


def _outputs(returned: Any) -> list[Output]:
    if returned is None:
        return []
    found = [returned] if isinstance(returned, Output) else list(returned)
    for output in found:
        if not isinstance(output, Output):
            raise ConfigError(
                f"a handler of delivery exactly-once into Kafka returns records to write "
                f"(tallygate.Output), not {type(output).__name__}."
            )
    return found
