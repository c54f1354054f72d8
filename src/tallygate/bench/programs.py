"""Contenders that are programs of their own: loops by hand, Flink SQL, Quix Streams.

Flink and Quix Streams come in an environment each, made on first use in the cache folder: their
packages do not go together with ours. Programs that use one core get a process for each.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from tallygate.bench import peers
from tallygate.bench.course import Course
from tallygate.bench.stage import Stage
from tallygate.errors import TallygateError
from tallygate.java import find_java
from tallygate.postgres.connecting import jdbc
from tallygate.settings import Settings
from tallygate.spark.jars import Coordinate, JarSet, jar_paths

__all__ = [
    "FLINK",
    "QUIX",
    "copy_loop",
    "flink",
    "flink_kafka",
    "quix",
    "quix_kafka",
    "transactional_loop",
]

FLINK, QUIX = "apache-flink==2.0.2", "quixstreams[postgresql]==3.28.1"
PROCESSES = 2
LONGEST = 900.0
COLUMNS = "id BIGINT, account BIGINT, amount DOUBLE PRECISION, at TEXT, note TEXT"
FLINK_COLUMNS = "id BIGINT, account BIGINT, amount DOUBLE, `at` STRING, note STRING"
CONNECTORS = JarSet(
    "flink",
    (
        Coordinate("org.apache.flink", "flink-sql-connector-kafka", "4.0.1-2.0", transitive=False),
        Coordinate("org.apache.flink", "flink-connector-jdbc-core", "4.0.0-2.0", transitive=False),
        Coordinate(
            "org.apache.flink", "flink-connector-jdbc-postgres", "4.0.0-2.0", transitive=False
        ),
        Coordinate("org.postgresql", "postgresql", "42.7.11", transitive=False),
    ),
)


def copy_loop(stage: Stage) -> Course:
    saved = "partition int PRIMARY KEY, next bigint"
    with stage.table("loop", COLUMNS) as table, stage.table("offsets", saved) as offsets:
        told = {"dsn": stage.stack.dsn, "table": table, "offsets": offsets}
        _side_by_side("copy_loop.py", [{**told, **each} for each in _shares(stage)])
        return stage.course_of_table(table)


def transactional_loop(stage: Stage) -> Course:
    topic = stage.target("loop")
    _side_by_side("transactional_loop.py", [{"to": topic, **each} for each in _shares(stage)])
    return stage.course_of_topic(topic)


def quix(stage: Stage) -> Course:
    parts = conninfo_to_dict(stage.stack.dsn)
    # Made beforehand, as its processes would make it, since two at once fail in doing so.
    columns = f'"timestamp" TIMESTAMP NOT NULL, "__key" TEXT, {COLUMNS}'
    with stage.table("quix", columns) as table:
        sink = {name: parts[name] for name in ("host", "dbname", "user", "password")}
        sink |= {"port": int(str(parts["port"])), "table_name": table}
        _quix(stage, table, sink)
        return stage.course_of_table(table)


def quix_kafka(stage: Stage) -> Course:
    topic = stage.target("quix")
    _quix(stage, topic, topic)
    return stage.course_of_topic(topic)


def flink(stage: Stage) -> Course:
    """Through JDBC it is at-least-once."""
    url, properties = jdbc(stage.stack.dsn)
    with stage.table("flink", COLUMNS) as table:
        sink = {
            "connector": "jdbc",
            "url": f"{url}?reWriteBatchedInserts=true",
            "table-name": table,
            "username": properties["user"],
            "password": properties["password"],
            "sink.buffer-flush.max-rows": "10000",
        }
        _flink(
            stage,
            [
                _flink_source(stage, FLINK_COLUMNS, "json"),
                _flink_table("sink", FLINK_COLUMNS, sink),
                "INSERT INTO sink SELECT * FROM source",
            ],
        )
        return stage.course_of_table(table)


def flink_kafka(stage: Stage) -> Course:
    topic = stage.target("flink")
    sink = {
        "connector": "kafka",
        "topic": topic,
        "properties.bootstrap.servers": stage.connection.bootstrap_servers,
        "properties.transaction.timeout.ms": "600000",
        "value.format": "raw",
        "sink.delivery-guarantee": "exactly-once",
        "sink.transactional-id-prefix": topic,
    }
    _flink(
        stage,
        [
            _flink_source(stage, "line BYTES", "raw"),
            _flink_table("sink", "line BYTES", sink),
            "INSERT INTO sink SELECT * FROM source",
        ],
    )
    return stage.course_of_topic(topic)


def _flink_source(stage: Stage, columns: str, form: str) -> str:
    source = {
        "connector": "kafka",
        "topic": stage.work.topic,
        "properties.bootstrap.servers": stage.connection.bootstrap_servers,
        "properties.isolation.level": "read_committed",
        "scan.startup.mode": "earliest-offset",
        "scan.bounded.mode": "latest-offset",
        "value.format": form,
    }
    return _flink_table("source", columns, source)


def _flink_table(name: str, columns: str, options: dict[str, str]) -> str:
    given = ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
    return f"CREATE TABLE {name} ({columns}) WITH ({given})"


def _flink(stage: Stage, statements: list[str]) -> None:
    jars = jar_paths(CONNECTORS, stage.settings)
    settings = {
        "pipeline.jars": ";".join(f"file://{jar}" for jar in jars),
        "parallelism.default": str(PROCESSES),
        "execution.checkpointing.interval": "5 s",
        "pipeline.object-reuse": "true",
    }
    told = {"settings": settings, "statements": statements}
    java = Path(find_java(stage.settings).executable).parent.parent
    python = environment("flink", FLINK, stage.settings)
    _run([[python, _program("flink_job.py"), json.dumps(told)]], {"JAVA_HOME": str(java)})


def _quix(stage: Stage, group: str, sink: dict[str, Any] | str) -> None:
    python = environment("quix", QUIX, stage.settings)
    with tempfile.TemporaryDirectory() as folder:
        told = {
            "server": stage.connection.bootstrap_servers,
            "topic": stage.work.topic,
            "group": group,
            "sink": sink,
        }
        _run(
            [
                [python, _program("quix_job.py"), json.dumps({**told, "folder": f"{folder}/{n}"})]
                for n in range(PROCESSES)
            ]
        )


def _shares(stage: Stage) -> list[dict[str, Any]]:
    """The partitions, dealt out."""
    told = {"server": stage.connection.bootstrap_servers, "topic": stage.work.topic}
    numbers = range(stage.work.partitions)
    return [{**told, "partitions": list(numbers[n::PROCESSES])} for n in range(PROCESSES)]


def _side_by_side(program: str, told: Sequence[dict[str, Any]]) -> None:
    _run([[sys.executable, _program(program), json.dumps(each)] for each in told])


def _run(commands: Sequence[Sequence[str]], environment: dict[str, str] | None = None) -> None:
    """All at once; if one fails, its last words are the error."""
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / str(number) for number in range(len(commands))]
        running = []
        try:
            for command, log in zip(commands, logs, strict=True):
                with log.open("wb") as out:
                    running.append(
                        subprocess.Popen(
                            command,
                            stdin=subprocess.DEVNULL,
                            stdout=out,
                            stderr=subprocess.STDOUT,
                            env={**os.environ, **(environment or {})},
                        )
                    )
            for command, process, log in zip(commands, running, logs, strict=True):
                if process.wait(LONGEST):
                    said = log.read_text(errors="replace")[-1500:]
                    raise TallygateError(f"{Path(command[1]).name} failed: {said}")
        finally:
            for process in running:
                process.kill()
                process.wait()


def _program(name: str) -> str:
    return str(Path(peers.__path__[0]) / name)


def environment(name: str, package: str, settings: Settings) -> str:
    """The Python of an environment in which the package is installed; made if it is not there."""
    folder = settings.cache_dir / "environments" / f"{name}-{package.rpartition('=')[2]}"
    python, done = folder / "bin" / "python", folder / "installed"
    if not done.exists():
        commands = [
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [str(python), "-m", "pip", "install", "--quiet", package],
        ]
        for command in commands:
            ran = subprocess.run(command, capture_output=True, text=True)
            if ran.returncode:
                raise TallygateError(f"{package} cannot be installed: {ran.stderr[-500:]}")
        done.touch()
    return str(python)
