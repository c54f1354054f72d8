"""Sources that are not Kafka, each with the delivery that it can honestly give; sinks without a
ledger."""

import importlib
import json
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import Row

from fixtures.commands import Tallygate
from fixtures.flows import Flow
from fixtures.killing import Killed
from tallygate import KafkaSink, Pipeline, Stack
from tallygate.engine.status import request_stop
from tallygate.errors import ConfigError, LedgerError, QueryError
from tallygate.lab.drills.workload import ids_in
from tallygate.waiting import wait_until

SCHEMA = "id long, account string"
EXAMPLES = str(Path(__file__).parents[2] / "examples")


def _files(folder: Path, first: int, count: int) -> None:
    """`count` files of ten rows each, made whole or not at all."""
    folder.mkdir(exist_ok=True)
    for number in range(first, first + count):
        rows = ({"id": number * 10 + n, "account": f"a{n}"} for n in range(10))
        partial = folder / f".{number}"
        partial.write_text("".join(json.dumps(row) + "\n" for row in rows))
        partial.rename(folder / f"{number}.json")


def _source(folder: Path) -> dict[str, Any]:
    return {"folder": str(folder), "schema": SCHEMA, "max_files": 1}


@pytest.mark.system
def test_files_survive_kills(small_stack: Stack, tmp_path: Path) -> None:
    _files(tmp_path / "in", 0, 6)
    spec = {
        "name": "files_killed",
        "source": _source(tmp_path / "in"),
        "sink": {"table": "files_killed"},
    }
    Killed(tmp_path, spec).through(["rows-written@1", "committed@2", "batch-committed@3"])
    with psycopg.connect(small_stack.dsn) as connection:
        rows = connection.execute("SELECT id FROM files_killed ORDER BY 1").fetchall()
    assert [id for (id,) in rows] == list(range(60))


def test_files_without_their_checkpoint_are_refused(flow: Flow) -> None:
    """Only the checkpoint knows which files were read: to begin anew would write rows twice."""
    _files(flow.folder / "in", 0, 2)
    flow.run(source=_source(flow.folder / "in"))
    shutil.rmtree(flow.checkpoint)
    _files(flow.folder / "in", 2, 1)
    with pytest.raises(LedgerError, match="one that is not Kafka, is gone.*rebuild"):
        flow.run(source=_source(flow.folder / "in"))
    assert flow.rows() == list(range(20))


def test_files_with_an_older_checkpoint_are_refused(flow: Flow) -> None:
    """A position is only a count there: the old checkpoint would count other files by it, and the
    ledger would pass them over as done."""
    source = _source(flow.folder / "in")
    _files(flow.folder / "in", 0, 2)
    flow.run(source=source)
    with flow.checkpoint_of_now():
        _files(flow.folder / "in", 2, 2)
        flow.run(source=source)
    _files(flow.folder / "in", 4, 1)
    with pytest.raises(LedgerError, match="is not the one that the ledger goes with"):
        flow.run(source=source)
    assert flow.rows() == list(range(40))


def test_a_file_that_is_older_than_others_is_read(flow: Flow) -> None:
    """Spark by itself passes over files that are a week older than the newest, and says nothing."""
    _files(flow.folder / "in", 0, 1)
    flow.run(source=_source(flow.folder / "in"))
    flow.sent = 20
    old = time.time() - 30 * 24 * 3600
    _files(flow.folder / "later", 1, 1)
    os.utime(flow.folder / "later" / "1.json", (old, old))
    (flow.folder / "later" / "1.json").rename(flow.folder / "in" / "1.json")
    flow.run(source=_source(flow.folder / "in"))
    flow.check()


def test_what_was_only_shown_is_not_taken_for_written(
    flow: Flow, capsys: pytest.CaptureFixture[str]
) -> None:
    """The console keeps no ledger, so a table of the same pipeline begins at the beginning."""
    flow.send(10)
    flow.run(sink={"console": 3}, delivery="at-least-once")
    assert "10 rows" in capsys.readouterr().out
    with pytest.raises(LedgerError, match="what came before would be missing from table"):
        flow.run()
    shutil.rmtree(flow.checkpoint)
    flow.run()
    flow.check()


def test_several_sources_without_their_checkpoint_are_refused(flow: Flow) -> None:
    other = f"{flow.name}-too"
    flow.topics.create(other)
    flow.send(10)
    sources = {
        name: {"topic": topic, "schema": SCHEMA} for name, topic in (("a", flow.name), ("b", other))
    }
    both = {
        "source": None,
        "sources": sources,
        "transform": "SELECT id, account FROM a UNION ALL SELECT id, account FROM b",
    }
    flow.run(**both)
    flow.check()
    shutil.rmtree(flow.checkpoint)
    with pytest.raises(LedgerError, match="of a pipeline with several sources"):
        flow.run(**both)


def test_files_into_a_topic(flow: Flow) -> None:
    flow.topics.create(f"{flow.name}-out", partitions=2)
    _files(flow.folder / "in", 0, 3)
    sink = KafkaSink(f"{flow.name}-out", key="account")
    flow.run(source=_source(flow.folder / "in"), sink=sink)
    last = flow.checkpoint / "commits" / "2"
    last.unlink()
    (last.parent / ".2.crc").unlink(missing_ok=True)
    _files(flow.folder / "in", 3, 1)
    flow.run(source=_source(flow.folder / "in"), sink=sink)
    found = ids_in(f"{flow.name}-out", flow.stack.cluster.connection)
    assert sorted(found) == list(range(40))


def test_a_line_that_does_not_fit_stops_the_pipeline(flow: Flow) -> None:
    _files(flow.folder / "in", 0, 1)
    (flow.folder / "in" / "bad.json").write_text('{"id": "no number"}\n')
    with pytest.raises(QueryError, match=r"no number.*bad\.json"):
        flow.run(source=_source(flow.folder / "in"))
    assert set(flow.rows()) <= set(range(10))
    with pytest.raises(ConfigError, match="is not a folder"):
        flow.run(source=_source(flow.folder / "nowhere"))


def test_words_from_a_socket_to_the_console(
    flow: Flow, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example, with the lines of its own server."""
    monkeypatch.syspath_prepend(EXAMPLES)
    example, stage = importlib.import_module("word_count"), importlib.import_module("stage")
    pipeline = example.from_socket(stage.serve(example.lines()))
    thread = threading.Thread(target=lambda: pipeline.run(settings=flow.settings, spark=flow.spark))
    thread.start()
    wanted = {f"word={word}, times={times}" for word, times in example.counted()}
    said = ""

    def shown() -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return all(line in said for line in wanted)

    try:
        wait_until(shown, 60, lambda: f"the words were not counted: {said}")
        request_stop(pipeline.name, flow.settings)
    finally:
        thread.join(60)


@pytest.mark.parametrize("format_", ["text", "csv", "parquet"])
def test_files_of_every_format(flow: Flow, format_: str) -> None:
    """Those of JSON are in the tests above."""
    folder = flow.folder / "in"
    rows = flow.spark.createDataFrame([(1, "a,b"), (2, None)], SCHEMA)
    if format_ == "text":
        folder.mkdir()
        (folder / "lines").write_text("one line\n\nanother\n")
    else:
        rows.coalesce(1).write.format(format_).save(str(folder))
    schema = {} if format_ == "text" else {"schema": SCHEMA}
    flow.run(source={"folder": str(folder), "format": format_, **schema})
    columns = "value" if format_ == "text" else "id, account"
    found = flow.rows(f"SELECT {columns} FROM {{table}} ORDER BY 1")
    assert found == (["", "another", "one line"] if format_ == "text" else [(1, "a,b"), (2, None)])


@pytest.mark.system
def test_rows_by_rate_survive_kills(small_stack: Stack, tmp_path: Path) -> None:
    """Rows are numbered: each is there once, and none is left out in between."""
    spec = {
        "name": "rate_killed",
        "source": {"rate": 200},
        "sink": {"table": "rate_killed"},
        "trigger": "200ms",
    }
    killed = Killed(tmp_path, spec)
    for point in ("rows-written@2", "committed@4"):
        killed.run(point, until="stopped")
    with psycopg.connect(small_stack.dsn) as connection:
        rows = connection.execute("SELECT value FROM rate_killed ORDER BY 1").fetchall()
    assert rows
    assert [value for (value,) in rows] == list(range(len(rows)))


def test_rows_by_rate_into_a_view(flow: Flow) -> None:
    pipeline = Pipeline(
        name=flow.name,
        source={"rate": 100},
        sink={"memory": flow.name},
        delivery="at-least-once",
        checkpoint=str(flow.checkpoint),
        trigger="500ms",
    )

    def stop(progress: Any) -> None:
        if progress.written.rows:
            request_stop(flow.name, flow.settings)

    pipeline.run(settings=flow.settings, spark=flow.spark, on_progress=stop)
    values = [row.value for row in flow.spark.sql(f"SELECT value FROM {flow.name}").collect()]
    assert values
    assert sorted(values) == list(range(len(values)))


def test_an_object_of_the_users_own_for_each_task(flow: Flow, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()

    class Writer:
        """Writes what it gets to a file for each task and batch."""

        def open(self, partition: int, batch: int) -> bool:
            self._file = (folder / f"{batch}-{partition}").open("w")
            return True

        def process(self, row: Row) -> None:
            self._file.write(f"{row.id}\n")

        def close(self, error: Exception | None) -> None:
            self._file.close()

    flow.send(120)
    flow.run(sink={"foreach": Writer}, delivery="at-least-once")
    lines = [int(line) for file in folder.iterdir() for line in file.read_text().split()]
    assert sorted(lines) == list(range(120))
    with pytest.raises(ConfigError, match="has no method process"):
        flow.run(sink={"foreach": "pathlib:Path"}, delivery="at-least-once")


CHOOSY = """
from pathlib import Path

HEARD = Path(__file__).with_name("heard")

class Choosy:
    def open(self, partition, batch):
        return partition == 0

    def process(self, row):
        if row.id == 7:
            raise ValueError("not this one")
        self._hear(row.id)

    def close(self, error):
        self._hear(f"closed: {error}")

    def _hear(self, what):
        with HEARD.open("a") as file:
            file.write(f"{what}\\n")
"""


@pytest.mark.system
def test_an_object_may_pass_a_task_over_and_hears_why_it_ends(
    flow: Flow, tallygate: Tallygate
) -> None:
    """A class of a module beside the pipeline's file, which takes the rows of one task alone."""
    (flow.folder / "choosy.py").write_text(CHOOSY)
    spec = {
        "name": flow.name,
        "source": {"topic": flow.name, "schema": SCHEMA},
        "sink": {"foreach": "choosy:Choosy"},
        "delivery": "at-least-once",
        "checkpoint": str(flow.checkpoint),
    }
    file, heard = flow.folder / "pipeline.yaml", flow.folder / "heard"
    file.write_text(json.dumps(spec))

    def run(code: int = 0) -> str:
        command = ("run", str(file), "--until", "available", "--name", "small")
        return tallygate(*command, code=code).stderr

    flow.send(5, partition=0)
    flow.send(2, partition=1)
    run()
    lines = heard.read_text().splitlines()
    assert [line for line in lines if line.isdigit()] == ["0", "1", "2", "3", "4"]
    assert "closed: None" in lines
    flow.send(1, partition=0)
    assert "not this one" in run(QueryError.exit_code)
    assert "closed: not this one" in heard.read_text()
