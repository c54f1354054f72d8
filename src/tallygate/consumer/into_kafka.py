"""Exactly once into Kafka: what the handler returns and the offsets in one transaction."""

import operator
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException

from tallygate.consumer.delivery import (
    GroupOffsets,
    Handler,
    UnknownOutcomeError,
    ends,
    offsets,
    send,
)
from tallygate.core.record import Output, Record
from tallygate.errors import ConfigError, DeliveryError, UnreachableError
from tallygate.kafka.connection import Connection
from tallygate.kafka.producer import ANSWER_TIMEOUT, REFUSED, Failures, settle
from tallygate.kafka.transactions import TransactionalProducer

FAULTS = {
    *REFUSED,
    KafkaError._INVALID_ARG,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
}
"""What is wrong with a record that a handler made, and not with Kafka."""


class _RefusedError(Exception):
    """What a record made is not taken, however often it is tried: too large for its topic, or for a
    topic or partition that is not there. `index` says which record's it is, if that is known."""

    def __init__(self, problem: KafkaException, index: int | None, *, together: bool) -> None:
        super().__init__(problem.args[0].str())
        self.problem, self.index, self.together = problem, index, together


class ExactlyOnceKafka(GroupOffsets):
    """The handler's records and the offsets in one transaction of Kafka's.

    The group's generation goes into the transaction, so a consumer that lost its partitions without
    noticing is fenced by the broker. What it left open is ended by its successor if both have the
    same `instance`, and otherwise by the transaction's time-out.
    """

    properties: Mapping[str, Any] = {}
    TRANSACTION_TIMEOUT_MS = 60_000
    """How long readers wait for a transaction whose producer is gone, but also how long records may
    take to be written: librdkafka gives none of them more time than the whole transaction."""

    def __init__(
        self, consumer: Consumer, connection: Connection, handler: Handler, instance: str | None
    ) -> None:
        super().__init__(consumer)
        self._handler = handler
        self._failures = Failures()
        self._together = True
        self._transactions = TransactionalProducer(
            connection,
            f"tallygate.consumer.{instance or uuid.uuid4()}",
            self._failures,
            transaction_timeout_ms=self.TRANSACTION_TIMEOUT_MS,
        )

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
        """Write what the records made, up to the first of which something is refused.

        A topic refuses what came to it together, although it might take each by itself. So what was
        refused is sent again, each by itself, and from then on always; which one is at fault is
        found by writing half as many at a time."""
        if not records:
            return 0, error
        try:
            self._write(outputs, records)
            return len(records), error
        except _RefusedError as refusal:
            if refusal.together:
                return self._write_good(outputs, records, error)
            at = refusal.index if len(records) > 1 else 0
            if at is not None:
                return self._write_good(outputs[:at], records[:at], refusal.problem)
        half = len(records) // 2
        done, refused = self._write_good(outputs[:half], records[:half], None)
        if refused is not None:
            return done, refused
        more, error = self._write_good(outputs[half:], records[half:], error)
        return done + more, error

    def divert(self, record: Record, instead: Output) -> None:
        _, refused = self._write_good([[instead]], [record], None)
        if refused is not None:
            raise DeliveryError(f"{record.where} could not be written: {refused}") from refused

    def _write(self, outputs: Sequence[Sequence[Output]], records: Sequence[Record]) -> None:
        """All or nothing; on any error of Kafka's the outcome is the store's to tell.

        Unless it is a record's fault: then the transaction is undone, and the error a refusal.
        """
        if self._transactions.is_spent:
            self._open()
        self._failures.known.clear()
        producer = self._transactions.raw
        try:
            self._transactions.begin()
            for index, made in enumerate(outputs):
                try:
                    for output in made:
                        send(producer, output)
                except KafkaException as error:
                    if error.args[0].code() not in FAULTS:
                        raise
                    self._give_up()
                    raise _RefusedError(error, index, together=False) from error
            settle(producer, self._failures)
            producer.send_offsets_to_transaction(
                offsets(ends(records)), self._consumer.consumer_group_metadata(), ANSWER_TIMEOUT
            )
            self._transactions.commit()
        except KafkaException as error:
            producer.poll(0)  # tells why records failed
            said = [*(each for _, each in self._failures.known), error.args[0]]
            faults = [each for each in said if each.code() in FAULTS]
            together, self._together = self._together, self._together and not faults
            self._give_up()
            if faults:
                problem = KafkaException(faults[0])
                raise _RefusedError(problem, None, together=together) from error
            raise UnknownOutcomeError(error.args[0].str()) from error

    def _give_up(self) -> None:
        """Open a new producer, which undoes what this one began: after an abort librdkafka may find
        gaps in its own sequence numbers, and fail the transactions that follow as well."""
        self._transactions.raw.purge()
        self._open()

    def _open(self) -> None:
        try:
            self._transactions.open(**({} if self._together else {"batch_num_messages": 1}))
        except UnreachableError as error:
            raise UnknownOutcomeError(str(error)) from error


def _outputs(returned: Any) -> list[Output]:
    if returned is None:
        return []
    found = [returned] if isinstance(returned, Output) else list(returned)
    return [_checked(output) for output in found]


def _checked(output: Any) -> Output:
    """The record with its parts as bytes. What a producer would refuse is the handler's failure,
    and found where that is: in the midst of a transaction it would end the consumer."""
    if not isinstance(output, Output):
        raise ConfigError(
            f"a handler of delivery exactly-once into Kafka returns records to write "
            f"(tallygate.Output), not {type(output).__name__}."
        )
    return Output(
        _name("topic", output.topic),
        _content("value", output.value),
        _content("key", output.key),
        tuple(
            (_name("header", name), _content(f"header {name!r}", value))
            for name, value in output.headers
        ),
        _number("partition", output.partition, bits=31),
        _number("timestamp", output.timestamp, bits=63),
    )


def _content(part: str, given: Any) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    if not isinstance(given, str):
        raise ConfigError(
            f"the {part} of an Output is bytes, text or None, and not {type(given).__name__}."
        )
    try:
        return given.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"the {part} of an Output is no text that can be sent: {error}."
        ) from None


def _name(part: str, given: Any) -> str:
    """For half a character in a header's name confluent-kafka ends the process."""
    name = given.decode() if isinstance(given, bytes) else given
    if not isinstance(name, str) or "\0" in name:
        raise ConfigError(f"an Output has the {part} {given!r}, which is no name that can be sent.")
    _content(f"name of a {part}", name)
    return name


def _number(part: str, given: Any, *, bits: int) -> int | None:
    if given is None:
        return None
    number = operator.index(given)
    if not -1 <= number < 1 << bits:
        raise ConfigError(f"an Output has the {part} {number}, which cannot be sent.")
    return number
