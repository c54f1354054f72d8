"""Drills on the program that drives a pipeline: it dies, there are two of it, its checkpoint is
gone, old, or another pipeline's.

The control is the usual job, Spark's `foreachBatch` with JDBC: killed once between
writing a batch and Spark's note that it is done, or given the same checkpoint.
"""

import shutil
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tallygate.errors import TallygateError
from tallygate.failpoints import POINTS
from tallygate.lab.drills.drill import Drills
from tallygate.lab.drills.drill_run import Scene
from tallygate.lab.drills.jobs import Job
from tallygate.lab.drills.outcome import Control
from tallygate.lab.drills.progress_sampler import GroupPositions
from tallygate.lab.drills.workload import ids_in
from tallygate.lab.spark_cluster import spark_cluster
from tallygate.targets.kafka.ledger import Names
from tallygate.waiting import wait_until

DRILLS = Drills()
KILLED = "Killed once after it wrote its first batch, before Spark has noted the batch as done."


@DRILLS.add(
    "driver-kill",
    """The driver, its JVM and its workers are killed at every step of a batch, one after the other,
    as by a power cut, and started again. What was committed is not written again, what was not is;
    nothing is lost, nothing is there twice.""",
)
def driver_kill(scene: Scene) -> tuple[Control, ...]:
    sink = {"driver_rows": 0}
    pipeline = scene.pipeline(scene.spec(sink=sink))
    scene.start(pipeline)
    steps = [point for point in POINTS if point != "rows-staged"]  # tasks write rows themselves
    with scene.fault("the driver is killed at every step of a batch", "it is left in peace"):
        _kill_at(scene, pipeline, steps)
    scene.wait_committed(400)
    scene.catch_up()
    pipeline.stop()
    scene.plain(dies=True).start()
    scene.wait_plain()
    return (scene.plain_control(KILLED),)


def _kill_at(scene: Scene, pipeline: Job, steps: Sequence[str]) -> None:
    """Start it again and again, to be killed at one step after the other."""
    pipeline.stop()
    pipeline.start(*({"TALLYGATE_FAIL_AT": f"{point}@*"} for point in steps))
    for number, point in enumerate(steps, 1):

        def killed(times: int = number, point: str = point) -> bool:
            """A death of another kind has shown nothing."""
            if any(code != -signal.SIGKILL for code in pipeline.deaths):
                raise TallygateError(f"the driver was to be killed at {point}, but ended by itself")
            return len(pipeline.deaths) >= times

        wait_until(killed, 90, f"the driver was not killed at {point}")
        scene.event("note", f"that was at {point}")


@DRILLS.add(
    "executor-kill",
    """On a Spark cluster of two executors, a task has committed its rows, and its executor dies
    before Spark has heard of it. Spark runs the task again. Its rows are there once.""",
)
def executor_kill(scene: Scene) -> tuple[Control, ...]:
    died = scene.folder / "executor-died"
    with spark_cluster(scene.folder / "spark", scene.settings) as master:
        settings = {
            "spark.master": master,
            "spark.conf.spark.executor.memory": "512m",
            "spark.conf.spark.executorEnv.TALLYGATE_FAIL_AT": "committed@*/executor",
            "spark.conf.spark.executorEnv.TALLYGATE_FAILED": str(died),
        }
        flags = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        pipeline = scene.pipeline(scene.spec(sink={"driver_rows": 0}), *flags)
        with scene.fault("an executor dies after its task has committed", "Spark has another one"):
            scene.start(pipeline)
            wait_until(died.exists, 60, "no executor was killed")
        scene.wait_committed(400)
        scene.catch_up()
        pipeline.stop()
        plain = scene.plain(master=master, by_partition=True)
        plain.start()
        scene.wait_plain()
        plain.stop()
    return (
        scene.plain_control(
            "foreachPartition with a connection of its own, by hand; its executor dies after its "
            "commit, and Spark runs the task again.",
            name="rows written by hand",
        ),
    )


@DRILLS.add(
    "kafka-driver-kill",
    """A pipeline from topic to topic: its driver is killed while a transaction is open, right after
    it was committed, and in between. Readers of committed records see each once.""",
)
def kafka_driver_kill(scene: Scene) -> tuple[Control, ...]:
    ours, theirs = f"{scene.topic}-out", f"{scene.topic}-plain"
    for topic in (ours, theirs):
        scene.create_topic(topic)
    scene.gauge.positions = GroupPositions(
        scene.connection, Names(scene.name).group, scene.topic, partitions=3
    )
    pipeline = scene.pipeline({**scene.spec(), "sink": _topic_sink(scene, ours)})
    scene.start(pipeline)
    steps = ("rows-written", "ledger-moved", "commit-sent", "committed", "batch-committed")
    with scene.fault("the driver is killed around its transaction", "it is left in peace"):
        _kill_at(scene, pipeline, steps)
    scene.wait_committed(400)
    scene.catch_up()
    pipeline.stop()
    scene.held = Counter(ids_in(ours, scene.connection))
    plain = scene.plain(table=None, to_topic=theirs, dies=True)
    plain.start()
    return (_kafka_control(scene, theirs),)


def _topic_sink(scene: Scene, topic: str) -> dict[str, str]:
    return {"topic": topic, "bootstrap_servers": scene.connection.bootstrap_servers}


def _kafka_control(scene: Scene, topic: str) -> Control:
    scene.wait_plain()
    lost, twice = scene.missing_and_repeated(Counter(ids_in(topic, scene.connection)))
    total = len(scene.workload.acknowledged)
    return Control("Spark's own Kafka sink", KILLED, "repeat", total, lost, twice)


@DRILLS.add(
    "two-drivers",
    """The same pipeline is started a second time while the first one runs, with a copy of its
    checkpoint. The older run is fenced by the store: it writes nothing more and says who took
    over. Each record is in the table once.""",
)
def two_drivers(scene: Scene) -> tuple[Control, ...]:
    first = scene.pipeline()
    first.patience = 1  # it must not take the pipeline back
    plain = scene.plain()
    scene.start(first, plain)
    scene.wait_committed(800)
    wait_until(lambda: _rows(scene) > 400, 60, "the plain job does not write")
    copies = [scene.folder / "copied-checkpoint", scene.folder / "plain-copied-checkpoint"]
    with scene.fault("a second driver starts, with a copy of the checkpoint", "one is left"):
        for original, copy in zip(("checkpoint", "plain-checkpoint"), copies, strict=True):
            _copy(scene.folder / original, copy)
        second = scene.pipeline(scene.spec(checkpoint=str(copies[0])), name="the second driver")
        second.start()
        scene.needed = (second,)
        done = len(list((copies[1] / "commits").iterdir()))
        scene.plain(checkpoint=str(copies[1])).start()
        wait_until(lambda: not first.is_running, 90, "the first driver was not fenced")
        first.stop()
    said = (scene.folder / "pipeline.log").read_text(errors="replace")
    if "is fenced" not in said:
        scene.wrong.append("the first driver did not say that it was fenced")
    scene.wait_committed(400)
    scene.catch_up()
    wait_until(
        lambda: len(list((copies[1] / "commits").iterdir())) > done + 1,
        90,
        "the second plain job does not write",
    )
    scene.wait_plain()
    return (scene.plain_control("Two of it, with copies of one checkpoint."),)


def _rows(scene: Scene) -> int:
    return sum(scene.rows(f"{scene.name}_plain").values())


def _copy(source: Path, target: Path) -> None:
    """As a backup does it, under a program that writes."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.tmp", ".*"))


@DRILLS.add(
    "checkpoint-lost",
    """The driver dies and its checkpoint is gone. The pipeline goes on from the ledger, which lies
    beside the rows. Nothing is lost, nothing is written again.""",
)
def checkpoint_lost(scene: Scene) -> tuple[Control, ...]:
    pipeline, plain = scene.pipeline(), scene.plain()
    scene.start(pipeline, plain)
    scene.wait_committed(800)
    wait_until(lambda: _rows(scene) > 400, 60, "the plain job does not write")
    with scene.fault("the driver dies, its checkpoint is gone", "it is started without one"):
        for job, folder in ((pipeline, "checkpoint"), (plain, "plain-checkpoint")):
            job.end()
            shutil.rmtree(scene.folder / folder)
            job.start()
    scene.wait_committed(400, 120)
    scene.catch_up()
    scene.wait_plain()
    return (scene.plain_control("Its checkpoint is gone, so it begins at the beginning."),)


@DRILLS.add(
    "checkpoint-rolled-back",
    """The driver dies, and its checkpoint is restored from an older copy. The batches that the
    ledger has are skipped, the one that it has in part is trimmed; nothing is lost or repeated.""",
)
def checkpoint_rolled_back(scene: Scene) -> tuple[Control, ...]:
    pipeline, plain = scene.pipeline(), scene.plain()
    scene.start(pipeline, plain)
    scene.wait_committed(400)
    wait_until(lambda: _rows(scene) > 200, 60, "the plain job does not write")
    folders = ("checkpoint", "plain-checkpoint")
    for folder in folders:
        _copy(scene.folder / folder, scene.folder / f"old-{folder}")
    scene.wait_committed(2000)
    time.sleep(1)
    with scene.fault("the driver dies, its checkpoint is an older copy", "it is started with it"):
        for job, folder in zip((pipeline, plain), folders, strict=True):
            job.end()
            shutil.rmtree(scene.folder / folder)
            (scene.folder / f"old-{folder}").rename(scene.folder / folder)
            job.start()
    scene.wait_committed(400, 120)
    scene.catch_up()
    scene.wait_plain()
    return (scene.plain_control("It is given the older copy too, and repeats what came since."),)
