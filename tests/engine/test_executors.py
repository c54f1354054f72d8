"""Executors that are lost and tasks that run twice, on a real Spark cluster of two executors."""

import json
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fixtures.killing import is_bad
from tallygate import Stack, Topics
from tallygate.lab.drills.workload import ids_in
from tallygate.settings import Settings

NUMBERS = range(900)
GOOD = [number for number in NUMBERS if not is_bad(number)]
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.minTaskRuntime": "1s",
}
PROGRAM = textwrap.dedent(
    """
    import json, sys
    from pathlib import Path
    from tallygate import Pipeline, Settings, session

    master, config, specs = json.load(sys.stdin)
    settings = Settings.load({"stack": "small"})
    spark = session("executors", master=master, config=config, settings=settings)
    for spec in specs:
        Pipeline(**spec).run(until="available", settings=settings, spark=spark)
        Path(config["spark.executorEnv.TALLYGATE_FAILED"]).unlink()  # it must have happened
    spark.stop()
    """
)


@pytest.fixture
def on_cluster(
    spark_master: str, small_stack: Stack, payments: Callable[..., str], tmp_path: Path
) -> Callable[..., None]:
    """Run pipelines on the cluster, with a fault in one task of each."""

    def run(fault: str, pipelines: dict[str, dict[str, Any]], **config: str) -> None:
        config |= {
            "spark.executor.memory": "512m",
            "spark.executorEnv.TALLYGATE_FAIL_AT": fault,
            "spark.executorEnv.TALLYGATE_FAILED": str(tmp_path / "failed"),
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        }
        specs = []
        for name, fields in pipelines.items():
            source = {
                "topic": payments(f"{name}-source", NUMBERS),
                "schema": "id long, account string, amount double",
                "max_records": 300,
            }
            place = {"name": name, "source": source, "checkpoint": str(tmp_path / name)}
            specs.append({**place, **fields})
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            input=json.dumps([spark_master, config, specs]),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    return run


def _rows(stack: Stack, query: str) -> list[Any]:
    with psycopg.connect(stack.dsn) as connection:
        return connection.execute(query.encode()).fetchall()


def _ids(stack: Stack, table: str) -> Counter[int]:
    return Counter(id for (id,) in _rows(stack, f"SELECT id FROM {table}"))


def test_lost_executors(
    on_cluster: Callable[..., None], small_stack: Stack, settings: Settings
) -> None:
    """A task commits, and its executor dies before Spark hears of it: the task is repeated."""
    Topics(small_stack.cluster.connection, settings).create("lost-target", partitions=2)
    table = {"driver_rows": 0}
    upsert = {"table": "lost_staged", "mode": "upsert", "key": "account", "driver_rows": 0}
    counts = "SELECT account, count(*) AS payments FROM source GROUP BY account"
    on_cluster(
        "committed@1/executor",
        {
            "lost_partition": {"sink": {"table": "lost_partition", **table}},
            "lost_kafka": {"sink": {"topic": "lost-target"}},
            "lost_weaker": {
                "sink": {"table": "lost_weaker", **table},
                "delivery": "at-least-once",
            },
        },
    )
    on_cluster("rows-begun@1/executor", {"lost_staged": {"sink": upsert, "transform": counts}})
    assert _ids(small_stack, "lost_partition") == Counter(GOOD)
    assert Counter(ids_in("lost-target", small_stack.cluster.connection)) == Counter(GOOD)
    rows = _rows(small_stack, "SELECT account, payments FROM lost_staged")
    assert dict(rows) == Counter(f"a{number % 7}" for number in GOOD)
    twin = _ids(small_stack, "lost_weaker")
    assert set(twin) == set(GOOD)
    assert max(twin.values()) > 1, "the weaker delivery repeats, so the test can see"


def test_tasks_that_run_twice_at_once(on_cluster: Callable[..., None], small_stack: Stack) -> None:
    """A task hangs after its commit, and Spark's speculation starts it a second time."""
    pipelines = {
        "twice": {"sink": {"table": "twice", "driver_rows": 0}},
        "twice_weaker": {
            "sink": {"table": "twice_weaker", "driver_rows": 0},
            "delivery": "at-least-once",
        },
    }
    on_cluster("committed@1/stall", pipelines, **SPECULATION)
    assert _ids(small_stack, "twice") == Counter(GOOD)
    assert max(_ids(small_stack, "twice_weaker").values()) > 1
