"""How long it takes after SIGKILL until rows are committed again: start-up, and all it entails.

Both are programs of their own, as they would be deployed, and are started again at once.
"""

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psycopg

from benchmarks.stage import COMMITTED_AT, Stage
from tallygate.errors import TallygateError
from tallygate.lab.drills.baseline_job import PlainJob
from tallygate.lab.drills.isolation import environment
from tallygate.lab.drills.jobs import Job
from tallygate.lab.drills.subject import Payments
from tallygate.lab.drills.workload import Workload
from tallygate.waiting import wait_until

__all__ = ["ours", "plain"]

LONGEST = 120.0
FEWEST = 500


def ours(stage: Stage, kills: int) -> list[float]:
    topic, table = _places(stage)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pipeline.yaml"
        spec = {**Payments().spec(table, topic), "checkpoint": f"{folder}/checkpoint"}
        file.write_text(json.dumps(spec))  # JSON is YAML
        command = [sys.executable, "-m", "tallygate", "run", str(file)]
        command += ["--name", stage.stack.name]
        return _killed(stage, topic, table, command, kills)


def plain(stage: Stage, kills: int) -> list[float]:
    topic, table = _places(stage)
    with tempfile.TemporaryDirectory() as folder:
        job = PlainJob(
            stage.connection.bootstrap_servers,
            topic,
            f"{folder}/checkpoint",
            dsn=stage.stack.dsn,
            table=table,
            options={"maxOffsetsPerTrigger": "2000"},
        )
        return _killed(stage, topic, table, job.command(), kills)


def _places(stage: Stage) -> tuple[str, str]:
    topic, table = stage.fresh("killed").replace("_", "-"), stage.fresh("killed")
    stage.topics.create(topic, partitions=stage.work.partitions, replication=1)
    return topic, table


def _killed(
    stage: Stage, topic: str, table: str, command: Sequence[str], kills: int
) -> list[float]:
    """Seconds from each kill to the next commit."""
    load = Workload(stage.connection, topic)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        job = Job(table, command, log, lambda _: None, environment(stage.settings))
        load.start()
        try:
            job.start()
            found = []
            for _ in range(kills):
                _more_than(stage, table, FEWEST + _count(stage, table))
                killed = time.time()
                again = _kill(job)
                found.append(_next_commit(stage, table, again) - killed)
            job.stop()
        except TallygateError as error:
            raise TallygateError(f"{error} {log.read_text(errors='replace')[-1000:]}") from error
        finally:
            job.end()
            load.abandon()
    return found


def _kill(job: Job) -> float:
    """Kill it, and say when it was started again: what was committed before that, the killed one
    had sent while it lived, and it is no recovery."""
    starts = job.starts
    job.kill()
    wait_until(lambda: job.starts > starts, LONGEST, f"{job.name} is not started again.")
    return time.time()


def _next_commit(stage: Stage, table: str, since: float) -> float:
    """The first one since then, by PostgreSQL's own clock, which is this machine's."""

    def first() -> float:
        with psycopg.connect(stage.stack.dsn) as connection:
            row = connection.execute(
                f"SELECT min(at) FROM (SELECT {COMMITTED_AT} AS at FROM public.{table}) t "
                "WHERE at > %s".encode(),
                (since,),
            ).fetchone()
        return float(row[0]) if row and row[0] is not None else 0.0

    return wait_until(first, LONGEST, f"{table}: no commit within {LONGEST:.0f} s of the kill.")


def _more_than(stage: Stage, table: str, rows: int) -> None:
    wait_until(
        lambda: _count(stage, table) > rows, LONGEST, f"{table}: no rows in {LONGEST:.0f} s."
    )


def _count(stage: Stage, table: str) -> int:
    with psycopg.connect(stage.stack.dsn) as connection:
        there = connection.execute("SELECT to_regclass(%s)", (f"public.{table}",)).fetchone()
        if there is None or there[0] is None:
            return 0
        row = connection.execute(f"SELECT count(*) FROM public.{table}".encode()).fetchone()
    return int(row[0]) if row else 0
