"""Loading files into real topics, also when the loader is killed on the way."""

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import OffsetSpec

from fixtures.commands import Tallygate
from tallygate import Connection, Stack, Topics
from tallygate.core.record import Record
from tallygate.errors import (
    ConfigError,
    DeliveryError,
    FencedError,
    InputError,
    TopicError,
)
from tallygate.kafka.load import Load, load
from tallygate.kafka.producer import producer_properties
from tallygate.kafka.read import Reading, list_offsets, read, to_record
from tallygate.kafka.record_files import FileFormat
from tallygate.waiting import wait_until

NewTopic = Callable[..., str]


def read_all(connection: Connection, topic: str, *, committed: bool = True) -> list[Record]:
    reading = Reading([topic], exit_at_end=True, committed_only=committed)
    return [to_record(message) for batch in read(reading, connection) for message in batch]


@pytest.fixture
def connection(stack: Stack) -> Connection:
    return stack.cluster.connection


def _json_lines(folder: Path, count: int) -> Path:
    path = folder / "data.jsonl"
    path.write_text("".join(f'{{"id": {n}, "account": {n % 97}}}\n' for n in range(count)))
    return path


def _transactional(topic: str, path: Path, **changes: object) -> Load:
    what = Load(topic, str(path), FileFormat.json, transaction_size=100, **changes)  # type: ignore[arg-type]
    what.properties.update(producer_properties(transactional_id=what.group))
    return what


def test_a_load_puts_each_line_in_and_says_where(
    connection: Connection, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(3)
    path = _json_lines(tmp_path, 10_000)
    what = Load(topic, str(path), FileFormat.json, properties=producer_properties())
    summary = load(what, connection)
    assert (summary.acknowledged, summary.failed) == (10_000, 0)
    assert sum(after - before for before, after in summary.offsets.values()) == 10_000
    values = Counter(record.value for record in read_all(connection, topic))
    assert values == Counter(path.read_bytes().splitlines())


def test_keys_are_placed_as_java_clients_place_them(
    connection: Connection, new_topic: NewTopic, tallygate: Tallygate, tmp_path: Path
) -> None:
    """The partitions that Java's murmur2 gives these keys, of 7."""
    topic = new_topic(7)
    path = tmp_path / "keys.jsonl"
    keys = ["a", "key", "tallygate", "0", "1234567890"]
    path.write_text("".join(json.dumps({"k": key}) + "\n" for key in keys))
    tallygate("produce", topic, str(path), "--key", "k", "-b", connection.bootstrap_servers)
    found = {(r.key or b"").decode(): r.partition for r in read_all(connection, topic)}
    assert found == {key: _java_partition(key.encode(), 7) for key in keys}


def _java_partition(key: bytes, partitions: int) -> int:
    """Kafka's murmur2 over 32-bit integers, from its definition."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = (0x9747B28C ^ len(key)) & mask
    for i in range(0, len(key) // 4 * 4, 4):
        k = (int.from_bytes(key[i : i + 4], "little") * m) & mask
        h = ((h * m) & mask) ^ (((k ^ (k >> 24)) * m) & mask)
    tail = key[len(key) // 4 * 4 :]
    if tail:
        h = ((h ^ int.from_bytes(tail, "little")) * m) & mask
    h = ((h ^ (h >> 13)) * m) & mask
    return ((h ^ (h >> 15)) & 0x7FFFFFFF) % partitions


def test_headers_partition_timestamp_and_custom_partitioner(
    connection: Connection, new_topic: NewTopic, tallygate: Tallygate, tmp_path: Path
) -> None:
    topic = new_topic(4)
    (tmp_path / "placing.py").write_text("def last(key, partitions): return partitions - 1\n")
    path = tmp_path / "times.jsonl"
    path.write_text("".join(f'{{"id": {n}, "at": {n + 1}}}\n' for n in range(5)))
    servers = ("-b", connection.bootstrap_servers)
    options = ("--header", "n={id}", "--timestamp", "at", "--partitioner", "placing:last")
    tallygate("produce", topic, str(path), *options, *servers)
    records = read_all(connection, topic)
    assert {r.partition for r in records} == {3}
    assert [(r.timestamp, r.header("n")) for r in records] == [
        (n + 1, str(n).encode()) for n in range(5)
    ]
    tallygate("produce", topic, str(path), "--partition", "1", *servers)
    assert len([r for r in read_all(connection, topic) if r.partition == 1]) == 5
    tallygate("produce", topic, str(path), "--partitioner", "round-robin", *servers)
    done = tallygate(
        *("produce", topic, str(path), "--partition", "4", *servers), code=TopicError.exit_code
    )
    assert "partitions 0 to 3" in done.stderr


def test_avro_values_go_in_and_come_out(
    connection: Connection, new_topic: NewTopic, tallygate: Tallygate, tmp_path: Path
) -> None:
    topic = new_topic(1)
    schema = tmp_path / "s.avsc"
    fields = [{"name": "id", "type": "long"}, {"name": "account", "type": "int"}]
    schema.write_text(json.dumps({"type": "record", "name": "r", "fields": fields}))
    servers = ("-b", connection.bootstrap_servers)
    path = _json_lines(tmp_path, 3)
    tallygate("produce", topic, str(path), "--avro-schema", str(schema), *servers)
    done = tallygate(
        *("consume", topic, "--exit", "-o", "json", "--decode", "avro"),
        *("--avro-schema", str(schema), *servers),
    )
    rows = [json.loads(line)["value"] for line in done.stdout.splitlines()]
    assert rows == [{"id": n, "account": n} for n in range(3)]


def test_a_bad_line_stops_the_load_with_its_number(
    connection: Connection, new_topic: NewTopic, tmp_path: Path
) -> None:
    path = _json_lines(tmp_path, 10)
    path.write_text(path.read_text() + "oops\n")
    what = Load(new_topic(), str(path), FileFormat.json, properties=producer_properties())
    with pytest.raises(InputError, match=r"data.jsonl, record 11: not JSON"):
        load(what, connection)


def test_bad_lines_become_dead_letters_by_choice(
    connection: Connection, new_topic: NewTopic, tallygate: Tallygate, tmp_path: Path
) -> None:
    topic = new_topic()
    path = tmp_path / "data.jsonl"
    path.write_text('{"id": 1}\noops\n{"x": 2}\n{"id": "%s"}\n' % ("x" * 2_000_000))
    done = tallygate(
        *("produce", topic, str(path), "--key", "id", "--bad", "dead-letter", "-o", "json"),
        *("-b", connection.bootstrap_servers),
    )
    assert json.loads(done.stdout)["acknowledged"] == 1
    letters = read_all(connection, f"{topic}.bad")
    causes = {int(r.header("tallygate.record") or 0): r.header("tallygate.cause") for r in letters}
    assert sorted(causes) == [2, 3, 4]
    assert b"not JSON" in (causes[2] or b"")
    assert b"has no field 'id'" in (causes[3] or b"")
    assert b"over the producer's limit" in (causes[4] or b"")


def test_records_that_are_not_acknowledged_are_an_error(tmp_path: Path, stack: Stack) -> None:
    path = _json_lines(tmp_path, 10)
    properties = producer_properties(timeout_ms=1500)
    what = Load("nowhere-topic", str(path), FileFormat.json, properties=properties)
    with pytest.raises((DeliveryError, KeyError)):
        load(what, stack.cluster.connection)


def test_an_unknown_topic_can_be_created(
    connection: Connection, topics: Topics, tallygate: Tallygate, tmp_path: Path
) -> None:
    path = _json_lines(tmp_path, 3)
    servers = ("-b", connection.bootstrap_servers)
    done = tallygate("produce", "unborn", str(path), *servers, code=TopicError.exit_code)
    assert "--create PARTITIONS" in done.stderr
    tallygate("produce", "unborn", str(path), "--create", "2", *servers)
    assert len(topics.describe("unborn", sizes=False).partitions) == 2


def test_a_load_that_was_done_is_not_done_again(
    connection: Connection, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic()
    path = _json_lines(tmp_path, 1000)
    assert load(_transactional(topic, path), connection).acknowledged == 1000
    second = load(_transactional(topic, path), connection)
    assert (second.acknowledged, second.resumed_from) == (0, 1000)
    path.write_text(path.read_text() + '{"id": "new"}\n')
    assert load(_transactional(topic, path), connection).acknowledged == 1, "a file may grow"
    assert load(_transactional(topic, path, again=True), connection).acknowledged == 1001
    assert len(read_all(connection, topic)) == 2002


def test_another_file_under_the_same_name_is_refused(
    connection: Connection, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic()
    path = _json_lines(tmp_path, 200)
    load(_transactional(topic, path), connection)
    path.write_text(path.read_text().replace('"id": 5,', '"id": -5,'))
    with pytest.raises(InputError, match="is not the file of which 200 records were loaded"):
        load(_transactional(topic, path), connection)


def test_standard_input_cannot_be_loaded_transactionally(connection: Connection) -> None:
    with pytest.raises(ConfigError, match="standard input cannot be read again"):
        load(Load("t", "-", FileFormat.lines, transaction_size=10), connection)


def test_a_second_loader_of_the_same_load_fences_the_first(
    connection: Connection, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic()
    path = _json_lines(tmp_path, 1000)
    overtaken = False

    def overtake(_: object) -> None:
        nonlocal overtaken
        if not overtaken:
            overtaken = True
            load(_transactional(topic, path), connection)

    with pytest.raises(FencedError, match="another loader of .* took over"):
        load(_transactional(topic, path), connection, overtake)
    values = Counter(record.value for record in read_all(connection, topic))
    assert values == Counter(path.read_bytes().splitlines())


def _end(topic: str, connection: Connection) -> int:
    """How much was written to a topic, committed or not."""
    partitions = [(topic, number) for number in range(4)]
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    return sum(list_offsets(partitions, latest, connection).values())


def _killed_loads(topic: str, path: Path, connection: Connection, *options: str) -> None:
    """Start a load five times, kill it at random moments, then let it finish."""
    chance = random.Random(11)
    command = [sys.executable, "-m", "tallygate", "produce", topic, str(path), *options]
    command += ["-b", connection.bootstrap_servers]
    for _ in range(5):
        before = _end(topic, connection)
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as loader:
            wait_until(
                lambda: _end(topic, connection) > before or loader.poll() is not None,  # noqa: B023
                60,
                "nothing was sent",
            )
            time.sleep(chance.uniform(0, 0.8))
            loader.kill()
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def test_each_line_once_although_the_loader_was_killed_five_times(
    connection: Connection, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(4)
    path = _json_lines(tmp_path, 500_000)
    _killed_loads(topic, path, connection, "--transactional", "--transaction-size", "20000")
    counts = Counter(record.value for record in read_all(connection, topic))
    assert len(counts) == 500_000
    assert set(counts.values()) == {1}
    assert set(counts) == set(path.read_bytes().splitlines())


@pytest.mark.system
def test_without_transactions_the_same_kills_do_show(
    connection: Connection, new_topic: NewTopic, tmp_path: Path
) -> None:
    """The twin of the test above: it sees the duplicates that transactions prevent."""
    topic = new_topic(4)
    path = _json_lines(tmp_path, 200_000)
    _killed_loads(topic, path, connection)
    counts = Counter(record.value for record in read_all(connection, topic))
    assert len(counts) == 200_000
    assert max(counts.values()) > 1
