"""Records on their way to a topic: rows, dead letters, and what becomes of them.

**What a topic refuses once it refuses always.** To try again would never end, so a refusal has
an error of its own (`RefusedRowsError`). Anything else that a client of Kafka raises
says nothing of what became of a commit: the ledger is asked (`UnknownOutcomeError`).
"""

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as Offset

from tallygate.core.letters import CUT, ROW, Letter
from tallygate.core.marks import put_aside
from tallygate.core.offsets import MovedError
from tallygate.core.withdrawals import Withdrawal
from tallygate.errors import TopicError, UnreachableError
from tallygate.kafka.producer import ANSWER_TIMEOUT, REFUSED, Failures, abort, settle
from tallygate.kafka.record_size import Header, batch_size, first_bytes, room_beside
from tallygate.targets.base import RefusedRowsError, UnknownOutcomeError
from tallygate.targets.kafka.records import RecordRows

ROOM_FOR_CUT = 200
"""Bytes in which a dead letter says that it was cut."""
_CAUSES_SHARE = 4
"""Of what a topic takes, so small a part is left to the cause."""
_FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)


def produce(producer: Producer, topic: str, rows: RecordRows) -> None:
    """Hand a block to the producer, waiting whenever its queue is full."""
    queue = producer.produce
    for value, key, headers in rows:
        while True:
            try:
                queue(topic, value, key, headers=headers)
                break
            except BufferError:
                producer.poll(0.05)
            except KafkaException as error:
                check_refused([(topic, error.args[0])])
                raise


def send_letters(
    producer: Producer, topic: str, letters: Iterable[Letter], pipeline: str, largest: int
) -> None:
    """Send dead letters, none larger than the topic takes: a letter says more than its record, so
    one of a record that Kafka took may be too large."""
    given = [_cut_to(each, pipeline, largest) for each in letters]
    rows = RecordRows(
        [each.value for each in given],
        [each.key for each in given],
        [_letter_headers(each, pipeline, largest) for each in given],
    )
    produce(producer, topic, rows)


def send_withdrawal(producer: Producer, topic: str, withdrawal: Withdrawal) -> None:
    """Say that letters which were sent before do not count: in each partition of their topic, since
    it is their order there that tells."""
    headers: list[Header] = list(withdrawal.headers)
    for number in producer.list_topics(topic, timeout=ANSWER_TIMEOUT).topics[topic].partitions:
        producer.produce(topic, None, None, partition=number, headers=headers)


def _cut_to(letter: Letter, pipeline: str, largest: int) -> Letter:
    headers = _letter_headers(letter, pipeline, largest)
    if batch_size(letter.value, letter.key, headers) <= largest:
        return letter
    marks = _marks(letter, pipeline, largest)
    return letter.cut(max(0, room_beside(marks, largest) - ROOM_FOR_CUT))


def _letter_headers(letter: Letter, pipeline: str, largest: int) -> list[Header]:
    return [*put_aside(letter.headers), *_marks(letter, pipeline, largest)]


def _marks(letter: Letter, pipeline: str, largest: int) -> list[Header]:
    marks: list[Header] = [
        ("tallygate.pipeline", pipeline),
        ("tallygate.topic", letter.topic),
        ("tallygate.partition", str(letter.partition)),
        ("tallygate.offset", str(letter.offset)),
        ("tallygate.timestamp", str(letter.time_ms or 0)),
        ("tallygate.tries", "1"),
        ("tallygate.cause", first_bytes(letter.cause, largest // _CAUSES_SHARE)),
    ]
    if letter.is_row:
        marks.append((ROW, "1"))
    if letter.cut_from is not None:
        marks.append((CUT, str(letter.cut_from)))
    return marks


@contextmanager
def transaction(
    producer: Producer, failures: Failures, longest: float = math.inf
) -> Iterator[None]:
    """Commit what is done in here, or abort it: readers of the topic must not wait for its
    time-out. Raise what a topic has refused of it, MovedError if the producer was fenced, and
    what may be why if it took longer than Kafka lets it."""
    began = time.monotonic()
    try:
        producer.begin_transaction()
        yield
        producer.commit_transaction(ANSWER_TIMEOUT)
    except KafkaException as error:
        took = time.monotonic() - began
        fenced = error.args[0].code() in _FENCED
        if not fenced:
            abort(producer)
            # The calls of a transaction that a refused record has ended say no more than that.
            check_refused(failures.known)
        if took > longest:  # which is no answer: the ledger is asked, and the batch tried again
            raise UnknownOutcomeError(
                f"a transaction took {took:.0f} s, and Kafka aborts it after {longest:.0f} "
                "(transaction.timeout.ms). If that is no accident, raise "
                "kafka.librdkafka.transaction.timeout.ms, up to the brokers' "
                "transaction.max.timeout.ms. source.max_records makes batches smaller that are not "
                "planned yet: a pipeline without state also plans this one again, from the ledger, "
                "if its checkpoint is removed"
            ) from error
        if fenced:
            raise MovedError(
                "the transaction was fenced: another attempt or another run opened the same id"
            ) from error
        raise
    except BaseException:
        abort(producer)
        raise


@dataclass(frozen=True, kw_only=True)
class Outlet:
    """Where a task sends rows and moves offsets, in one transaction or apart."""

    producer: Producer
    fenced: Producer
    """The one whose id a newer run takes over: offsets are moved by it alone."""
    consumer: Consumer
    failures: Failures
    transactional: bool
    longest: float
    """After how many seconds Kafka aborts a transaction."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        if self.transactional:
            with transaction(self.producer, self.failures, self.longest):
                yield
        else:
            yield

    def settle(self) -> None:
        """Wait until Kafka has what was sent."""
        if self.transactional:
            settle(self.producer, self.failures)
            return
        left = self.producer.flush(ANSWER_TIMEOUT)
        check_refused(self.failures.known)
        if left or self.failures.known:
            raise UnreachableError("Kafka did not acknowledge the rows in time")

    def move(self, offsets: list[Offset]) -> None:
        group = self.consumer.consumer_group_metadata()
        own = nullcontext() if self.transactional else transaction(self.fenced, self.failures)
        with own:
            self.fenced.send_offsets_to_transaction(offsets, group, ANSWER_TIMEOUT)


def check_refused(failures: Iterable[tuple[str, KafkaError]]) -> None:
    for topic, error in failures:
        if error.code() in REFUSED:
            raise RefusedRowsError(denied(topic, error.str().rstrip(".")))


def denied(topic: str, cause: str) -> str:
    return (
        f"topic {topic!r} refuses a record: {cause}. Nothing of the batch is written. Raise the "
        "topic's max.message.bytes if the record is too large; if the topic is compacted, every "
        "record needs a key; or filter it out in the transform."
    )


def is_unanswered(error: Exception) -> bool:
    """Whether an error of Kafka's clients leaves open what became of it."""
    return isinstance(error, KafkaException | TopicError)


@contextmanager
def raise_unknown_outcome() -> Iterator[None]:
    """Have what is unanswered tried again, by what the ledger says then."""
    try:
        yield
    except Exception as error:
        if not is_unanswered(error):
            raise
        raise UnknownOutcomeError(str(error)) from error
