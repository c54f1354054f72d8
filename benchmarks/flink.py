"""Flink SQL, in an environment of its own, with the connectors that it recommends."""

import json
from pathlib import Path

from benchmarks.course import Course
from benchmarks.programs import COLUMNS, environment, program, run_programs
from benchmarks.stage import Stage
from tallygate.jvm.jars import Coordinate, JarSet, jar_paths
from tallygate.jvm.java import find_java
from tallygate.postgres.connect import jdbc

__all__ = ["PACKAGE", "into_table", "into_topic"]

PACKAGE = "apache-flink==2.0.2"
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


def into_table(stage: Stage) -> Course:
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
        _run(
            stage,
            [
                _source(stage, FLINK_COLUMNS, "json"),
                _table("sink", FLINK_COLUMNS, sink),
                "INSERT INTO sink SELECT * FROM source",
            ],
        )
        return stage.course_of_table(table)


def into_topic(stage: Stage) -> Course:
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
    _run(
        stage,
        [
            _source(stage, "line BYTES", "raw"),
            _table("sink", "line BYTES", sink),
            "INSERT INTO sink SELECT * FROM source",
        ],
    )
    return stage.course_of_topic(topic)


def _source(stage: Stage, columns: str, form: str) -> str:
    source = {
        "connector": "kafka",
        "topic": stage.work.topic,
        "properties.bootstrap.servers": stage.connection.bootstrap_servers,
        "properties.isolation.level": "read_committed",
        "scan.startup.mode": "earliest-offset",
        "scan.bounded.mode": "latest-offset",
        "value.format": form,
    }
    return _table("source", columns, source)


def _table(name: str, columns: str, options: dict[str, str]) -> str:
    given = ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
    return f"CREATE TABLE {name} ({columns}) WITH ({given})"


def _run(stage: Stage, statements: list[str]) -> None:
    jars = jar_paths(CONNECTORS, stage.settings)
    settings = {
        "pipeline.jars": ";".join(f"file://{jar}" for jar in jars),
        "parallelism.default": str(stage.processes),
        "execution.checkpointing.interval": "5 s",
        "pipeline.object-reuse": "true",
    }
    told = {"settings": settings, "statements": statements}
    java = Path(find_java(stage.settings).executable).parent.parent
    python = environment("flink", PACKAGE, stage.settings)
    run_programs([[python, program("flink_job.py"), json.dumps(told)]], {"JAVA_HOME": str(java)})
