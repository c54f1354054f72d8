"""Dead letters: looking at them, and putting each back once.

Which ones were put back is written into the dead-letter topic itself, as a marker that names the
letter's partition and offset, in the same transaction as the record that goes back. So a replay
that dies leaves each letter either back and marked, or neither. Two replays at once are settled
by the transactional id, which both share: the later one fences the earlier, and only then reads the
markers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException

from tallygate.consumer.delivery import send
from tallygate.consumer.retry import origin
from tallygate.core.letters import MARKER, ROW
from tallygate.core.record import Output, Record
from tallygate.errors import FencedError, TopicError
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.kafka.producer import open_transactions
from tallygate.kafka.read import records_in

__all__ = ["DeadLetter", "list_dead_letters", "replay"]

LETTERS_PER_TRANSACTION = 500


@dataclass(frozen=True)
class DeadLetter:
    record: Record
    replayed: bool

    @property
    def topic(self) -> str:
        return origin(self.record)[0]

    @property
    def coordinates(self) -> str:
        topic, partition, offset = origin(self.record)
        return f"{topic}/{partition}@{offset}"

    @property
    def same(self) -> tuple[bytes | None, str]:
        """What two letters have in common that a crash made of one record. A record that was put
        back and failed again is another: it has other coordinates."""
        return self.record.header("tallygate.group"), self.coordinates

    @property
    def cause(self) -> str:
        return (self.record.header("tallygate.cause") or b"").decode(errors="replace")

    @property
    def tries(self) -> int:
        return int(self.record.header("tallygate.tries") or b"0")

    @property
    def stack(self) -> str:
        return (self.record.header("tallygate.stack") or b"").decode(errors="replace")


def list_dead_letters(topic: str, connection: Connection) -> list[DeadLetter]:
    """Every letter of the topic, oldest first in each partition, and whether it was put back."""
    letters, replayed = [], set()
    for record in records_in(topic, connection):
        marker = record.header(MARKER)
        if marker is not None:
            replayed.add(marker.decode())
        else:
            letters.append(record)
    return [DeadLetter(record, _mark(record) in replayed) for record in letters]


def replay(
    topic: str,
    connection: Connection,
    wanted: Callable[[DeadLetter], bool] = lambda _: True,
) -> int:
    """Put each wanted letter back to where it came from, once; return how many were."""
    name = f"tallygate.replay.{topic}"
    producer = open_transactions(connection, name)
    with clients.explained(connection, f"opening the replay of {topic!r}"):
        known = producer.list_topics(timeout=10).topics
    letters = list_dead_letters(topic, connection)
    due = [letter for letter in letters if not letter.replayed and wanted(letter)]
    for letter in due:
        if letter.record.header("tallygate.topic") is None or letter.topic not in known:
            raise TopicError(
                f"{letter.record.where} cannot be put back: it does not name a topic that exists."
            )
        if letter.record.header(ROW) is not None:
            raise TopicError(
                f"{letter.record.where} cannot be put back: it is not the record "
                f"{letter.coordinates}, but the row that the pipeline made of it."
            )
    back = {letter.same for letter in letters if letter.replayed}
    for begin in range(0, len(due), LETTERS_PER_TRANSACTION):
        part = due[begin : begin + LETTERS_PER_TRANSACTION]
        try:
            producer.begin_transaction()
            for letter in part:
                if letter.same not in back:
                    send(producer, _back(letter.record))
                    back.add(letter.same)
                send(producer, _marker(letter.record))
            producer.commit_transaction(60)
        except KafkaException as error:
            raise _explained(error, topic) from error
    return len(due)


def _explained(error: KafkaException, topic: str) -> Exception:
    if error.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED):
        return FencedError(f"another replay of {topic!r} took over; it goes on where this stopped.")
    return TopicError(
        f"replaying {topic!r} stopped: {error.args[0].str()}; what is not marked was not put back, "
        "so it can be started again."
    )


def _mark(record: Record) -> str:
    return f"{record.partition}:{record.offset}"


def _back(record: Record) -> Output:
    """The record as it was: its own headers, without those of its odyssey."""
    own: Sequence[tuple[str, bytes | None]] = [
        (name, value) for name, value in record.headers if not name.startswith("tallygate.")
    ]
    return Output(origin(record)[0], record.value, record.key, tuple(own))


def _marker(record: Record) -> Output:
    header = (MARKER, _mark(record).encode())
    return Output(record.topic, None, None, (header,), partition=record.partition)
