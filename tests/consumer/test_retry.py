import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from fixtures.commands import Tallygate
from fixtures.raw_records import send_raw_record
from tallygate import Connection, Output, Producer, Record, Retry, Stack, consume
from tallygate.consumer.letter_limits import LetterLimits
from tallygate.consumer.loop import Loop
from tallygate.consumer.replay import replay
from tallygate.consumer.retry import as_handled, dead_letter, fit_only, retry_letter
from tallygate.core.letters import MARKER
from tallygate.core.marks import given_back, origin
from tallygate.core.record import MISNAMED_HEADER
from tallygate.errors import ConfigError, FencedError, InputError, TopicError
from tallygate.kafka import clients
from tallygate.kafka.dead_letters import list_dead_letters
from tallygate.kafka.producer import producer_properties
from tallygate.kafka.read import records_in
from tallygate.kafka.topics import Topics

Fill = Callable[..., str]
RECORD = Record("orders", 2, 17, 1000, b"k", b"v", (("own", b"x"),))


def _as_record(output: Output, offset: int = 0) -> Record:
    value, key = output.value, output.key
    assert not isinstance(value, str)
    assert not isinstance(key, str)
    return Record(output.topic, 0, offset, 2000, key, value, output.headers)


def test_a_letter_tells_its_whole_story() -> None:
    try:
        raise ValueError("no such account")
    except ValueError as error:
        letter = dead_letter(RECORD, "g.dead-letters", "g", error, 5)
    headers = {name: (value or b"").decode() for name, value in letter.headers}
    assert headers["own"] == "x"
    assert headers["tallygate.cause"] == "ValueError: no such account"
    assert headers["tallygate.tries"] == "5"
    assert "test_retry.py" in headers["tallygate.stack"]
    assert origin(_as_record(letter)) == ("orders", 2, 17)


class _SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class _OddError(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ValueError("half \ud800 a character"), r"ValueError: half \ud800 a character"),
        (_SilentError(), "_SilentError: (its __str__ raised RuntimeError)"),
        (_OddError(), "_OddError: (its __str__ raised TypeError)"),
    ],
)
def test_a_letter_is_written_whatever_the_error_says(error: Exception, cause: str) -> None:
    for stop in (
        dead_letter(RECORD, "g.dead-letters", "g", error, 5),
        retry_letter(RECORD, "g.retry.1s", 1, 0, error, Retry()),
    ):
        headers = {name: (value or b"").decode() for name, value in stop.headers}
        assert headers["tallygate.cause"] == cause
        assert cause[:6] in headers.get("tallygate.stack", cause)


def test_tiers_are_passed_one_by_one_and_end_in_the_dead_letters() -> None:
    retry, error = Retry(tries=2, tiers=("10s", "5m")), ValueError("x")
    record, topics, dues = RECORD, [], []
    for _ in range(3):
        stop = retry.next_stop(record, "g", error, now_ms=1000)
        record = _as_record(stop)
        topics.append(stop.topic)
        dues.append(int(record.header("tallygate.not-before") or b"0"))
    assert topics == ["g.retry.10s", "g.retry.5m", "g.dead-letters"]
    assert dues[:2] == [11_000, 301_000]
    assert origin(record) == ("orders", 2, 17)
    assert record.header("tallygate.tries") == b"6"


def test_headers_of_ours_do_not_pile_up() -> None:
    record = RECORD
    for tier in range(5):
        record = _as_record(retry_letter(record, "t", tier, 0, ValueError("x"), Retry()))
    names = Counter(name for name, _ in record.headers)
    assert set(names.values()) == {1}


FORGED = (
    ("tallygate.topic", b"payments.approved"),
    ("tallygate.partition", b"x"),
    ("tallygate.replayed", b"0:0"),
    ("tallygate.timestamp", b"\xff"),
    ("own", b"x"),
    ("tallygate.tries", b"x"),
    ("tallygate.tier", b"-9"),
    ("tallygate.not-before", b"x"),
)


def test_marks_that_a_record_brings_along_are_put_aside_and_given_back() -> None:
    retry, record = Retry(tries=2, tiers=("10s", "5m")), replace(RECORD, headers=FORGED)
    for topic in ("g.retry.10s", "g.retry.5m", "g.dead-letters"):
        record = _as_record(retry.next_stop(record, "g", ValueError("x"), now_ms=1000))
        assert record.topic == topic
        assert origin(record) == ("orders", 2, 17)
        assert given_back(record.headers) == FORGED
        assert as_handled(record).headers[: len(FORGED)] == FORGED
    assert record.header("tallygate.tries") == b"6"
    assert record.header("tallygate.timestamp") == b"1000"
    assert len(record.headers) == len({name for name, _ in record.headers})


def test_marks_in_the_retry_topic_of_another_group_are_put_aside() -> None:
    record = replace(RECORD, topic="other.retry.10s", headers=(("tallygate.tier", b"1"),))
    stop = Retry(tiers=("10s", "5m")).next_stop(record, "g", ValueError("x"), now_ms=0)
    assert stop.topic == "g.retry.10s"
    assert origin(_as_record(stop)) == ("other.retry.10s", 2, 17)


@pytest.mark.parametrize("mark", [b"-9", b"x", b"\xff", b"9" * 30])
def test_a_mark_that_is_no_number_stops_no_consumer(mark: bytes) -> None:
    names = ("tier", "tries", "timestamp", "partition", "offset", "topic")
    headers = tuple((f"tallygate.{name}", mark) for name in names)
    record = replace(RECORD, topic="g.retry.10s", headers=headers)
    stop = Retry(tries=1, tiers=("10s",)).next_stop(record, "g", ValueError("x"), now_ms=0)
    assert stop.topic == "g.retry.10s"
    told = dict(stop.headers)
    assert (told["tallygate.tries"], told["tallygate.timestamp"]) == (b"1", b"1000")


def test_only_a_retry_topic_of_the_group_can_make_a_record_wait() -> None:
    loop = Loop(
        ["orders"],
        Connection.to("nowhere:1"),
        group="g",
        start="earliest",
        until="stopped",
        stop=threading.Event(),
        batch_size=1,
        retry=Retry(tiers=("10s",)),
        limits=LetterLimits(Topics(Connection.to("nowhere:1"))),
    )
    later = str(int(time.time() * 1000) + 3_600_000).encode()
    for topic, marks in {"orders": (b"x", b"\xff", later), "g.retry.10s": (b"x", b"1")}.items():
        for mark in marks:
            record = replace(RECORD, topic=topic, headers=(("tallygate.not-before", mark),))
            assert loop._due([record]) == [record]


def test_no_record_waits_longer_than_its_retry_topic_says() -> None:
    """Who writes to the topic cannot stop what is behind."""
    loop = Loop(
        ["orders"],
        Connection.to("nowhere:1"),
        group="g",
        start="earliest",
        until="stopped",
        stop=threading.Event(),
        batch_size=1,
        retry=Retry(tiers=("10s", "5m")),
        limits=LetterLimits(Topics(Connection.to("nowhere:1"))),
    )
    for topic, longest in {"g.retry.10s": 10_000, "g.retry.5m": 300_000}.items():
        due = {"500": 500, "9" * 18: 1000 + longest}
        for written, at in due.items():
            headers = (("tallygate.not-before", written.encode()),)
            record = replace(RECORD, topic=topic, headers=headers)
            assert loop._due_at(record, now=1000) == at
        loop._delayed = {(topic, 2): (0, 17)}
        loop._consumer = clients.consumer(Connection.to("nowhere:1"))
        loop._resume_due()
        assert loop._due_at(record, now=1000) == 0, "it has waited"
        assert loop._due_at(replace(record, offset=18), now=1000) == 1000 + longest


def test_a_handler_sees_a_record_again_as_it_came() -> None:
    """In a retry topic too, where our marks are behind its own headers."""
    seen = list[Record]()
    handle = fit_only(seen.append, ["g.retry.10s"])
    first = replace(RECORD, headers=(("tallygate.source", b"a/0@1"), ("own", b"x")))
    stop = Retry(tiers=("10s",)).next_stop(first, "g", ValueError("x"), now_ms=0)
    handle(first)
    handle(_as_record(stop))
    assert seen[0] is first
    assert seen[1].headers[:2] == first.headers
    assert seen[1].header("tallygate.topic") == b"orders"


def test_pauses_grow_to_a_limit_and_vary() -> None:
    retry = Retry(first=1, most=8)
    for tries, longest in ((1, 1), (2, 2), (4, 8), (20, 8), (2000, 8)):
        pauses = {retry.pause(tries) for _ in range(50)} if tries < 1000 else {8.0}
        assert all(longest / 2 <= pause <= longest for pause in pauses)
    assert len({retry.pause(3) for _ in range(20)}) > 1


def test_a_record_whose_headers_cannot_be_read_fails_before_its_handler() -> None:
    seen = list[Record]()
    handle = fit_only(seen.append)
    handle(RECORD)
    with pytest.raises(InputError, match="^a header's name is not UTF-8$"):
        handle(replace(RECORD, headers=(("tr\N{REPLACEMENT CHARACTER}ce", b"1"),)))
    assert seen == [RECORD]


@pytest.mark.parametrize(
    "wrong",
    [{"tries": 0}, {"first": 5, "most": 1}, {"tiers": ("soon",)}, {"tiers": ("forever",)}],
)
def test_impossible_retries_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Retry(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_a_failing_record_waits_in_a_retry_topic_and_lets_others_pass(
    connection: Connection, fill: Fill, delivery: str
) -> None:
    topic, seen, failed_at = fill(20, partitions=1), list[int](), dict[int, float]()
    group = f"tiers-{delivery}"

    def picky(record: Record) -> None:
        number = int(record.text)
        if number == 3 and number not in failed_at:
            failed_at[number] = time.monotonic()
            raise ValueError("not yet")
        seen.append(number)
        if number == 3:
            assert record.topic == f"{group}.retry.1s"
            assert time.monotonic() - failed_at[3] >= 0.9

    summary = consume(
        topic,
        picky,
        group=group,
        delivery=delivery,  # type: ignore[arg-type]
        connection=connection,
        until="available",
        retry=Retry(tries=1, first=0.01, tiers=("1s",)),
    )
    assert seen == [*range(3), *range(4, 20), 3]
    assert summary.diverted == 1


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once", "postgres"])
def test_what_fails_for_good_is_a_dead_letter_and_can_be_put_back_once(
    small_stack: Stack, connection: Connection, fill: Fill, tallygate: Tallygate, delivery: str
) -> None:
    topic, group = fill(30, partitions=1), f"graves-{delivery}"
    mended, seen = False, Counter[int]()
    with psycopg.connect(small_stack.dsn) as database:
        database.execute("DROP TABLE IF EXISTS graves")
        database.execute("CREATE TABLE graves (n int)")

    def handler(record: Record, *databases: psycopg.Connection) -> None:
        """Count in the database where there is one: what was rolled back does not count."""
        number = int(record.text)
        if number % 10 == 4 and not mended:
            raise ValueError(f"cannot handle {number}")
        for database in databases:
            database.execute("INSERT INTO graves VALUES (%s)", (number,))
        if not databases:
            seen[number] += 1

    def run() -> None:
        postgres = delivery == "postgres"
        consume(
            topic,
            handler,
            group=group,
            delivery="exactly-once" if postgres else delivery,  # type: ignore[arg-type]
            dsn=small_stack.dsn if postgres else None,
            connection=connection,
            until="available",
            retry=Retry(tries=2, first=0.01),
        )

    run()
    graveyard, servers = f"{group}.dead-letters", ("-b", connection.bootstrap_servers)
    letters = list_dead_letters(graveyard, connection)
    assert [letter.coordinates for letter in letters] == [f"{topic}/0@{n}" for n in (4, 14, 24)]
    assert {letter.cause for letter in letters} == {
        f"ValueError: cannot handle {n}" for n in (4, 14, 24)
    }
    listed = json.loads(tallygate("dead-letters", "list", graveyard, "-o", "json", *servers).stdout)
    assert [row["replayed"] for row in listed] == [False] * 3
    first = str(letters[0].record.offset)
    assert "ValueError" in tallygate("dead-letters", "show", graveyard, first, *servers).stdout

    mended = True
    put_back = ("dead-letters", "replay", graveyard, "--into", topic, *servers)
    done = tallygate(*put_back, "--offset", first)
    assert done.stdout.startswith("1 dead letters")
    assert tallygate(*put_back).stdout.startswith("2 dead")
    assert tallygate(*put_back).stdout.startswith("0 dead")
    run()
    with psycopg.connect(small_stack.dsn) as database:
        seen.update(row[0] for row in database.execute("SELECT n FROM graves").fetchall())
    assert seen == Counter(range(30))
    assert all(letter.replayed for letter in list_dead_letters(graveyard, connection))


@pytest.mark.parametrize("tiers", [(), ("1s",)], ids=["straight", "over-a-tier"])
def test_marks_from_outside_mislead_nothing_and_are_put_back(
    connection: Connection, fill: Fill, tiers: tuple[str, ...]
) -> None:
    topic, group = fill(1, partitions=1), f"forged-{len(tiers)}"
    graveyard = f"{group}.dead-letters"
    with Producer(connection) as producer:
        producer.send(topic, "1", partition=0, headers=FORGED)
        producer.send(topic, "2", partition=0, headers=((MARKER, b"0:0"),))
    seen = list[Record]()

    def fail(record: Record) -> None:
        seen.append(record)
        raise ValueError("no")

    retry = Retry(tries=1, first=0.01, tiers=tiers)
    consume(topic, fail, group=group, connection=connection, until="available", retry=retry)
    found = list_dead_letters(graveyard, connection)
    assert [each.coordinates for each in found] == [f"{topic}/0@{n}" for n in range(3)]
    assert [each.headers for each in found] == [(), FORGED, ((MARKER, b"0:0"),)]
    assert not any(each.replayed for each in found)
    assert all(each.headers[: len(FORGED)] == FORGED for each in seen if each.value == b"1")
    with pytest.raises(TopicError, match=f"add --into {topic}.$"):
        replay(graveyard, connection)
    assert replay(graveyard, connection, into=[topic]).count == 3
    assert [each.headers for each in records_in(topic, connection)][4:] == [
        FORGED,
        ((MARKER, b"0:0"),),
    ]


def test_a_header_whose_name_is_not_utf_8_stops_no_consumer(
    connection: Connection, fill: Fill
) -> None:
    topic, seen = fill(2, partitions=1), list[str]()
    send_raw_record(connection.bootstrap_servers, topic, b"2", [(b"tr\xffce", b"1")])
    with Producer(connection) as producer:
        producer.send(topic, "3", partition=0)
    consume(
        topic,
        lambda record: seen.append(record.text),
        group="misnamed",
        connection=connection,
        until="available",
        retry=Retry(tries=2, first=0.01),
    )
    assert seen == ["0", "1", "3"]
    (letter,) = list_dead_letters("misnamed.dead-letters", connection)
    assert letter.coordinates == f"{topic}/0@2"
    assert letter.cause == f"InputError: {MISNAMED_HEADER}"


def test_a_second_replay_fences_the_first(connection: Connection, fill: Fill) -> None:
    topic = fill(3, partitions=1)

    def never(record: Record) -> None:
        raise ValueError("no")

    retry = Retry(tries=1, first=0.01)
    consume(topic, never, group="race", connection=connection, until="available", retry=retry)
    graveyard = "race.dead-letters"

    def overtake(_: object) -> bool:
        name = f"tallygate.replay.{graveyard}"
        other = clients.producer(connection, **producer_properties(transactional_id=name))
        other.init_transactions(10)
        return True

    with pytest.raises(FencedError, match="another replay"):
        replay(graveyard, connection, overtake, into=[topic])
    assert not any(letter.replayed for letter in list_dead_letters(graveyard, connection))
    assert replay(graveyard, connection, into=[topic]).count == 3


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_an_error_that_no_header_can_hold_ends_no_consumer(
    connection: Connection, fill: Fill, delivery: Any
) -> None:
    topic, group = fill(3, partitions=1), f"surrogate-{delivery}"

    def fail(record: Record) -> None:
        if record.offset == 1:
            raise ValueError("half \ud800 a character")

    summary = consume(
        topic,
        fail,
        group=group,
        delivery=delivery,
        connection=connection,
        until="available",
        retry=Retry(tries=1),
    )
    assert (summary.handled, summary.diverted) == (2, 1)
    (letter,) = list_dead_letters(f"{group}.dead-letters", connection)
    assert letter.cause == r"ValueError: half \ud800 a character"
