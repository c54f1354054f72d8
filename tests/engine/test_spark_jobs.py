"""Spark jobs that exist, and change one line: `write_stream`, also under spark-submit."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from fixtures.flows import SCHEMA, Flow
from tallygate import Postgres, write_stream
from tallygate.engine.run import BEAT_EVERY
from tallygate.errors import ConfigError
from tallygate.jvm.jars import jar_paths
from tallygate.jvm.java import find_java
from tallygate.settings import Settings
from tallygate.waiting import wait_until


def _stream(flow: Flow) -> object:
    return (
        flow.spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", flow.stack.bootstrap_servers)
        .option("subscribe", flow.name)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 100)
        .load()
        .selectExpr(f"from_json(CAST(value AS STRING), '{SCHEMA}') AS event")
        .select("event.*")
    )


def test_a_job_that_exists_changes_one_line(flow: Flow) -> None:
    """It ran with foreachBatch; its checkpoint is taken over, and it goes on where it was."""
    flow.send(150)
    old: list[int] = []
    writer = _stream(flow).writeStream  # type: ignore[attr-defined]
    writer.foreachBatch(lambda batch, _: old.extend(row.id for row in batch.collect())).option(
        "checkpointLocation", str(flow.checkpoint)
    ).trigger(availableNow=True).start().awaitTermination()
    assert sorted(old) == list(range(150))
    flow.send(200)
    for _ in range(2):
        query = write_stream(
            _stream(flow),  # type: ignore[arg-type]
            name=flow.name,
            sink=Postgres(flow.name),
            checkpoint=str(flow.checkpoint),
            trigger={"availableNow": True},
            settings=flow.settings,
        )
        query.awaitTermination()
    assert flow.rows() == list(range(150, 350))
    assert flow.rows("SELECT DISTINCT _topic FROM {table}") == [flow.name]


def test_a_job_that_is_fenced_while_it_waits_fails_with_the_reason(flow: Flow) -> None:
    """It does not wait for its next batch, nor just end, as if all were well: so it is with all who
    wait for queries."""
    flow.send(50)
    flow.spark.streams.resetTerminated()
    older = write_stream(
        _stream(flow),  # type: ignore[arg-type]
        name=flow.name,
        sink=Postgres(flow.name),
        checkpoint=str(flow.folder / "older"),
        settings=flow.settings,
    )
    wait_until(lambda: len(flow.rows("SELECT id FROM {table}")) == 50, 60, "nothing was written")
    assert not older.awaitTermination(2 * BEAT_EVERY)  # type: ignore[arg-type]
    assert older.exception() is None
    flow.run()
    with pytest.raises(StreamingQueryException, match="FencedError: .* run 2 took over on"):
        older.awaitTermination(10 * BEAT_EVERY)  # type: ignore[arg-type]
    assert "FencedError" in str(older.exception())
    with pytest.raises(StreamingQueryException):
        flow.spark.streams.awaitAnyTermination(1)
    flow.spark.streams.resetTerminated()
    outcome = f"SELECT outcome FROM tallygate.runs WHERE pipeline = '{flow.name}' AND epoch = 1"
    wait_until(lambda: flow.rows(outcome)[0], 20, "how it ended is not written down")
    assert flow.rows(outcome)[0].startswith("failed: run 1 ")
    flow.send(50)
    flow.run()
    flow.check()


def test_a_frame_that_cannot_be_delivered_is_refused(flow: Flow) -> None:
    rate = flow.spark.readStream.format("rate").load()
    where = {"name": flow.name, "checkpoint": str(flow.checkpoint), "settings": flow.settings}
    with pytest.raises(ConfigError, match="not Kafka|0 Kafka clusters"):
        write_stream(rate, sink=Postgres("t"), **where)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs a streaming frame"):
        write_stream(flow.spark.range(1), sink=Postgres("t"), **where)  # type: ignore[arg-type]


@pytest.mark.system
def test_a_job_runs_under_spark_submit(flow: Flow, tmp_path: Path) -> None:
    flow.send(50)
    program = tmp_path / "job.py"
    program.write_text(
        textwrap.dedent(
            f"""
            from pyspark.sql import SparkSession
            import tallygate
            spark = SparkSession.builder.getOrCreate()
            frame = (
                spark.readStream.format("kafka")
                .option("kafka.bootstrap.servers", "{flow.stack.bootstrap_servers}")
                .option("subscribe", "{flow.name}").option("startingOffsets", "earliest").load()
                .selectExpr("from_json(CAST(value AS STRING), '{SCHEMA}') AS e").select("e.*")
            )
            tallygate.write_stream(
                frame, name="{flow.name}", sink=tallygate.Postgres("{flow.name}"),
                checkpoint="{flow.checkpoint}", trigger={{"availableNow": True}},
                settings=tallygate.Settings.load({{"stack": "small"}}),
            ).awaitTermination()
            """
        )
    )
    jars = ",".join(str(path) for path in jar_paths("spark", flow.settings))
    done = _submitted(program, "--jars", jars, settings=flow.settings)
    assert done.returncode == 0, done.stderr[-3000:]
    flow.check()


@pytest.mark.system
def test_what_spark_submit_was_told_stays(settings: Settings, tmp_path: Path) -> None:
    program = tmp_path / "job.py"
    program.write_text(
        textwrap.dedent(
            """
            import json, tallygate
            conf = dict(tallygate.session().sparkContext.getConf().getAll())
            print("told " + json.dumps(conf))
            """
        )
    )
    jars = [str(path) for path in jar_paths("spark", settings)]
    own = tmp_path / "own.jar"
    shutil.copy(jars[0], own)
    told = {"spark.executor.memory": "600m", "spark.sql.shuffle.partitions": "7"}
    flags = [each for name, text in told.items() for each in ("--conf", f"{name}={text}")]
    given = ("--name", "theirs", "--jars", ",".join([*jars, str(own)]), *flags)
    done = _submitted(program, *given, settings=settings)
    assert done.returncode == 0, done.stderr[-3000:]
    (said,) = [line for line in done.stdout.splitlines() if line.startswith("told ")]
    conf = json.loads(said.removeprefix("told "))
    assert {name: conf[name] for name in told} == told
    assert conf["spark.app.name"] == "theirs"
    assert str(own) in conf["spark.jars"]


def _submitted(program: Path, *flags: str, settings: Settings) -> subprocess.CompletedProcess[str]:
    submit = Path(sys.executable).parent / "spark-submit"
    return subprocess.run(
        [str(submit), "--master", "local[2]", *flags, str(program)],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "JAVA_HOME": str(find_java(settings).home),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        timeout=120,
        check=False,
    )
