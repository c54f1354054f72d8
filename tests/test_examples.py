"""Every example gives what plain Python gives from the same records, in every sink that fits, with
the driver killed in the middle, once for each example and in each kind of sink."""

import importlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyarrow.dataset import dataset
from pyspark.sql import SparkSession

from tallygate import Stack, Topics
from tallygate.kafka.read import records_in
from tallygate.settings import Settings

FOLDER = Path(__file__).parent.parent / "examples"
FILES = ("beach_sightings", "payments", "weather_stations", "word_count")
PROGRAM = textwrap.dedent(
    """
    import json, sys
    from pathlib import Path
    from tallygate import Pipeline, Settings, session

    config, done, specs = json.load(sys.stdin)
    settings = Settings.load({"stack": "small"})
    spark = session("examples", config=config, settings=settings, delta=True)

    for spec in specs:
        finished = Path(done) / spec["name"]
        if not finished.exists():
            Pipeline(**spec).run(until="available", settings=settings, spark=spark)
            finished.touch()
    spark.stop()
    """
)
QUICK = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
KILLED_AT = "committed@1"
"""Each pipeline is killed with a batch done that Spark does not know of; one whose tasks commit by
themselves perhaps more than once."""


@pytest.fixture(scope="module")
def examples() -> Iterator[list[Any]]:
    sys.path.insert(0, str(FOLDER))
    try:
        yield [each for name in FILES for each in importlib.import_module(name).EXAMPLES]
    finally:
        sys.path.remove(str(FOLDER))


def _sinks(example: Any, folder: Path) -> dict[str, dict[str, Any]]:
    mode = example.mode
    found: dict[str, dict[str, Any]] = {"table": {"table": f"{example.name}_table", **mode}}
    found["delta"] = {"delta": str(folder / f"{example.name}.delta"), **mode}
    if not mode:
        found["topic"] = {"topic": f"{example.name}_topic"}
        found["parquet"] = {"parquet": str(folder / f"{example.name}.parquet")}
    return found


@pytest.mark.system
def test_a_script_prints_what_the_page_shows(tmp_path: Path) -> None:
    """On a stack of its own."""
    done = subprocess.run(
        [sys.executable, str(FOLDER / "word_count.py")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    page = (FOLDER.parent / "docs" / "examples.md").read_text()
    printed = [text.strip() for text in done.stdout.strip().split("\n\n")]
    assert len(printed) == 2
    assert all(text in page for text in printed), done.stdout


@pytest.mark.system
@pytest.mark.timeout(1800)
def test_every_example_in_every_sink(
    examples: list[Any],
    small_stack: Stack,
    spark: SparkSession,
    settings: Settings,
    tmp_path: Path,
) -> None:
    stage = importlib.import_module("stage")
    pipelines: list[dict[str, Any]] = []
    checks: list[tuple[Any, str, dict[str, Any]]] = []
    for example in examples:
        stage.fill(small_stack, settings, example.topics)
        for kind, sink in _sinks(example, tmp_path).items():
            name = f"{example.name}_{kind}"
            if kind == "topic":
                Topics(small_stack.cluster.connection, settings).create(name, partitions=2)
            place = {"name": name, "sink": sink, "checkpoint": str(tmp_path / name)}
            pipelines.append({**place, **example.fields})
            checks.append((example, kind, sink))
    assert len(pipelines) > 2 * len(examples)
    _run_and_kill_each(pipelines, tmp_path / "done")
    wrong = [
        f"{example.name} in {kind}: {len(found)} rows, {len(wanted)} wanted"
        for example, kind, sink in checks
        if (found := _found(small_stack, spark, example, kind, sink))
        != (wanted := sorted(example.expected(), key=str))
    ]
    assert wrong == []


def _run_and_kill_each(specs: list[dict[str, Any]], done: Path) -> None:
    """Run one after the other; whichever is at it when the program is killed goes on next."""
    done.mkdir()
    killed = set()
    while _run(specs, done):
        killed.add(next(spec["name"] for spec in specs if not (done / spec["name"]).exists()))
    assert killed == {spec["name"] for spec in specs}


def _run(specs: list[dict[str, Any]], done: Path) -> bool:
    """Go on with the pipelines that are not done; False if all are, True if it was killed."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps([QUICK, str(done), specs]),
        capture_output=True,
        text=True,
        env={**os.environ, "TALLYGATE_FAIL_AT": KILLED_AT, "PYTHONPATH": str(FOLDER)},
        timeout=400,
        check=False,
    )
    assert ended.returncode in (0, -signal.SIGKILL), ended.stdout + ended.stderr
    return ended.returncode != 0


def _found(
    stack: Stack, spark: SparkSession, example: Any, kind: str, sink: dict[str, Any]
) -> list[Any]:
    columns = list(example.columns)
    if kind == "topic":
        records = records_in(sink["topic"], stack.cluster.connection)
        rows = [json.loads(record.text) for record in records]
        kinds = {name: _kind(example.expected()[0][i]) for i, name in enumerate(columns)}
        found = [tuple(kinds[name](row[name]) for name in columns) for row in rows]
    elif kind == "table":
        with psycopg.connect(stack.dsn) as connection:
            query = f"SELECT {', '.join(columns)} FROM {sink['table']}"
            found = connection.execute(query.encode()).fetchall()
    elif kind == "parquet":
        table = dataset(sink["parquet"]).to_table(columns=columns)
        found = [tuple(row.values()) for row in table.to_pylist()]
    else:
        frame = spark.read.format("delta").load(sink["delta"]).select(*columns)
        found = [tuple(row.values()) for row in frame.toArrow().to_pylist()]
    return sorted((tuple(_plain(value) for value in row) for row in found), key=str)


def _kind(value: Any) -> Any:
    if isinstance(value, datetime):
        return datetime.fromisoformat
    return Decimal if isinstance(value, Decimal) else lambda each: each


def _plain(value: Any) -> Any:
    """Times without their zone, which is UTC everywhere here."""
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value
