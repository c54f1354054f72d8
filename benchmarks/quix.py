"""Quix Streams, in an environment of its own."""

import json
import tempfile
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from benchmarks.course import Course
from benchmarks.programs import COLUMNS, environment, program, run_programs
from benchmarks.stage import Stage

__all__ = ["PACKAGE", "into_table", "into_topic"]

PACKAGE = "quixstreams[postgresql]==3.28.1"


def into_table(stage: Stage) -> Course:
    parts = conninfo_to_dict(stage.stack.dsn)
    # Made beforehand, as its processes would make it, since two at once fail in doing so.
    columns = f'"timestamp" TIMESTAMP NOT NULL, "__key" TEXT, {COLUMNS}'
    with stage.table("quix", columns) as table:
        sink = {name: parts[name] for name in ("host", "dbname", "user", "password")}
        sink |= {"port": int(str(parts["port"])), "table_name": table}
        _run(stage, table, sink)
        return stage.course_of_table(table)


def into_topic(stage: Stage) -> Course:
    topic = stage.target("quix")
    _run(stage, topic, topic)
    return stage.course_of_topic(topic)


def _run(stage: Stage, group: str, sink: dict[str, Any] | str) -> None:
    python = environment("quix", PACKAGE, stage.settings)
    with tempfile.TemporaryDirectory() as folder:
        told = {
            "server": stage.connection.bootstrap_servers,
            "topic": stage.work.topic,
            "group": group,
            "sink": sink,
        }
        run_programs(
            [
                [python, program("quix_job.py"), json.dumps({**told, "folder": f"{folder}/{n}"})]
                for n in range(stage.processes)
            ]
        )
