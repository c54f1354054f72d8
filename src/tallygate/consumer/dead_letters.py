"""Dead letters: looking at them, and putting each back once.

Which ones were put back is written into the dead-letter topic itself, as a marker that names the
letter's partition and offset, in the same transaction as the record that goes back. So a replay
that dies leaves each letter either back and marked, or neither. Two replays at once are settled
by the transactional id, which both share: the later one fences the earlier, and only then reads the
markers.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain

from confluent_kafka import KafkaError, KafkaException

from tallygate.consumer.delivery import send
from tallygate.consumer.retry import origin
from tallygate.core.letters import CUT, MARKER, ROW, Letter
from tallygate.core.marks import given_back, number
from tallygate.core.record import MISNAMED_HEADER, Headers, Output, Record
from tallygate.core.withdrawals import PIPELINE, Withdrawal
from tallygate.errors import FencedError, TopicError
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.kafka.producer import open_transactions
from tallygate.kafka.read import records_in
from tallygate.units import moment

LETTERS_PER_TRANSACTION = 500


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """A record that failed for good, and why."""

    topic: str
    partition: int
    offset: int
    cause: str
    record: Record
    """What is kept of it. In a topic of dead letters this is the record that keeps it, which has
    coordinates of its own."""
    time: datetime | None = None
    is_row: bool = False
    """Whether key and value are not the record's, but those of the row that was made of it."""
    is_cut: bool = False
    """Whether only the first bytes of the value are kept."""
    tries: int = 1
    stack: str = ""
    """The traceback of the handler that failed, if it was one."""
    replayed: bool = False
    """Whether it was put back into the topic that it came from."""

    @property
    def key(self) -> bytes | None:
        return self.record.key

    @property
    def value(self) -> bytes | None:
        return self.record.value

    @property
    def headers(self) -> Headers:
        """The record's own, as far as they are kept."""
        return given_back(self.record.headers)

    @property
    def coordinates(self) -> str:
        """As `trace` takes them."""
        return f"{self.topic}/{self.partition}@{self.offset}"

    @property
    def same(self) -> tuple[bytes | None, str]:
        """What two letters have in common that a crash made of one record. A record that was put
        back and failed again is another: it has other coordinates."""
        return self.record.header("tallygate.group"), self.coordinates


@dataclass(frozen=True)
class Replayed:
    count: int
    """How many dead letters were put back."""
    left: int
    """How many of those that were wanted name another topic."""


def dead_letter_of(letter: Letter) -> DeadLetter:
    """A letter that a pipeline keeps elsewhere than in a topic."""
    ms = letter.time_ms
    record = Record(*letter.at, -1 if ms is None else ms, letter.key, letter.value, letter.headers)
    return DeadLetter(
        topic=letter.topic,
        partition=letter.partition,
        offset=letter.offset,
        cause=letter.cause,
        record=record,
        time=None if ms is None else moment(ms),
        is_row=letter.is_row,
        is_cut=letter.cut_from is not None,
    )


def _read(record: Record, *, replayed: bool) -> DeadLetter:
    """A letter of a topic: its story is in its headers."""

    def said(name: str) -> str:
        return (record.header(f"tallygate.{name}") or b"").decode(errors="replace")

    topic, partition, offset = origin(record)
    stamp = record.header("tallygate.timestamp")
    ms = record.timestamp if stamp is None else number(stamp)
    return DeadLetter(
        topic=topic,
        partition=partition,
        offset=offset,
        cause=said("cause"),
        record=record,
        time=moment(ms) if ms > 0 else None,
        is_row=record.header(ROW) is not None,
        is_cut=record.header(CUT) is not None,
        tries=number(record.header("tallygate.tries")),
        stack=said("stack"),
        replayed=replayed,
    )


def list_dead_letters(topic: str, connection: Connection) -> list[DeadLetter]:
    """Every letter of the topic that counts, oldest first in each partition, and whether it was put
    back."""
    # By the partition that they are in, the pipeline, and where their records are from.
    letters: dict[tuple[object, ...], list[Record]] = defaultdict(list)
    replayed = set()
    for record in records_in(topic, connection):
        bare = record.key is None and record.value is None
        gone = Withdrawal.read(record.headers, bare=bare)
        if gone is not None:
            where = record.partition, gone.pipeline, *gone.partition
            letters[where] = [each for each in letters[where] if origin(each)[2] < gone.start]
        elif (marked := _marked(record)) is not None:
            replayed.add(marked)
        else:
            where = record.partition, record.header(PIPELINE) or b"", *origin(record)[:2]
            letters[where].append(record)
    found = sorted(chain(*letters.values()), key=lambda each: (each.partition, each.offset))
    return [_read(record, replayed=_mark(record) in replayed) for record in found]


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
    name = f"tallygate.replay.{topic}"
    producer = open_transactions(connection, name)
    with clients.explain_errors(connection, f"opening the replay of {topic!r}"):
        known = producer.list_topics(timeout=10).topics
    letters = list_dead_letters(topic, connection)
    open_ = [letter for letter in letters if not letter.replayed and wanted(letter)]
    due = _going_back(topic, open_, known, into)
    back = {letter.same for letter in letters if letter.replayed}
    for begin in range(0, len(due), LETTERS_PER_TRANSACTION):
        part = due[begin : begin + LETTERS_PER_TRANSACTION]
        try:
            producer.begin_transaction()
            for letter in part:
                if letter.same not in back:
                    send(producer, _back(letter))
                    back.add(letter.same)
                send(producer, _marker(letter.record))
            producer.commit_transaction(60)
        except KafkaException as error:
            raise _explained(error, topic) from error
    left = len(open_) - len(due)
    return Replayed(count=len(due), left=left)


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


def _mark(record: Record) -> str:
    return f"{record.partition}:{record.offset}"


def _marked(record: Record) -> str | None:
    """The letter that a marker names; None if the record is no marker. A record with a key, a value
    or other headers is a letter, whatever it is called."""
    if record.key is not None or record.value is not None or len(record.headers) != 1:
        return None
    ((name, mark), *_) = record.headers
    return (mark or b"").decode(errors="replace") if name == MARKER else None


def _back(letter: DeadLetter) -> Output:
    """The record as it was: its own headers, without those of its odyssey."""
    return Output(letter.topic, letter.value, letter.key, letter.headers)


def _marker(record: Record) -> Output:
    header = (MARKER, _mark(record).encode())
    return Output(record.topic, None, None, (header,), partition=record.partition)
