"""What is measured comes from the sink itself; what is miscounted does not count."""

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from benchmarks import bench as bench_module
from benchmarks import flink, growth, latency, limits, loops, ours, pagecache, recovery
from benchmarks import spark as plain
from benchmarks.__main__ import Sizes
from benchmarks.bench import SIZES, _tried, bench
from benchmarks.contenders import CONTENDERS
from benchmarks.course import Course, Stretch
from benchmarks.findings import Figure, Findings
from benchmarks.meter import Meter, Peak
from benchmarks.pagecache import PageCache
from benchmarks.report import BEGIN, END, write_json, write_page
from benchmarks.stage import MiscountedError, Stage, Work, _settings
from benchmarks.targets import TARGETS
from tallygate import Producer, Stack
from tallygate.errors import ConfigError, TallygateError
from tallygate.lab.drills.jobs import Job
from tallygate.progress import silent
from tallygate.settings import Settings
from tallygate.waiting import wait_until

ROWS = 3000
SPENT = {"broker": 1.0, "JVM": 2.0, "Python": 0.5, "PostgreSQL": 0.4, "upkeep": 0.1}
_numbers = itertools.count(1)


def test_the_clock_runs_from_a_fifth_of_the_rows_on() -> None:
    course = Course(((10.0, 150), (20.0, 50), (21.0, 400), (24.0, 400)))
    assert course.measured == Stretch(20.0, 24.0, 800)
    assert course.rate == 200.0


def test_the_clock_begins_with_the_end_of_a_batch() -> None:
    """Within one, what comes next would seem to have taken no time."""
    rest = [(10.0 * batch + task, 100) for batch in range(1, 5) for task in (0, 1)]
    course = Course(((0.0, 100), (1.0, 99), *rest))
    assert course.measured == Stretch(1.0, 41.0, 800)


def test_rows_that_all_come_at_once_have_no_rate() -> None:
    assert Course(((10.0, 1000),)).rate == 0.0


def test_a_course_in_parts() -> None:
    course = Course(tuple((float(at), 100) for at in (1, 2, 3, 5, 7, 9, 12, 15)))
    assert course.parts(2) == [Stretch(1.0, 5.0, 300), Stretch(5.0, 15.0, 400)]


def test_batches_of_one_size_but_for_the_last() -> None:
    course = Course.of_batches([1.0, 2.0, 3.0], size=400, rows=1000)
    assert course.commits == ((1.0, 400), (2.0, 400), (3.0, 200))


def test_what_was_spent_between_two_moments() -> None:
    with Meter() as meter, Meter(newcomers=True) as newcomers:
        total = 0
        while not (meter._memory and newcomers._memory):
            total += 1
        begin, end = meter._samples[0][0], time.time()
    assert meter.between(begin, end)["Python"] > 0
    assert meter.peak(begin, end) > 10
    assert newcomers.peak(begin, end) < meter.peak(begin, end)


def test_what_has_ended_has_still_been_spent() -> None:
    busy = "import time; end = time.process_time() + 1\nwhile time.process_time() < end: pass"
    with Meter() as meter:
        begin = meter._samples[0][0]
        subprocess.run([sys.executable, "-c", busy], check=True)
        seen = len(meter._samples)
        wait_until(lambda: len(meter._samples) > seen + 1, 10, "nothing is sampled")
        end = time.time()
    assert meter.between(begin, end)["Python"] > 0.5


def test_a_peak_is_what_was_held_since_it_is_watched() -> None:
    first = Peak(os.getpid())
    before = first.size
    assert len(b"x" * (200 << 20))  # for a moment
    assert first.size > before + 150
    assert Peak(os.getpid()).size < before + 150


def test_memory_is_filled_until_no_less_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = iter([1000, 900, 800, *[800] * 100])
    monkeypatch.setattr(pagecache, "_free", lambda: next(free) * pagecache.BLOCK)
    memory = PageCache(tmp_path)
    memory.fill()
    assert memory._at == (2 + pagecache.STILL) * pagecache.BLOCK
    assert (tmp_path / "no-contents").stat().st_blocks == 0, "it takes no place on the disk"


def test_of_a_large_machine_only_a_part_is_filled_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = itertools.count(10**6, -1)
    monkeypatch.setattr(pagecache, "_free", lambda: next(free) * pagecache.BLOCK)
    monkeypatch.setattr(pagecache, "MOST", 2 * pagecache.BLOCK)
    memory = PageCache(tmp_path)
    for times in (1, 2):
        memory.fill()
        assert memory._at == 2 * times * pagecache.BLOCK


def test_nothing_that_is_configured_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tallygate.toml").write_text('[postgres]\ndsn = "postgresql://db.example.com"\n')
    monkeypatch.setenv("TALLYGATE_KAFKA_BOOTSTRAP_SERVERS", "kafka.example.com:9092")
    monkeypatch.setenv("TALLYGATE_SPARK_MASTER", "spark://example.com:7077")
    monkeypatch.setenv("TALLYGATE_TIMEOUT", "77")
    own = _settings(str(tmp_path / "own"))
    assert "example.com" not in str(own.values) + str(own.get("postgres.dsn"))
    assert (own.state_dir, own.get("stack")) == (tmp_path / "own", "bench")
    assert own.timeout == 77, "what is about the machine stays"


def test_a_recovery_begins_with_the_start_of_the_next_one(tmp_path: Path) -> None:
    """Not with the kill: a commit that was under way then is none."""
    started: list[float] = []
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    job = Job("it", sleeper, tmp_path / "log", lambda _: started.append(time.time()), os.environ)
    job.start()
    since = recovery._kill(job)
    assert job.starts == 2
    assert since >= started[-1]
    job.end()


def test_targets_are_of_contenders_that_take_part() -> None:
    entered = {each.name for part in CONTENDERS.values() for each in part}
    rates = [each for each in TARGETS if "rows/s" in each.measure and "Spark" in each.measure]
    assert rates
    for each in rates:
        assert {each.ours, each.peer} <= entered, each.measure


def test_who_shares_the_session_is_warmed_up() -> None:
    cold = {each.name for part in CONTENDERS.values() for each in part if not each.on_spark}
    peers = {"flink sql", "quix streams", "copy loop", "raw copy"}
    assert cold == peers | {
        "flink sql to topic",
        "quix streams to topic",
        "transactional loop",
        "raw consumption",
    }


def test_every_size_can_be_asked_for() -> None:
    assert {each.value for each in Sizes} == set(SIZES)


def test_a_part_that_is_not_there_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="no part 'postgre'.*postgres"):
        bench(SIZES["small"], ["postgre"])


@pytest.fixture
def findings() -> Findings:
    figures = (("tallygate", 300.0), ("spark jdbc tuned", 200.0), ("spark jdbc", 100.0))
    return Findings(
        {
            name: Figure(
                name, "rows/s", (rate - 1, rate, rate + 2), "exactly-once", "s", (SPENT,), (1,)
            )
            for name, rate in figures
        },
        {"flink sql": "it cannot\nbe installed"},
    )


def test_what_is_written_for_programs(findings: Findings, tmp_path: Path) -> None:
    write_json(findings, tmp_path / "results")
    first, second = json.loads((tmp_path / "results" / "latest.json").read_text())
    assert first == {
        "measure": "PostgreSQL append, rows/s against Spark JDBC tuned",
        "ours": 300.0,
        "peer": 200.0,
        "ratio": 1.5,
        "target": 1.6,
        "met": False,
    }
    assert second["met"]


def test_what_is_written_for_people(findings: Findings, tmp_path: Path) -> None:
    findings.figures["64 partitions"] = replace(findings.figures["tallygate"], name="64 partitions")
    findings.growth.append("64 partitions")
    page = tmp_path / "benchmarks.md"
    page.write_text(f"# Ours\n\nbefore\n\n{BEGIN}\nold\n{END}\n\nafter\n")
    for _ in range(2):  # again: what was written before is replaced
        write_page(findings, SIZES["small"], page)
    text = page.read_text()
    assert "old" not in text
    assert text.count("| tallygate |") == text.count("| 64 partitions |") == 1
    assert text.startswith("# Ours\n\nbefore\n") and text.endswith("\n\nafter\n")
    assert "| 300.00 | 200.00 | 1.50 | ≥ 1.6 | **missed** |" in text
    assert "flink sql does not count: it cannot be installed" in text
    assert "<svg" in (tmp_path / "benchmarks" / "postgres.svg").read_text()


@pytest.fixture
def stage(small_stack: Stack, spark: SparkSession) -> Iterator[Stage]:
    settings = Settings.load({"stack": small_stack.name})
    work = Work(ROWS, topic=f"bench-{next(_numbers)}")
    made = Stage(small_stack, spark, settings, work)
    made.fill()
    yield made
    made.topics.delete([work.topic])


@pytest.mark.parametrize(
    "run",
    [
        ours.append,
        ours.pass_on,
        ours.windows,
        ours.into_files,
        plain.tuned,
        plain.own_sink,
        plain.merged,
        plain.files,
        loops.copy_loop,
        loops.transactional_loop,
        limits.raw_copy,
    ],
)
def test_contenders_move_every_row(stage: Stage, run: Callable[[Stage], Course]) -> None:
    assert run(stage).rows == ROWS


def test_programs_get_as_many_processes_as_spark_has_cores(stage: Stage) -> None:
    cores = stage.spark.sparkContext.defaultParallelism
    for partitions in (1, cores, cores + 1):
        work = replace(stage.work, partitions=partitions)
        there = Stage(stage.stack, stage.spark, stage.settings, work)
        assert there.processes == min(cores, partitions)
    told = {each.settings_on(stage) for part in CONTENDERS.values() for each in part}
    assert f"its PostgreSQL sink, {stage.processes} processes" in told
    assert not any("{" in each for each in told)


def test_only_later_commits_are_a_recovery(stage: Stage) -> None:
    with (
        stage.table("killed", "id bigint") as table,
        psycopg.connect(stage.stack.dsn, autocommit=True) as connection,
    ):
        connection.execute(f"INSERT INTO {table} VALUES (1)".encode())
        since = time.time()
        connection.execute(f"INSERT INTO {table} VALUES (2)".encode())
        assert since < recovery._next_commit(stage, table, since) < time.time()


def test_latency_is_of_all_records(stage: Stage) -> None:
    found = latency.latency(stage, latency.ours, rate=200, seconds=3)
    assert 0 < found.p50 <= found.p99 < 60


def test_a_run_in_which_records_are_missing_has_no_latency(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latency, "REST", 0.0)
    monkeypatch.setattr(latency, "LONGEST", 0.0)

    def idle(*_: object) -> latency.Stop:
        return lambda: None

    with pytest.raises(MiscountedError, match="0 of 100 records"):
        latency.latency(stage, idle, rate=100, seconds=1)


def test_a_pipeline_that_fails_while_its_latency_is_measured_says_why(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latency, "LONGEST", 0.0)

    def lost(stage: Stage, _: str, table: str, checkpoint: str) -> latency.Stop:
        return latency.ours(stage, "nowhere", table, checkpoint)

    with pytest.raises(TallygateError, match="UnknownTopicOrPartition"):
        latency.latency(stage, lost, rate=100, seconds=1)


def test_a_row_that_is_missing_or_there_twice_does_not_count(stage: Stage) -> None:
    with (
        stage.table("wrong", "id bigint") as table,
        psycopg.connect(stage.stack.dsn, autocommit=True) as connection,
    ):
        connection.execute(f"INSERT INTO {table} SELECT generate_series(1, {ROWS})".encode())
        stage.course_of_table(table)
        connection.execute(f"UPDATE {table} SET id = 2 WHERE id = 1".encode())
        with pytest.raises(MiscountedError):
            stage.course_of_table(table)
        connection.execute(f"DELETE FROM {table} WHERE id = 2".encode())
        with pytest.raises(MiscountedError):
            stage.course_of_table(table)


def test_a_record_that_is_there_twice_does_not_count(stage: Stage) -> None:
    topic = stage.target("twice")
    with Producer(stage.connection) as producer:
        for number in [*range(ROWS - 1), 0]:
            producer.send(topic, f'{{"id":{number},"account":1}}')
    with pytest.raises(MiscountedError, match=f"{ROWS} records and {ROWS - 1} ids"):
        stage.course_of_topic(topic)


def test_counts_that_do_not_add_up_do_not_count(stage: Stage) -> None:
    with (
        stage.table("sums", "payments bigint") as table,
        psycopg.connect(stage.stack.dsn, autocommit=True) as connection,
    ):
        connection.execute(f"INSERT INTO {table} VALUES ({ROWS - 1})".encode())
        with pytest.raises(MiscountedError):
            stage.check_windows(table)


def test_growth_is_measured_on_topics_of_their_own(stage: Stage) -> None:
    more = stage.filled(topic=f"{stage.work.topic}-more", partitions=8)
    assert more.work == replace(stage.work, topic=f"{stage.work.topic}-more", partitions=8)
    assert ours.append(more).rows == ROWS
    more.topics.delete([more.work.topic])


def test_growth_is_told_by_rows_partitions_and_history(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sizes are small, and Flink is left to `make bench`, where it is installed."""
    seen: list[Work] = []

    def instead(longer: Stage) -> Course:
        seen.append(longer.work)
        return ours.append(longer)

    monkeypatch.setattr(bench_module, "LEAST", ROWS)
    monkeypatch.setattr(bench_module, "LONGER", 2 * ROWS)
    monkeypatch.setattr(bench_module, "MANY", 8)
    monkeypatch.setattr(growth, "BATCH", ROWS // 5)
    monkeypatch.setattr(flink, "into_table", instead)
    found = Findings()
    size = replace(SIZES["small"], most_rows=2 * ROWS)
    bench_module._growth(stage, size, found, silent)
    rows = [f"{number:,} rows" for number in (ROWS, 10 * ROWS, 2 * ROWS)]
    fifths = [f"fifth {number} of them" for number in range(1, 6)]
    assert found.growth == [*rows, *fifths, "4 partitions", "64 partitions", "long ledger"]
    assert (seen[0].rows, seen[0].size) == (2 * ROWS, stage.work.size), "batches as large"
    left = {"wide", "longer", *(f"rows-{number}" for number in (ROWS, 10 * ROWS, 2 * ROWS))}
    assert left.isdisjoint(each.name for each in stage.topics.all())
    with psycopg.connect(stage.stack.dsn) as connection:
        most = connection.execute(
            "SELECT max(n) FROM (SELECT count(*) AS n FROM tallygate.batches GROUP BY pipeline) c"
        ).fetchone()
    assert most is not None and most[0] >= growth.HISTORY


def test_what_fails_does_not_take_the_rest_with_it() -> None:
    found = Findings()
    _tried("a part", found, lambda: 1 // 0)
    assert found.failed == {"a part": "ZeroDivisionError: integer division or modulo by zero"}
