"""Dead letters in PostgreSQL, which count once the ledger has moved past them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from tallygate.core.ledger import (
    Claim,
)
from tallygate.core.letters import Coordinates, Letter
from tallygate.core.offsets import Range
from tallygate.postgres.ledger_tables import Transaction
from tallygate.units import FIRST_MS, LAST_MS

LETTERS_AT_ONCE = 8 << 20
"""Bytes. A message to PostgreSQL holds up to 1 GiB, and so does a value."""


_LETTERS = pa.schema(
    [
        ("t", pa.string()),
        ("p", pa.int32()),
        ("o", pa.int64()),
        ("k", pa.binary()),
        ("v", pa.binary()),
        ("ms", pa.int64()),
        ("c", pa.string()),
    ]
)


def keep_letters(transaction: Transaction, claim: Claim, letters: Sequence[Letter]) -> None:
    """Keep dead letters. They count once the ledger has moved past them."""
    for some in _bounded(letters):
        transaction.rows(
            "INSERT INTO tallygate.dead_letter_records"
            ' (pipeline, topic, partition, "offset", key, value, record_time, cause)'
            " SELECT $1, t, p, o, k, v, to_timestamp(ms / 1000.0), c"
            " FROM unnest($2::text[], $3::int[], $4::bigint[], $5::bytea[], $6::bytea[],"
            " $7::bigint[], $8::text[]) AS letter (t, p, o, k, v, ms, c)"
            " ON CONFLICT DO NOTHING",
            claim.pipeline,
            *pa.RecordBatch.from_pylist(list(map(_fields, some)), schema=_LETTERS).columns,
        )


def letter_count(connection: Transaction, pipeline: str) -> int:
    """How many dead letters count."""
    found = connection.rows(
        "SELECT count(*) FROM tallygate.dead_letters WHERE pipeline = $1", pipeline
    )
    return int(found[0][0])


def letter_coordinates(connection: Transaction, pipeline: str) -> list[Coordinates]:
    """The records whose dead letters count."""
    found = connection.rows(
        'SELECT topic, partition, "offset" FROM tallygate.dead_letters WHERE pipeline = $1',
        pipeline,
    )
    return [(topic, partition, offset) for topic, partition, offset in found]


def letters_of(connection: Transaction, pipeline: str) -> list[Letter]:
    """The dead letters that count."""
    found = connection.rows(
        'SELECT topic, partition, "offset", cause, key, value, '
        "(extract(epoch FROM record_time) * 1000)::bigint "
        "FROM tallygate.dead_letters WHERE pipeline = $1",
        pipeline,
    )
    names = ("topic", "partition", "offset", "cause", "key", "value", "time_ms")
    return [Letter(**dict(zip(names, row, strict=True))) for row in found]


def causes_in(connection: Transaction, pipeline: str, ranges: Iterable[Range]) -> Iterator[str]:
    """Why the first records of each range are dead letters."""
    for each in ranges:
        found = connection.rows(
            "SELECT cause FROM tallygate.dead_letters WHERE pipeline = $1 AND topic = $2 "
            'AND partition = $3 AND "offset" >= $4 AND "offset" < $5 ORDER BY "offset" LIMIT 100',
            pipeline,
            each.topic,
            each.partition,
            each.start,
            each.until,
        )
        yield from (cause for (cause,) in found)


def _bounded(letters: Sequence[Letter]) -> Iterator[list[Letter]]:
    """The dead letters in lots, so that no statement is larger than it need be."""
    some: list[Letter] = []
    size = 0
    for each in letters:
        more = len(each.key or b"") + len(each.value or b"") + len(each.cause)
        if some and size + more > LETTERS_AT_ONCE:
            yield some
            some, size = [], 0
        some.append(each)
        size += more
    if some:
        yield some


def _has_date(ms: int | None) -> bool:
    """PostgreSQL ends at the year 294276, but those who read the table with Python at 9999."""
    return ms is not None and FIRST_MS <= ms <= LAST_MS


def _fields(letter: Letter) -> dict[str, Any]:
    return {
        "t": letter.topic,
        "p": letter.partition,
        "o": letter.offset,
        "k": letter.key,
        "v": letter.value,
        "ms": letter.time_ms if _has_date(letter.time_ms) else None,
        "c": letter.cause.replace("\0", "\N{REPLACEMENT CHARACTER}"),
    }
