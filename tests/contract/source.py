"""The records that the contract suite brings to targets, and what of them must be seen.

No broker holds them: a record is made from its offset alone, so blocks of any range can be made
again and again, as Spark computes a batch again. A few cannot be decoded. Partitions begin at
different offsets, since one that begins beyond 0 is where a ledger is easily wrong.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import orjson
import pyarrow as pa

from tallygate.core.decoding import Decoder
from tallygate.core.letters import Letter
from tallygate.core.offsets import Range, TopicPartition
from tallygate.kafka.fetch import RECORDS

__all__ = [
    "BAD",
    "BATCHES",
    "DECODER",
    "FAILING",
    "FILES",
    "FIRST",
    "LAST",
    "REFUSED",
    "TOPIC",
    "At",
    "Batch",
    "batch",
    "failing_letters",
    "id_of",
    "is_bad",
    "key_of",
    "place_of",
    "raw_blocks",
]

TOPIC = "numbers"
FILES = "source:files"
"""A source that is no topic, whose records are not looked at."""
FIRST = {0: 0, 1: 5, 2: 50}
"""Where each partition begins."""
BATCH = 10
"""Records of each partition in a batch."""
BLOCK = 4
BAD, REFUSED, FAILING = 7, 3, 5
"""The last digits of offsets that cannot be decoded, of those a store may be made to refuse, and of
those on which a transform may be made to fail."""

At = tuple[int, int]
"""Partition and offset of a record."""
DECODER = Decoder("json", pa.schema([("id", pa.int64()), ("account", pa.string())]))


@dataclass(frozen=True)
class Batch:
    id: int
    ranges: tuple[Range, ...]
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Of the leaders that had the ends, as far as they are known."""


def batch(id: int, *, upto: int | None = None, partitions: Iterable[int] = FIRST) -> Batch:
    """Batch number `id`; `upto` makes it end where that later one does."""
    end = BATCH * ((id if upto is None else upto) + 1)
    ranges = (Range(TOPIC, p, FIRST[p] + BATCH * id, FIRST[p] + end) for p in partitions)
    return Batch(id, tuple(ranges))


BATCHES = (batch(0), batch(1), batch(2))
LAST = {(TOPIC, p): first + BATCH * len(BATCHES) for p, first in FIRST.items()}
"""The positions after all batches."""


def id_of(at: At) -> int:
    return at[0] * 1000 + at[1]


def place_of(id: int) -> At:
    return divmod(id, 1000)


def is_bad(at: At) -> bool:
    return at[1] % 10 == BAD


def failing_letters(ranges: Iterable[Range]) -> tuple[Letter, ...]:
    """The records of the ranges on which the transform fails, as the engine finds them."""
    return tuple(
        Letter(each.topic, each.partition, offset, "the transform fails", value=b"5")
        for each in ranges
        for offset in range(each.start, each.until)
        if offset % 10 == FAILING
    )


def key_of(at: At) -> str:
    """Few of them, and all records of one in one partition."""
    return f"{at[0]}-{at[1] % 4}"


def raw_blocks(ranges: Iterable[Range]) -> list[list[pa.RecordBatch]]:
    """The raw records of the ranges: a list of small blocks for each partition."""
    return [
        [
            _raw(each, range(start, min(start + BLOCK, each.until)))
            for start in range(each.start, each.until, BLOCK)
        ]
        for each in ranges
        if each.topic == TOPIC
    ]


def _raw(each: Range, offsets: range) -> pa.RecordBatch:
    records = [
        {
            "key": None if offset % 10 == REFUSED else key_of((each.partition, offset)).encode(),
            "value": _value((each.partition, offset)),
            "topic": each.topic,
            "partition": each.partition,
            "offset": offset,
            "timestamp": 1_700_000_000_000_000 + offset,
        }
        for offset in offsets
    ]
    return pa.RecordBatch.from_pylist(records, schema=RECORDS)


def _value(at: At) -> bytes:
    return b"not JSON" if is_bad(at) else orjson.dumps({"id": id_of(at), "account": key_of(at)})
