"""A producer whose sends are futures, and which never swallows a failure.

`send` returns a future of the record's metadata. A failure that is not looked at is not lost:
`close` raises it, with how many there were, and it raises too when records could not be delivered
in time: a program that ends normally has every record acknowledged.
"""

import itertools
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

from confluent_kafka import KafkaError, KafkaException, Message

from tallygate.core.record import Headers, Metadata
from tallygate.errors import DeliveryError
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection

Acks = Literal["0", "1", "all"]
REFUSED = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError._UNKNOWN_PARTITION,
)
"""What is said of a record, and would be said again however often it is tried."""
LARGEST = 100_000_000
"""What a broker takes at a time, by default (`socket.request.max.bytes`)."""
ANSWER_TIMEOUT, ABORT_TIMEOUT = 30.0, 5.0
GRACE = 5.0  # by then every record is acknowledged or has outlived its time
_numbers = itertools.count()
Callback = Callable[[Metadata | None, DeliveryError | None], None]


def producer_properties(
    *,
    acks: str = "all",
    idempotent: bool = True,
    retries: int | None = None,
    timeout_ms: int | None = None,
    compression: str | None = None,
    transactional_id: str | None = None,
    any_size: bool = False,
) -> dict[str, Any]:
    """librdkafka's properties for a delivery; keys are placed as Java clients place them.

    With `any_size` it is the topic that says what is too large, once it is asked to take it;
    without, nothing above 1 MB is queued."""
    properties: dict[str, Any] = {
        "acks": acks,
        "enable_idempotence": idempotent,
        "partitioner": "murmur2_random",
        "linger_ms": 20,
        "batch_size": 1_000_000,
        "queue_buffering_max_messages": 200_000,
        "queue_buffering_max_kbytes": 64 * 1024,
    }
    if any_size:
        properties["message_max_bytes"] = LARGEST
        # One that is larger than the whole queue would wait for room that never comes.
        properties["queue_buffering_max_kbytes"] = 2 * LARGEST // 1024
    if retries is not None:
        properties["retries"] = retries
    if timeout_ms is not None:
        properties["message_timeout_ms"] = timeout_ms
    if compression is not None:
        properties["compression_type"] = compression
    if transactional_id is not None:
        properties["transactional_id"] = transactional_id
    return properties


@dataclass
class Failures:
    """Records that were not written: where to, and why. What the calls of a transaction raise after
    that says no more than that it is over."""

    known: list[tuple[str, KafkaError]] = field(default_factory=list)

    def note(self, error: KafkaError, message: Message) -> None:
        self.known.append((message.topic() or "", error))


def open_transactions(
    connection: Connection,
    transactional_id: str,
    failures: Failures | None = None,
    *,
    any_size: bool = True,
    **properties: Any,
) -> Any:
    """A producer that has fenced every older one of the same id, and ended what that left open.

    For one transaction; `kafka/transactions.py` is for many."""
    chosen = {
        **producer_properties(transactional_id=transactional_id, any_size=any_size),
        "delivery_report_only_error": True,
        "on_delivery": (failures or Failures()).note,
    }
    producer = clients.producer(connection, **{**chosen, **properties})
    with clients.explain_errors(connection, f"opening the transactions of {transactional_id!r}"):
        # Without a connection that is up already, librdkafka often waits half a second for one.
        producer.list_topics(timeout=ANSWER_TIMEOUT)
        producer.init_transactions(ANSWER_TIMEOUT)
    return producer


def settle(producer: Any, failures: Failures) -> None:
    """Wait until all is acknowledged, or something failed: of a transaction that is lost by that,
    the rest is not worth waiting for."""
    while not failures.known and producer.flush(0.1):
        pass


def abort(producer: Any) -> None:
    """End a transaction as well as can be: readers of the target must not wait for its time-out.
    What is not aborted here is when the next producer of the same id is opened."""
    producer.poll(0)  # tells why records failed
    try:
        producer.abort_transaction(ABORT_TIMEOUT)
    except KafkaException:
        producer.purge()


class Producer:
    def __init__(
        self,
        connection: Connection,
        *,
        acks: Acks = "all",
        idempotent: bool | None = None,
        retries: int | None = None,
        timeout: float = 120,
        compression: str | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        """`idempotent` is on with acks=all by default; `timeout` is a record's life."""
        self.connection = connection
        chosen = producer_properties(
            acks=acks,
            idempotent=acks == "all" if idempotent is None else idempotent,
            retries=retries,
            timeout_ms=int(timeout * 1000),
            compression=compression,
        )
        self._producer = clients.producer(connection, **{**chosen, **(properties or {})})
        self._timeout = timeout
        self._unseen: dict[int, DeliveryError] = {}

    def send(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
        callback: Callback | None = None,
    ) -> "Future[Metadata]":
        """Queue a record. The future and the callback are served by `poll`, `flush` and `close`,
        and by later sends."""
        given: list[tuple[str, str | bytes | None]] = list(headers)
        for name, _ in given:
            name.encode()  # for half a character in a name confluent-kafka ends the process
        future: _Delivery = _Delivery(self._unseen)
        place: dict[str, Any] = {} if partition is None else {"partition": partition}
        if timestamp is not None:
            place["timestamp"] = timestamp

        def delivered(error: KafkaError | None, message: Message) -> None:
            self._settle(future, error, message, callback)

        while True:
            try:
                with clients.explain_errors(self.connection, f"sending to topic {topic!r}"):
                    self._producer.produce(
                        topic,
                        value,
                        key,
                        on_delivery=delivered,
                        headers=given,
                        **place,
                    )
                break
            except BufferError:
                self._producer.poll(0.1)
        self._producer.poll(0)
        return future

    def poll(self, timeout: float = 0) -> None:
        """Serve the futures and callbacks of what was delivered since."""
        self._producer.poll(timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent is delivered or failed; raise if some is neither in time."""
        left = self._producer.flush(self._timeout + GRACE if timeout is None else timeout)
        if left:
            raise DeliveryError(
                f"{left} records for Kafka at {self.connection.bootstrap_servers} are still not "
                "acknowledged; whether they arrived is unknown."
            )

    def close(self, timeout: float | None = None) -> None:
        """Deliver what is left, then raise the failures that were not looked at."""
        self.flush(timeout)
        if self._unseen:
            first = next(iter(self._unseen.values()))
            count = len(self._unseen)
            self._unseen.clear()
            raise DeliveryError(f"{count} records were not delivered; the first: {first}")

    def __enter__(self) -> "Producer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self._producer.flush(self._timeout + GRACE)

    def _settle(
        self,
        future: "_Delivery",
        error: KafkaError | None,
        message: Message,
        callback: Callback | None,
    ) -> None:
        if error is None:
            metadata = Metadata(
                message.topic() or "",
                message.partition() or 0,
                message.offset() or 0,
                message.timestamp()[1],
            )
            future.set_result(metadata)
            if callback:
                callback(metadata, None)
            return
        problem = DeliveryError(f"a record for topic {message.topic()!r} failed: {error.str()}.")
        problem.__cause__ = KafkaException(error)
        future.set_exception(problem)
        if callback:
            callback(None, problem)
        else:
            self._unseen[future.number] = problem


class _Delivery(Future[Metadata]):
    """A future that tells its producer when its failure was looked at."""

    def __init__(self, unseen: dict[int, DeliveryError]) -> None:
        super().__init__()
        self._unseen = unseen
        self.number = next(_numbers)

    def result(self, timeout: float | None = None) -> Metadata:
        try:
            return super().result(timeout)
        finally:
            self._seen()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        try:
            return super().exception(timeout)
        finally:
            self._seen()

    def _seen(self) -> None:
        self._unseen.pop(self.number, None)
