"""Topics of dead letters: every letter that is there, and whether it was put back.

A letter's story is in its headers. A marker names a letter that was put back into the topic that it
came from (see `consumer.replay`).
"""

from collections import defaultdict
from itertools import chain

from tallygate.core.letters import CUT, MARKER, ROW, DeadLetter
from tallygate.core.marks import number, origin
from tallygate.core.record import Record
from tallygate.core.withdrawals import PIPELINE, Withdrawal
from tallygate.kafka.connection import Connection
from tallygate.kafka.read import records_in
from tallygate.units import moment


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
    return [_read(record, replayed=mark_of(record) in replayed) for record in found]


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


def mark_of(record: Record) -> str:
    """What a marker calls a letter."""
    return f"{record.partition}:{record.offset}"


def _marked(record: Record) -> str | None:
    """The letter that a marker names; None if the record is no marker. A record with a key, a value
    or other headers is a letter, whatever it is called."""
    if record.key is not None or record.value is not None or len(record.headers) != 1:
        return None
    ((name, mark), *_) = record.headers
    return (mark or b"").decode(errors="replace") if name == MARKER else None
