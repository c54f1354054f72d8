"""Two attempts of one task, as a retry or speculation makes them: one of them counts."""

import threading
from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pyarrow as pa
import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec

from tallygate import Stack, Topics
from tallygate.core.letters import Letter
from tallygate.core.offsets import Range
from tallygate.errors import LostRangeError
from tallygate.kafka import clients
from tallygate.kafka.read import list_offsets, records_in
from tallygate.settings import Settings
from tallygate.targets.kafka.ledger import GroupClaim, Mark, Names
from tallygate.targets.kafka.letters import LetterTopic
from tallygate.targets.kafka.writer import KafkaWriter
from tallygate.targets.postgres.ledger import Claim, PostgresLedger
from tallygate.targets.postgres.writer import Writer
from tallygate.waiting import wait_until

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
        dsn,
        "public",
        table,
        columns,
        claim,
        "exactly-once",
        0,
        ranges,
        trim=False,
        divisible=True,
        single=True,
        careful=False,
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
        (report,) = _writer(stack.dsn, claim, name).write(iter([BLOCK]), ())
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


def _kafka_writer(
    stack: Stack, settings: Settings, name: str
) -> tuple[KafkaWriter, pa.RecordBatch]:
    """A writer for one partition of a topic, and all that this one holds."""
    connection = stack.cluster.connection
    topics = Topics(connection, settings)
    place, target, letters = (f"{name}-source", 0), f"{name}-target", f"{name}-letters"
    for topic in (place[0], target, letters):
        topics.create(topic)
    writer = KafkaWriter(
        connection,
        target,
        letters,
        (GroupClaim(name, f"tallygate.{name}", Mark.mine(1, 0), stand_in=False),),
        Names(name),
        "exactly-once",
        0,
        {place: Range(*place, 0, ROWS)},
        False,
        True,
        False,
    )
    return writer, BLOCK.set_column(2, "_topic", pa.array([place[0]] * ROWS))


def test_one_of_two_attempts_commits_to_kafka(stack: Stack, settings: Settings) -> None:
    connection = stack.cluster.connection
    writer, block = _kafka_writer(stack, settings, "attempts")
    reports: list[dict[str, object]] = []

    def attempt() -> None:
        (report,) = writer.write(iter([block]), ())
        reports.append(report.to_pylist()[0])

    threads = [threading.Thread(target=attempt) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(records_in("attempts-target", connection)) == ROWS
    consumer = clients.consumer(connection, group_id="tallygate.attempts")
    (found,) = consumer.committed([TopicPartition("attempts-source", 0)], timeout=10)
    consumer.close()
    assert found.offset == ROWS
    older = replace(writer.claims[0], mark=Mark.mine(0, 0))
    (report,) = replace(writer, claims=(older,)).write(iter([block]), ())
    assert report.to_pylist()[0]["problem"] == "fenced"


def test_of_two_runs_that_took_one_number_the_second_is_fenced(
    stack: Stack, settings: Settings
) -> None:
    writer, block = _kafka_writer(stack, settings, "twins")
    twin = replace(writer.claims[0], mark=replace(writer.claims[0].mark, pid=1))
    reports = [
        next(replace(writer, claims=(claim,)).write(iter([block]), ())).to_pylist()[0]
        for claim in (writer.claims[0], twin)
    ]
    assert [report["problem"] for report in reports] == [None, "fenced"]


def test_a_source_that_fails_leaves_no_transaction_open(stack: Stack, settings: Settings) -> None:
    """Whoever reads the target would wait for its time-out."""
    writer, block = _kafka_writer(stack, settings, "failing")
    target = [("failing-target", 0)]

    def end(level: IsolationLevel) -> int:
        return list_offsets(target, OffsetSpec.latest(), writer.connection, level)[target[0]]  # type: ignore[no-untyped-call]

    def source() -> Iterator[pa.RecordBatch]:
        yield block
        wait_until(lambda: end(IsolationLevel.READ_UNCOMMITTED) > 0, 30, "nothing was sent")
        raise LostRangeError("the rest is gone")

    (report,) = writer.write(source(), ())
    assert report.to_pylist()[0]["problem"] == "lost"
    wait_until(
        lambda: end(IsolationLevel.READ_COMMITTED) == end(IsolationLevel.READ_UNCOMMITTED),
        5,
        "the transaction is still open",
    )


def test_a_refusal_is_known_as_one_also_while_rows_are_still_being_sent(
    stack: Stack, settings: Settings
) -> None:
    """From then on every call says no more than that the transaction is over."""
    writer, block = _kafka_writer(stack, settings, "refusing")
    Topics(writer.connection).alter("refusing-target", configs={"max.message.bytes": "200"})

    def source() -> Iterator[pa.RecordBatch]:
        while True:
            yield block

    (report,) = writer.write(source(), ())
    assert report.to_pylist()[0]["problem"] == "denied"


def test_letters_that_are_there_are_not_kept_again(stack: Stack, settings: Settings) -> None:
    """As when the task that found them is repeated."""
    writer, _ = _kafka_writer(stack, settings, "letters")
    claim = replace(writer.claims[0], group=writer.names.letters_group)
    keeper = LetterTopic(writer.connection, writer.letters_topic, claim, writer.names)
    letters = [Letter("letters-source", 0, offset, "unfit", value=b"?") for offset in (3, 5, 8)]
    for so_far in (1, 2, 2, 3):
        keeper.keep(letters[:so_far])
    kept = records_in(writer.letters_topic, writer.connection)
    assert [record.header("tallygate.offset") for record in kept] == [b"3", b"5", b"8"]
