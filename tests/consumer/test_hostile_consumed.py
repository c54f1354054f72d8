"""Hostile records between good ones, as a consumer meets them."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from fixtures.blocks import raw_block
from fixtures.hostile import FIELDS, HOSTILE, MAX_RECORD, MISNAMED, send_hostile
from tallygate import Connection, Dedup, Record, Retry, Stack, Topics, consume
from tallygate.core.decoding import Decoder
from tallygate.core.letters import record_size
from tallygate.errors import InputError
from tallygate.kafka.dead_letters import list_dead_letters

Fill = Callable[..., str]
DECODER = Decoder("json", FIELDS)


def _id(record: Record) -> int:
    """What a careful handler takes."""
    if record_size(record.key, record.value, record.headers) > MAX_RECORD:
        raise InputError("it is too large")
    rows, unfit = DECODER.decode(raw_block(record.value))
    if unfit:
        raise InputError(unfit[0].cause)
    return int(rows.column("id")[0].as_py())


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once", "postgres"])
def test_hostile_records_are_dead_letters_and_stop_nothing(
    small_stack: Stack, connection: Connection, fill: Fill, delivery: Any
) -> None:
    topic, group, records = fill(0, partitions=1), f"hostile-{delivery}", [*HOSTILE, MISNAMED]
    topics, seen = Topics(connection), list[int]()
    topics.alter(topic, configs={"message.timestamp.after.max.ms": str(2**63 - 1)})
    topics.create(f"{group}.dead-letters")  # which takes 1 MiB
    send_hostile(connection, topic, records)

    def handle(record: Record, *_: psycopg.Connection) -> None:
        number = _id(record)
        seen.append(number)

    postgres = delivery == "postgres"
    consume(
        topic,
        handle,
        group=group,
        delivery="exactly-once" if postgres else delivery,
        dsn=small_stack.dsn if postgres else None,
        dedup=Dedup(lambda record: str(record.offset), seconds=60) if postgres else None,
        connection=connection,
        until="available",
        batch_size=1,
        retry=Retry(tries=1),
    )
    fit = [1_000_000 + number for number in range(8)]
    assert sorted(seen) == [*range(len(records) + 1), *fit]
    letters = list_dead_letters(f"{group}.dead-letters", connection)
    bad = [2 * place + 1 for place, each in enumerate(records) if not each.fit]
    assert sorted(each.coordinates for each in letters) == sorted(f"{topic}/0@{at}" for at in bad)
    assert all(each.cause and each.stack for each in letters)
