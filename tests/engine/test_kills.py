"""Every way to commit is killed at every step of a batch and started again: each record is there
once. The same kills with the weaker deliveries lose and repeat, so the test can see."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import psycopg
import pytest

from fixtures.killing import Killed, is_bad
from fixtures.retention import retire
from tallygate import Stack, Topics
from tallygate.errors import LedgerError
from tallygate.kafka.read import records_in
from tallygate.settings import Settings

Make = Callable[..., Killed]
NUMBERS = range(1200)
GOOD = [number for number in NUMBERS if not is_bad(number)]
POINTS = (
    "batch-started@1",
    "batch-planned@1",
    "rows-begun@1",
    "rows-written@1",
    "ledger-moved@1",
    "commit-sent@1",
    "committed@2",
    "batch-committed@3",
)
COUNTS = "SELECT account, count(*) AS payments, sum(amount) AS total FROM source GROUP BY account"


def _rows(stack: Stack, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(stack.dsn) as connection:
        return connection.execute(query.encode()).fetchall()


def _check_letters(stack: Stack, pipeline: str) -> None:
    found = _rows(
        stack,
        'SELECT count(*), count(DISTINCT (partition, "offset")), '
        "count(*) FILTER (WHERE convert_from(value, 'UTF8') = 'not JSON') "
        f"FROM tallygate.dead_letters WHERE pipeline = '{pipeline}'",
    )
    bad = len(NUMBERS) - len(GOOD)
    assert found == [(bad, bad, bad)]


def _together(tests: Sequence[Callable[[], None]]) -> None:
    """Two pipelines at a time: most of a run is a JVM that starts."""
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(test) for test in tests]:
            done.result()


@pytest.mark.system
@pytest.mark.timeout(900)
def test_appended_rows_survive_every_kill(
    small_stack: Stack, payments: Callable[..., str], killed: Make
) -> None:
    _appended_rows_survive(small_stack, payments, killed)


@pytest.mark.system
def test_appended_rows_of_a_transform_survive_every_kill(
    small_stack: Stack, payments: Callable[..., str], killed: Make
) -> None:
    _appended_rows_survive(small_stack, payments, killed, transform="SELECT * FROM source")


def _appended_rows_survive(
    small_stack: Stack, payments: Callable[..., str], killed: Make, **fields: str
) -> None:
    def survives(way: str, driver_rows: int) -> None:
        name = f"killed_{way}{len(fields)}"
        topic = payments(f"{name}-source", NUMBERS)
        sink = {"table": name, "driver_rows": driver_rows}
        killed(name, topic, sink, **fields).through(POINTS)
        rows = _rows(small_stack, f"SELECT id, account, amount, _topic, _partition FROM {name}")
        assert sorted(rows) == [(n, f"a{n % 7}", n / 4, topic, n % 3) for n in GOOD]
        used = f"SELECT DISTINCT strategy FROM tallygate.batches WHERE pipeline = '{name}'"
        assert _rows(small_stack, used) == [(way,)]
        _check_letters(small_stack, name)

    _together([partial(survives, "driver", 20_000), partial(survives, "partition", 0)])


@pytest.mark.system
def test_a_first_batch_in_part_goes_on_where_it_was_to_begin(
    small_stack: Stack, settings: Settings, payments: Callable[..., str], killed: Make
) -> None:
    """Partitions that the ledger does not know must not be taken for new ones, which begin at 0."""
    name, start = "begun_in_part", 50
    topic = payments(f"{name}-source", NUMBERS)
    Topics(small_stack.cluster.connection, settings).create(f"{name}-target", partitions=2)

    def goes_on(to: str, sink: dict[str, object]) -> None:
        pipeline = killed(f"{name}_{to}", topic, sink)
        pipeline.spec["source"]["start"] = {topic: dict.fromkeys("012", start)}
        two_cores = ("--set", "spark.master=local[2]")
        pipeline.run("committed@0", *two_cores)
        done = pipeline.run(None, *two_cores)
        assert done.returncode == 0, done.stdout + done.stderr

    _together(
        [
            partial(goes_on, "table", {"table": name, "driver_rows": 0}),
            partial(goes_on, "topic", {"topic": f"{name}-target"}),
        ]
    )
    wanted = [number for number in GOOD if number >= 3 * start]
    assert [id for (id,) in _rows(small_stack, f"SELECT id FROM {name} ORDER BY 1")] == wanted
    sent = [json.loads(value or b"")["id"] for value in _values(small_stack, f"{name}-target")]
    assert sorted(sent) == wanted


@pytest.mark.system
def test_merged_aggregates_survive_every_kill(
    small_stack: Stack, payments: Callable[..., str], killed: Make
) -> None:
    topic = payments("killed-staged-source", NUMBERS)
    sink = {"table": "killed_staged", "mode": "upsert", "key": "account", "driver_rows": 0}
    pipeline = killed("killed_staged", topic, sink, transform=COUNTS)
    pipeline.through([*POINTS[:3], "rows-staged@1", *POINTS[3:]])
    rows = _rows(small_stack, "SELECT account, payments, total FROM killed_staged")
    counts = Counter(f"a{n % 7}" for n in GOOD)
    totals = {account: sum(n / 4 for n in GOOD if f"a{n % 7}" == account) for account in counts}
    assert sorted(rows) == sorted((a, counts[a], totals[a]) for a in counts)
    _check_letters(small_stack, "killed_staged")


def _values(stack: Stack, topic: str) -> list[bytes | None]:
    return [record.value for record in records_in(topic, stack.cluster.connection)]


@pytest.mark.system
def test_records_written_to_kafka_survive_every_kill(
    small_stack: Stack, settings: Settings, payments: Callable[..., str], killed: Make
) -> None:
    def survives(way: str, transform: str | None) -> None:
        name = f"killed-kafka-{way}"
        topic = payments(f"{name}-source", NUMBERS)
        Topics(small_stack.cluster.connection, settings).create(f"{name}-target", partitions=2)
        sink = {"topic": f"{name}-target", "key": "account"}
        killed(name, topic, sink, transform=transform).through(POINTS)
        if transform is None:
            sent = set(_values(small_stack, topic)) - {b"not JSON"}
            assert len(sent) == len(GOOD)
            expected = list(sent)
        else:
            expected = [f'{{"id":{n},"account":"a{n % 7}"}}'.encode() for n in GOOD]
        assert sorted(_values(small_stack, f"{name}-target"), key=str) == sorted(expected, key=str)
        letters = _values(small_stack, f"{name}.dead-letters")
        assert letters == [b"not JSON"] * (len(NUMBERS) - len(GOOD))

    narrow = "SELECT id, account FROM source"
    shuffled = "SELECT /*+ REPARTITION(2) */ id, account FROM source"
    _together(
        [
            partial(survives, "passed-on", None),
            partial(survives, "narrow", narrow),
            partial(survives, "shuffled", shuffled),
        ]
    )


@pytest.mark.parametrize("gone", [0, pytest.param(50, marks=pytest.mark.system)])
def test_a_lane_that_never_wrote_is_not_overlooked(
    small_stack: Stack, settings: Settings, payments: Callable[..., str], killed: Make, gone: int
) -> None:
    """Killed in the first batch with one lane committed, and the checkpoint lost with it, so that
    Spark would plan another batch; perhaps some of its records are gone too. On one core the lanes
    are written one after the other."""
    name = f"killed-first-{gone}"
    topic = payments(f"{name}-source", NUMBERS)
    Topics(small_stack.cluster.connection, settings).create(f"{name}-target", partitions=2)
    sink = {"topic": f"{name}-target", "key": "account"}
    transform = "SELECT /*+ REPARTITION(2) */ id, account FROM source"
    pipeline = killed(name, topic, sink, transform=transform)
    one_core = ("--set", "spark.master=local[1]")
    pipeline.run("committed@0", *one_core)
    shutil.rmtree(small_stack.folder / "checkpoints" / name)
    pipeline.spec["source"]["max_records"] = 700
    retire(small_stack.cluster.connection, topic, 0, gone)
    done = pipeline.run(None, *one_core, "--accept-loss")
    assert done.returncode == 0, done.stdout + done.stderr
    found = Counter(
        json.loads(value or b"")["id"] for value in _values(small_stack, f"{name}-target")
    )
    assert set(found.values()) == {1}
    # Of the batch that one lane had, what came from that partition is given up in the other.
    given_up = {number for number in GOOD if gone and number % 3 == 0 and number < 300}
    assert set(GOOD) - given_up <= set(found) <= set(GOOD)
    assert (set(GOOD) == set(found)) == (not gone)


@pytest.mark.system
def test_a_lane_that_saw_another_time_is_not_made_good_by_guessing(
    small_stack: Stack, settings: Settings, payments: Callable[..., str], killed: Make
) -> None:
    """One lane has the batch, and what time it was is lost with the checkpoint: rows computed anew
    could go to other lanes. With the checkpoint they are the same."""
    name = "killed-timed"
    topic = payments(f"{name}-source", NUMBERS)
    Topics(small_stack.cluster.connection, settings).create(f"{name}-target", partitions=2)
    transform = "SELECT /*+ REPARTITION(2) */ id, current_timestamp() AS at FROM source"
    pipeline = killed(name, topic, {"topic": f"{name}-target"}, transform=transform)
    one_core = ("--set", "spark.master=local[1]")
    pipeline.run("committed@0", *one_core)
    checkpoint = small_stack.folder / "checkpoints" / name
    checkpoint.rename(checkpoint.with_name("away"))
    refused = pipeline.run(None, *one_core)
    assert refused.returncode == LedgerError.exit_code
    assert "would see another current time than before" in refused.stderr
    checkpoint.with_name("away").rename(checkpoint)
    done = pipeline.run(None, *one_core)
    assert done.returncode == 0, done.stdout + done.stderr
    values = _values(small_stack, f"{name}-target")
    assert sorted(json.loads(value or b"")["id"] for value in values) == GOOD


@pytest.mark.parametrize(
    ("way", "driver_rows"),
    [("driver", 20_000), pytest.param("partition", 0, marks=pytest.mark.system)],
)
@pytest.mark.parametrize("delivery", ["at-least-once", "at-most-once"])
def test_weaker_deliveries_repeat_or_lose_rows(
    way: str,
    driver_rows: int,
    delivery: str,
    small_stack: Stack,
    payments: Callable[..., str],
    killed: Make,
) -> None:
    """The twin: killed between the two commits, one repeats the batch and the other loses it."""
    name = f"{delivery}_{way}".replace("-", "_")
    topic = payments(f"{name}-source", NUMBERS)
    sink = {"table": name, "driver_rows": driver_rows}
    killed(name, topic, sink, delivery=delivery).through(["committed@1"])
    counts = Counter(id for (id,) in _rows(small_stack, f"SELECT id FROM {name}"))
    if delivery == "at-least-once":
        assert set(counts) == set(GOOD)
        assert max(counts.values()) == 2
    else:
        assert set(counts) < set(GOOD)
        assert max(counts.values()) == 1


def test_idempotent_rows_are_written_again_and_stay_once(
    small_stack: Stack, payments: Callable[..., str], killed: Make
) -> None:
    topic = payments("idempotent-source", NUMBERS)
    sink = {"table": "idempotent", "key": "id"}
    pipeline = killed("idempotent", topic, sink, delivery="idempotent")
    pipeline.through(["committed@1"])
    assert [id for (id,) in _rows(small_stack, "SELECT id FROM idempotent ORDER BY 1")] == GOOD


@pytest.mark.system
@pytest.mark.parametrize("delivery", ["at-least-once", "at-most-once"])
def test_weaker_deliveries_repeat_or_lose_records_in_kafka(
    delivery: str,
    small_stack: Stack,
    settings: Settings,
    payments: Callable[..., str],
    killed: Make,
) -> None:
    name = f"kafka-{delivery}"
    topic = payments(f"{name}-source", NUMBERS)
    Topics(small_stack.cluster.connection, settings).create(f"{name}-target", partitions=2)
    pipeline = killed(name, topic, {"topic": f"{name}-target"}, delivery=delivery)
    pipeline.through(["committed@1"])
    counts = Counter(_values(small_stack, f"{name}-target"))
    if delivery == "at-least-once":
        assert len(counts) == len(GOOD)
        assert max(counts.values()) == 2
    else:
        assert len(counts) < len(GOOD)
        assert max(counts.values()) == 1
