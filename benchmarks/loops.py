"""Loops by hand, as one writes them who needs neither Spark nor us."""

import json
import sys
from typing import Any

from benchmarks.course import Course
from benchmarks.programs import COLUMNS, run_programs
from benchmarks.stage import Stage

__all__ = ["copy_loop", "transactional_loop"]


def copy_loop(stage: Stage) -> Course:
    saved = "partition int PRIMARY KEY, next bigint"
    with stage.table("loop", COLUMNS) as table, stage.table("offsets", saved) as offsets:
        told = {"dsn": stage.stack.dsn, "table": table, "offsets": offsets}
        _run(stage, "copy_loop", told)
        return stage.course_of_table(table)


def transactional_loop(stage: Stage) -> Course:
    topic = stage.target("loop")
    _run(stage, "transactional_loop", {"to": topic})
    return stage.course_of_topic(topic)


def _run(stage: Stage, name: str, told: dict[str, Any]) -> None:
    """Several at once, among which the partitions are dealt out."""
    told = {**told, "server": stage.connection.bootstrap_servers, "topic": stage.work.topic}
    numbers = range(stage.work.partitions)
    run_programs(
        [
            [
                sys.executable,
                "-m",
                f"benchmarks.peers.{name}",
                json.dumps({**told, "partitions": list(numbers[n :: stage.processes])}),
            ]
            for n in range(stage.processes)
        ]
    )
