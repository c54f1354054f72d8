"""Running pipelines as users do: files, commands, signals, jobs that exist."""

import contextlib
import gc
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import textwrap
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from fixtures.commands import Tallygate
from fixtures.flows import SCHEMA, Flow
from tallygate import Kafka, KafkaSink, Pipeline, Postgres
from tallygate.engine.progress import Progress
from tallygate.engine.status import status as tallygate_status
from tallygate.errors import ConfigError, DeadLettersError
from tallygate.kafka import clients
from tallygate.targets.local_run import LocalRun
from tallygate.waiting import wait_until


def _shouted(source: DataFrame) -> DataFrame:
    return source.withColumn("account", f.upper("account"))


def test_steps_in_sql_and_python_follow_each_other_with_parameters(flow: Flow) -> None:
    flow.send(10)
    flow.run(
        transform=[
            {"name": "late", "sql": "SELECT id, account FROM source WHERE id >= :least"},
            {"name": "loud", "function": _shouted},
            {"sql": "SELECT id, concat(account, :mark) AS account FROM loud"},
        ],
        parameters={"least": 8, "mark": "!"},
    )
    assert flow.rows("SELECT id, account FROM {table} ORDER BY 1") == [(8, "A3!"), (9, "A4!")]


def _yaml(flow: Flow) -> str:
    return textwrap.dedent(
        f"""
        name: {flow.name}
        source:
          topic: {flow.name}
          schema: "{SCHEMA}"
          max_records: 100
        sink:
          table: {flow.name}
        checkpoint: {flow.checkpoint}
        """
    )


def test_init_check_run_and_status(flow: Flow, tallygate: Tallygate, tmp_path: Path) -> None:
    flow.send(250)
    tallygate("init", flow.name, "--topic", flow.name, "--name", "small")
    file = tmp_path / f"{flow.name}.yaml"
    assert "schema: id long, account string" in file.read_text()
    tallygate(
        "init", flow.name, "--topic", flow.name, "--name", "small", code=ConfigError.exit_code
    )
    said = tallygate("check", str(file)).stdout
    assert "plan       narrow" in said
    assert "exactly-once, by partition; small batches by the driver" in said
    said = tallygate("run", str(file), "--until", "available", "--name", "small").stdout
    assert "done; 1 batches, 250 records, 250 rows, 0 dead letters" in said
    flow.check()
    found = json.loads(tallygate("status", "--name", "small", "-o", "json").stdout)
    (mine,) = [each for each in found["pipelines"] if each["pipeline"] == flow.name]
    assert (mine["state"], mine["outcome"]) == ("stopped", "done")
    assert sum(mine["positions"].values()) == 250


def test_a_file_of_csv_becomes_rows_by_the_schema_that_init_guesses(
    flow: Flow, tallygate: Tallygate, tmp_path: Path
) -> None:
    file = tmp_path / "flights.csv"
    rows = ["id,delay,tail,at", "1,2.5,N1,2013-01-01T05:00:00Z", "2,NA,,2013-01-01T06:00:00Z"]
    file.write_text("\n".join(rows))
    here = ("--name", "small")
    tallygate("produce", flow.name, str(file), "--null", "NA", *here)
    tallygate("init", flow.name, "--topic", flow.name, *here)
    spec = tmp_path / f"{flow.name}.yaml"
    assert "schema: id long, delay double, tail string, at timestamp" in spec.read_text()
    tallygate("run", str(spec), "--until", "available", *here)
    found = flow.rows('SELECT id, delay, tail, "at" FROM {table} ORDER BY id')
    five, six = (datetime(2013, 1, 1, hour, tzinfo=UTC) for hour in (5, 6))
    assert found == [(1, 2.5, "N1", five), (2, None, None, six)]


def test_a_run_of_dead_letters_alone_says_why_and_has_a_code_of_its_own(
    flow: Flow, tallygate: Tallygate, tmp_path: Path
) -> None:
    """Whatever ended the transactions of the records is counted as an offset, and is none of them.
    What the error names as the way out is walked."""
    flow.send_text([json.dumps({"id": f"{number}x"}) for number in range(3)])
    file = tmp_path / "pipeline.yaml"
    file.write_text(_yaml(flow))
    command = ("run", str(file), "--until", "available", "--name", "small")
    done = tallygate(*command, code=DeadLettersError.exit_code)
    lists = f"tallygate dead-letters list {file}"
    assert "its 3 records are dead letters: id: '" in done.stdout
    assert f"`{lists}` lists them" in done.stdout
    assert f"`{lists}` shows why" in done.stderr
    listed = tallygate(*lists.split()[1:], "--name", "small").stdout
    assert listed.count(" is not a") == 3
    tallygate(*command)  # nothing new, which is no failure
    file.write_text(_yaml(flow).replace("id long", "id string"))
    tallygate("rebuild", str(file), "--name", "small")
    assert flow.rows() == ["0x", "1x", "2x"]


@pytest.mark.parametrize("sink", ["postgres", "kafka", "parquet", "delta"])
def test_a_note_names_the_causes_of_dead_letters(flow: Flow, sink: str) -> None:
    flow.topics.create(f"{flow.name}-out")
    sinks = {
        "postgres": {"table": flow.name},
        "kafka": {"topic": f"{flow.name}-out"},
        "parquet": {"parquet": str(flow.folder / "rows")},
        "delta": {"delta": str(flow.folder / "rows")},
    }
    flow.send_text([json.dumps({"id": f"{number}x"}) for number in range(9)])
    given = {"sink": sinks[sink], "transform": "SELECT id, account FROM source"}
    notes = flow.run(**given)
    (said,) = [each for each in notes if "gave no row, since its 9 records" in each]
    assert said.count("id: '") == 3
    flow.send(10)
    assert not any("gave no row" in each for each in flow.run(**given))


@pytest.mark.parametrize("how", ["SIGTERM", "stop", "stop a topic's"])
def test_a_run_finishes_its_batch_and_stops(
    flow: Flow, tallygate: Tallygate, tmp_path: Path, how: str
) -> None:
    flow.send(150)
    file = tmp_path / "pipeline.yaml"
    file.write_text(_yaml(flow))
    if how == "stop a topic's":
        flow.topics.create(f"{flow.name}-out")
        file.write_text(_yaml(flow).replace(f"table: {flow.name}", f"topic: {flow.name}-out"))
    command = [sys.executable, "-m", "tallygate", "run", str(file), "--name", "small", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        events = [json.loads(running.stdout.readline()) for _ in range(2)]
        assert [event["rows"] for event in events] == [100, 50]
        if how != "SIGTERM":
            wait_until(lambda: _state(tallygate, flow.name) == "running", 20, "no heartbeat")
            tallygate("stop", flow.name, "--name", "small")
        else:
            running.send_signal(signal.SIGTERM)
        rest = [json.loads(line) for line in running.stdout]
        assert running.wait(60) == 0
    assert rest[-1]["event"] == "end"
    assert rest[-1]["outcome"] == "stopped"
    if how == "stop a topic's":
        assert (flow.stack.folder / "runs" / f"{flow.name}.json").exists()
        assert _state(tallygate, flow.name) == "stopped"
    else:
        flow.check()


@pytest.mark.parametrize("sink", ["postgres", "kafka"])
def test_the_lag_of_a_run_without_a_batch_is_known(flow: Flow, sink: str) -> None:
    """The second run finds nothing to do."""
    flow.topics.create(f"{flow.name}-out")
    given = {"postgres": Postgres(flow.name), "kafka": KafkaSink(f"{flow.name}-out")}[sink]
    flow.send(30)
    flow.run(sink=given)
    flow.run(sink=given)
    found = tallygate_status(flow.name, settings=flow.settings)
    assert (found.progress.get("batch"), found.lag) == (None, 0)
    assert sum(found.positions.values()) == 30


def test_a_terminal_shows_a_table_that_changes(flow: Flow, tmp_path: Path) -> None:
    flow.send(250)
    file = tmp_path / "pipeline.yaml"
    counts = "transform: SELECT account, count(*) AS n FROM source GROUP BY account\n"
    upsert = f"table: {flow.name}\n  mode: upsert\n  key: account"
    file.write_text(_yaml(flow).replace(f"table: {flow.name}", upsert) + counts)
    command = [sys.executable, "-m", "tallygate", "run", str(file), "--name", "small"]
    terminal, other = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    with subprocess.Popen(
        [*command, "--until", "available"], stdout=other, stderr=other, env=environment
    ) as running:
        os.close(other)
        shown = b""
        with contextlib.suppress(OSError):  # how a terminal says that nobody writes any more
            while part := os.read(terminal, 65536):
                shown += part
        assert running.wait(60) == 0
    os.close(terminal)
    text = shown.decode()
    assert f"{flow.name}/0" in text
    assert "records/s" in text
    assert "rows of state" in text
    assert "done; 3 batches, 250 records" in text


def _state(tallygate: Tallygate, name: str) -> str:
    found = json.loads(tallygate("status", "--name", "small", "-o", "json").stdout)
    return next(str(p["state"]) for p in found["pipelines"] if p["pipeline"] == name)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("table:", "tabel:"), "line 8: sink.tabel is not a field; did you mean 'table'?"),
        (("max_records: 100", "max_records: 0"), "line 6: source.max_records"),
        (("topic:", "tpoic:"), "source.tpoic is not a field; did you mean 'topic'?"),
        (("name: ", "delivery: twice\nname: "), "delivery"),
        (("id long", "id lonk"), "source.schema: 'id lonk, account string' cannot be read"),
        (("name: ", "name: [1"), "is not valid YAML"),
        (("table: ", "table: ${NOT_SET}"), "uses ${NOT_SET}, which the environment does not set"),
        (("table: ", "mode: upsert\n  table: "), "needs a key"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(
    flow: Flow, tallygate: Tallygate, tmp_path: Path, change: tuple[str, str], said: str
) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(_yaml(flow).replace(*change))
    assert said in tallygate("check", str(file), code=ConfigError.exit_code).stderr


def test_the_environment_fills_in(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TABLE_OF_TEST", "somewhere")
    file = tmp_path / "pipeline.yaml"
    text = _yaml(flow).replace(f"table: {flow.name}", "table: ${TABLE_OF_TEST}_${OTHER:else}")
    file.write_text(text)
    assert Pipeline.load(file).sink == Postgres("somewhere_else")


@pytest.mark.system
def test_modules_that_a_file_names_are_found_beside_it(
    flow: Flow, tallygate: Tallygate, tmp_path: Path
) -> None:
    """By the driver, and by the workers that run what the module defines."""
    flow.send(20)
    (tmp_path / "louder.py").write_text(
        textwrap.dedent(
            """
            from pyspark.sql.functions import udf

            @udf("string")
            def shout(text):
                return text.upper()

            def shouted(source):
                return source.select("id", shout("account").alias("account"))
            """
        )
    )
    file = tmp_path / "pipeline.yaml"
    file.write_text(_yaml(flow) + "transform: louder:shouted\n")
    tallygate("run", str(file), "--name", "small", "--until", "available")
    assert set(flow.rows("SELECT DISTINCT account FROM {table}")) == {f"A{n}" for n in range(5)}
    tallygate("audit", str(file), "--name", "small")


def test_the_group_shows_the_lag(flow: Flow) -> None:
    flow.send(60)
    flow.run()
    admin = clients.admin(flow.stack.cluster.connection)

    def committed() -> int:
        asked = [ConsumerGroupTopicPartitions(f"tallygate.{flow.name}")]
        (future,) = admin.list_consumer_group_offsets(asked).values()
        return sum(each.offset for each in future.result().topic_partitions or ())

    wait_until(lambda: committed() == 60, 10, "the group was not told")


def test_each_batch_says_how_far_it_is_behind(flow: Flow) -> None:
    """By what Spark heard from Kafka before it; before the first batch nothing was."""
    flow.send(90)
    heard: list[Progress] = []
    pipeline = flow.pipeline(source=Kafka(flow.name, schema=SCHEMA, max_records=30))
    pipeline.run(
        until="available", settings=flow.settings, spark=flow.spark, on_progress=heard.append
    )
    assert [sum(each.lag.values()) for each in heard] == [0, 30, 0]
    assert {topic for each in heard[1:] for topic, _ in each.lag} == {flow.name}


@pytest.mark.parametrize("start", ["latest", "time", "offsets"])
def test_where_a_new_pipeline_starts(flow: Flow, start: str) -> None:
    now = datetime.now(UTC)
    two_days_ago = int((now - timedelta(days=2)).timestamp() * 1000)
    flow.send(30, partition=0, timestamp=two_days_ago)
    flow.send(30, partition=0)
    where: object = {
        "latest": "latest",
        "time": (now - timedelta(days=1)).isoformat(),
        "offsets": {flow.name: {0: 40, 1: 0, 2: 0}},
    }[start]
    source = Kafka(flow.name, schema=SCHEMA, start=where)
    flow.run(source=source)
    shutil.rmtree(flow.checkpoint)
    flow.send(5, partition=0)
    flow.run(source=source)
    first = {"latest": 60, "time": 30, "offsets": 40}[start]
    assert flow.rows() == list(range(first, 65))


def test_several_topics_by_pattern_and_metadata(flow: Flow) -> None:
    other = f"{flow.name}-too"
    flow.topics.create(other)
    flow.send(20)
    flow.name, mine = other, flow.name
    flow.send(10)
    flow.name = mine
    source = Kafka(pattern=f"{mine}.*", schema=SCHEMA, headers=True)
    transform = (
        "SELECT id, CAST(_key AS STRING) AS key, year(_timestamp) AS y, size(_headers) AS headers "
        "FROM source"
    )
    flow.run(source=source, transform=transform)
    assert flow.rows() == list(range(30))
    assert flow.rows("SELECT _topic, count(*) FROM {table} GROUP BY 1 ORDER BY 1") == [
        (mine, 20),
        (other, 10),
    ]
    assert flow.rows("SELECT DISTINCT key FROM {table} ORDER BY 1") == [f"a{n}" for n in range(5)]


@pytest.mark.parametrize("sink", ["table", "topic"])
def test_a_run_leaves_nothing_open_to_kafka(flow: Flow, sink: str) -> None:
    """Spark's JVM keeps what it was given to call; what a run has open must not live as long."""
    flow.send(10)
    target = {}
    if sink == "topic":
        flow.topics.create(f"{flow.name}-out", partitions=3)
        target = {"sink": KafkaSink(f"{flow.name}-out")}
    flow.run(**target)
    before = _clients()
    for _ in range(3):
        flow.send(10)
        flow.run(**target)
    gc.collect()
    wait_until(lambda: _clients() <= before, 15, lambda: f"{_clients()} clients, {before} before")


def _clients() -> int:
    """The clients of librdkafka that live in this process, by their main threads."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            names.append((task / "comm").read_text())
    return names.count("rdk:main\n")


def test_a_table_of_the_store_can_be_read_while_it_is_written(flow: Flow) -> None:
    """What a reader sees is the ledger's word: rows and positions of one snapshot agree."""
    flow.send(300)
    seen: list[tuple[int, int]] = []

    def look(_: object) -> None:
        with psycopg.connect(flow.stack.dsn) as connection:
            row = connection.execute(
                f'SELECT (SELECT count(*) FROM public."{flow.name}"), '
                "(SELECT sum(next_offset) FROM tallygate.positions "
                f"WHERE pipeline = '{flow.name}')".encode()
            ).fetchone()
        assert row is not None
        seen.append((int(row[0]), int(row[1])))

    flow.pipeline().run(
        until="available", settings=flow.settings, spark=flow.spark, on_progress=look
    )
    assert len(seen) == 3
    assert all(rows == offsets for rows, offsets in seen)


def test_a_run_leaves_the_record_of_another_alone(tmp_path: Path) -> None:
    """One that never began, or that was taken over, must not end the run that lives."""
    older, newer, failed = (LocalRun(tmp_path, "p") for _ in range(3))
    older.begin(target="t", delivery="exactly-once", run=1)
    newer.begin(target="t", delivery="exactly-once", run=2)
    older.beat({"batch": 7})
    older.end("failed: fenced")
    failed.end("failed: a typo")
    assert (newer.read()["run"], newer.read()["outcome"]) == (2, None)
    newer.end("done")
    assert newer.read()["outcome"] == "done"
