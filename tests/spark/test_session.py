"""The session against real Kafka and PostgreSQL."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tallygate import session
from tallygate.errors import ConfigError
from tallygate.settings import Settings
from tallygate.spark import session as session_module
from tallygate.spark.temporary_conf import temporary_conf


def test_the_session_is_fit_for_streaming(spark: SparkSession) -> None:
    cores = spark.sparkContext.defaultParallelism
    assert int(spark.conf.get("spark.sql.shuffle.partitions") or 0) == max(2, cores)
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_settings_that_were_held_are_again_what_they_were(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.ansi.enabled", "false")
    unset = "spark.sql.streaming.noDataMicroBatches.enabled"
    with temporary_conf(spark, {"spark.sql.ansi.enabled": "true", unset: "false"}):
        assert spark.conf.get("spark.sql.ansi.enabled") == "true"
        assert spark.conf.get(unset) == "false"
    assert spark.conf.get("spark.sql.ansi.enabled") == "false"
    assert spark.conf.get(unset, None) is None
    spark.conf.unset("spark.sql.ansi.enabled")


def test_an_existing_session_is_taken_as_it_is(spark: SparkSession, settings: Settings) -> None:
    assert session(existing=spark, settings=settings) is spark
    assert session(settings=settings) is spark


def test_a_session_without_the_connector_is_refused_with_the_cure(
    spark: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "CONNECTOR_CLASS", "org.example.NotThere")
    with pytest.raises(ConfigError, match="spark.jars=.*spark-sql-kafka"):
        session(existing=spark, settings=settings)


def test_workers_run_this_python_under_our_daemon(spark: SparkSession) -> None:
    def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import zipimport

        patched = zipimport.zipimporter.invalidate_caches.__module__
        loaded = str({"confluent_kafka", "psycopg", "pyarrow.json"} <= set(sys.modules))
        for _ in batches:
            yield pa.RecordBatch.from_pydict(
                {"python": [sys.executable], "patched": [patched], "loaded": [loaded]}
            )

    schema = "python string, patched string, loaded string"
    row = spark.range(1).repartition(1).mapInArrow(look, schema).collect()[0]
    assert row.python == sys.executable
    assert row.patched in ("tallygate.spark.worker_daemon", "__main__")
    assert row.loaded == "True"


def test_the_log_is_saved_and_kept_off_the_terminal(
    spark: SparkSession, settings: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    jvm.java.lang.System.err.println("a word from the JVM")
    captured = capfd.readouterr()
    assert "a word" not in captured.out + captured.err
    newest = max((settings.state_dir / "logs").glob("spark-*.log"), key=lambda p: p.stat().st_mtime)
    assert "a word from the JVM" in newest.read_text()


def test_only_the_newest_logs_are_kept(tmp_path: Path) -> None:
    mine = tmp_path / f"spark-20190101T000000-{os.getpid()}.log"
    mine.touch()
    for number in range(30):
        (tmp_path / f"spark-20200101T0000{number:02}-999999999.log").touch()
    session_module._new_log(tmp_path).touch()
    assert mine.exists(), "its session is alive"
    assert len(list(tmp_path.iterdir())) == session_module.LOGS_KEPT + 1


def test_a_start_leaves_the_folders_of_living_programs_whatever_their_host_is_called(
    tmp_path: Path,
) -> None:
    first = session_module.own_folder(tmp_path, "ip-10-0-0-1.example.internal")
    second = session_module.own_folder(tmp_path, "ip-10-0-0-1.example.internal")
    assert first.exists() and second.exists()


def test_what_spark_writes_down_for_a_while_goes_with_the_program(settings: Settings) -> None:
    """And what a program left that was killed goes when the next one starts."""
    folder = settings.state_dir / "tmp"
    killed = folder / f"spark-{socket.gethostname()}-x-999999999"
    elsewhere = folder / "spark-another-machine-x-999999999"
    for each in (killed, elsewhere):
        each.mkdir(parents=True)
    program = (
        "import os, tempfile; from pathlib import Path; from tallygate import session; "
        "spark = session(); spark.range(10).repartition(2).collect(); "
        "print(spark.sparkContext._jvm.System.getProperty('java.io.tmpdir'))"
    )
    before = {path.name for path in Path(tempfile.gettempdir()).iterdir()}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    used = Path(done.stdout.strip())
    assert used.parent == folder
    assert not used.exists()
    assert not killed.exists()
    assert elsewhere.exists()
    left = {path.name for path in Path(tempfile.gettempdir()).iterdir()} - before
    assert not [name for name in left if name.startswith(("spark-", "blockmgr"))]


def test_jars_of_the_user_are_kept_beside_ours() -> None:
    assert session_module.joined(["a.jar", "b.jar"], "c.jar,a.jar", "") == "a.jar,b.jar,c.jar"
