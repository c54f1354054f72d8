"""Two attempts of one task, as a retry or speculation makes them: one of them counts."""

import threading
from dataclasses import replace

import psycopg
import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition

from tallygate import Stack, Topics
from tallygate.kafka import clients
from tallygate.kafka.reader import Reading, read
from tallygate.ledger.group import GroupClaim, Mark, Names
from tallygate.ledger.postgres import Claim, PostgresLedger
from tallygate.ledger.ranges import Range
from tallygate.settings import Settings
from tallygate.sinks.kafka.writer import KafkaWriter
from tallygate.sinks.postgres.writer import Writer

ROWS = 5000
BLOCK = pa.RecordBatch.from_pydict(
    {
        "value": pa.array([b"x"] * ROWS, pa.binary()),
        "key": pa.array([None] * ROWS, pa.binary()),
        "_topic": pa.array(["t"] * ROWS),
        "_partition": pa.array([0] * ROWS, pa.int32()),
        "_offset": pa.array(range(ROWS), pa.int64()),
    }
)


def _writer(dsn: str, claim: Claim, table: str) -> Writer:
    columns = pa.schema([("_offset", pa.int64())])
    ranges = {("t", 0): Range("t", 0, 0, ROWS)}
    return Writer(
        dsn, "public", table, columns, claim, "exactly-once", 0, ranges, False, True, True, False
    )


def _table(stack: Stack, name: str) -> Claim:
    ledger = PostgresLedger(stack.dsn, name)
    ledger.prepare()
    claim = ledger.begin(
        target=name, delivery="exactly-once", stateful=False, checkpoint="/c", version="0"
    )
    ledger.close()
    with psycopg.connect(stack.dsn) as connection:
        connection.execute(f"CREATE TABLE public.{name} (_offset bigint)".encode())
    return claim


def _attempts(stack: Stack, name: str) -> list[str | None]:
    """Run two attempts at once; return their problems."""
    claim = _table(stack, name)
    problems: list[str | None] = []

    def attempt() -> None:
        (report,) = _writer(stack.dsn, claim, name).write(iter([BLOCK]))
        problems.append(report.to_pylist()[0]["problem"])

    threads = [threading.Thread(target=attempt) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return problems


def _count(stack: Stack, name: str) -> int:
    with psycopg.connect(stack.dsn) as connection:
        row = connection.execute(f"SELECT count(*) FROM public.{name}".encode()).fetchone()
    assert row is not None
    return int(row[0])


def test_one_of_two_attempts_commits(stack: Stack) -> None:
    assert sorted(_attempts(stack, "attempts"), key=str) == [None, "retry"]
    assert _count(stack, "attempts") == ROWS


def test_without_the_ledger_both_attempts_commit(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Claim, "move", lambda *_: None)
    assert _attempts(stack, "attempts_twin") == [None, None]
    assert _count(stack, "attempts_twin") == 2 * ROWS


def test_one_of_two_attempts_commits_to_kafka(stack: Stack, settings: Settings) -> None:
    connection = stack.cluster.connection
    topics = Topics(connection, settings)
    for topic in ("attempts-source", "attempts-target", "attempts-letters"):
        topics.create(topic)
    claim = GroupClaim("attempts", "tallygate.attempts", Mark.mine(1, 0), stand_in=False)
    place = ("attempts-source", 0)
    writer = KafkaWriter(
        connection,
        "attempts-target",
        "attempts-letters",
        (claim,),
        Names("attempts"),
        "exactly-once",
        0,
        {place: Range(*place, 0, ROWS)},
        False,
        True,
        False,
    )
    block = BLOCK.set_column(2, "_topic", pa.array(["attempts-source"] * ROWS))
    reports: list[dict[str, object]] = []

    def attempt() -> None:
        (report,) = writer.write(iter([block]))
        reports.append(report.to_pylist()[0])

    threads = [threading.Thread(target=attempt) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    batches = read(Reading(["attempts-target"], exit_at_end=True), connection)
    assert sum(len(batch) for batch in batches) == ROWS
    consumer = clients.consumer(connection, group_id="tallygate.attempts")
    (found,) = consumer.committed([TopicPartition(*place)], timeout=10)
    consumer.close()
    assert found.offset == ROWS
    older = replace(claim, mark=Mark.mine(0, 0))
    (report,) = replace(writer, claims=(older,)).write(iter([block]))
    assert report.to_pylist()[0]["problem"] == "fenced"
