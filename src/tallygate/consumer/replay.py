"""Putting dead letters back, each once.

Which ones were put back is written into the dead-letter topic itself, as a marker that names the
letter's partition and offset, in the same transaction as the record that goes back. So a replay
that dies leaves each letter either back and marked, or neither. Two replays at once are settled
by the transactional id, which both share: the later one fences the earlier, and only then reads the
markers.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException

from tallygate.consumer.delivery import send
from tallygate.core.letters import MARKER, DeadLetter
from tallygate.core.record import MISNAMED_HEADER, Output, Record
from tallygate.errors import FencedError, TopicError
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.kafka.dead_letters import list_dead_letters, mark_of
from tallygate.kafka.transactions import TransactionalProducer

LETTERS_PER_TRANSACTION = 500


@dataclass(frozen=True)
class Replayed:
    count: int
    """How many dead letters were put back."""
    left: int
    """How many of those that were wanted name another topic."""


def replay(
    topic: str,
    connection: Connection,
    wanted: Callable[[DeadLetter], bool] = lambda _: True,
    *,
    into: Collection[str] = (),
) -> Replayed:
    """Put each wanted letter that came from one of the topics `into` back there, once. Where it
    came from says the letter itself, and a topic of dead letters may have other writers than us:
    so nothing is written to a topic that is not named."""
    count = 0
    while True:
        transactions = TransactionalProducer(connection, f"tallygate.replay.{topic}")
        with clients.explain_errors(connection, f"opening the replay of {topic!r}"):
            known = transactions.raw.list_topics(timeout=10).topics
        letters = list_dead_letters(topic, connection)
        open_ = [letter for letter in letters if not letter.replayed and wanted(letter)]
        due = _going_back(topic, open_, known, into)
        back = {letter.same for letter in letters if letter.replayed}
        done = _put_back(due, back, transactions, topic)
        count += done
        if done == len(due):
            return Replayed(count=count, left=len(open_) - len(due))


def _put_back(
    due: Sequence[DeadLetter],
    back: set[tuple[bytes | None, str]],
    transactions: TransactionalProducer,
    topic: str,
) -> int:
    """Put letters back, but for those that others of the same record have put back; return how many
    are done when the producer is spent."""
    producer = transactions.raw
    for begin in range(0, len(due), LETTERS_PER_TRANSACTION):
        if transactions.is_spent:
            return begin
        try:
            transactions.begin()
            for letter in due[begin : begin + LETTERS_PER_TRANSACTION]:
                if letter.same not in back:
                    send(producer, _back(letter))
                    back.add(letter.same)
                send(producer, _marker(letter.record))
            transactions.commit()
        except KafkaException as error:
            raise _explained(error, topic) from error
    return len(due)


def _going_back(
    topic: str, letters: Sequence[DeadLetter], known: Collection[str], into: Collection[str]
) -> list[DeadLetter]:
    """The letters that came from a topic that is named, or an error if there are none but others,
    or if one of them cannot be put back."""
    sources = Counter(
        letter.topic for letter in letters if letter.record.header("tallygate.topic") is not None
    )
    named = {name: count for name, count in sorted(sources.items()) if name in known}
    due = [letter for letter in letters if letter.topic in into and letter.topic in named]
    if letters and not named:
        raise TopicError(
            f"{letters[0].record.where} cannot be put back: it does not name a topic that exists."
        )
    if letters and not due:
        counts = ", ".join(f"{name} ({count})" for name, count in named.items())
        flags = " ".join(f"--into {name}" for name in named)
        raise TopicError(
            f"the dead letters of {topic!r} say that they came from {counts}. What is in a topic "
            "of dead letters can name any topic, so replay writes only to those that you name. "
            f"If all of them are right, add {flags}."
        )
    for letter in due:
        if letter.is_row:
            raise TopicError(
                f"{letter.record.where} cannot be put back: it is not the record "
                f"{letter.coordinates}, but the row that the pipeline made of it."
            )
        if letter.is_cut:
            raise TopicError(
                f"{letter.record.where} cannot be put back: only the first bytes of "
                f"{letter.coordinates} are kept. Choose others by --offset, or produce that record "
                "again from its topic."
            )
        if letter.record.is_misnamed:
            raise TopicError(
                f"{letter.record.where} cannot be put back as it was, since {MISNAMED_HEADER}: "
                "choose others by --offset."
            )
    return due


def _explained(error: KafkaException, topic: str) -> Exception:
    if error.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED):
        return FencedError(f"another replay of {topic!r} took over; it goes on where this stopped.")
    return TopicError(
        f"replaying {topic!r} stopped: {error.args[0].str()}; what is not marked was not put back, "
        "so it can be started again."
    )


def _back(letter: DeadLetter) -> Output:
    """The record as it was: its own headers, without those of its odyssey."""
    return Output(letter.topic, letter.value, letter.key, letter.headers)


def _marker(record: Record) -> Output:
    header = (MARKER, mark_of(record).encode())
    return Output(record.topic, None, None, (header,), partition=record.partition)
