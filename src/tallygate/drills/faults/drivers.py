"""Drills on the program that drives a pipeline: it dies, there are two of it, its checkpoint is
gone, old, or somebody else's.

The control is the job that everybody writes, Spark's `foreachBatch` with JDBC: killed once between
writing a batch and Spark's note that it is done, or given the same checkpoint.
"""

import shutil
import time
from pathlib import Path

from tallygate.drills.drill import Drills
from tallygate.drills.jobs import Job
from tallygate.drills.outcome import Control
from tallygate.drills.scene import Scene
from tallygate.failpoints import POINTS
from tallygate.waiting import wait_until

__all__ = ["DRILLS", "KILLED", "plain_killed_once"]

DRILLS = Drills()
KILLED = "Killed once after it wrote a batch, before Spark has noted the batch as done."


def plain_killed_once(scene: Scene) -> Job:
    return scene.plain(die_after=1, options={"maxOffsetsPerTrigger": "1000"})


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
        pipeline.stop()
        starts = pipeline.starts
        pipeline.start(*({"TALLYGATE_FAIL_AT": f"{point}@*"} for point in steps))
        for number, point in enumerate(steps, 2):
            wait_until(
                lambda wanted=starts + number: pipeline.starts >= wanted,  # type: ignore[misc]
                90,
                f"the driver was not killed at {point}",
            )
            scene.event("note", f"that was at {point}")
    scene.wait_committed(400)
    scene.catch_up()
    pipeline.stop()
    plain_killed_once(scene).start()
    scene.wait_plain()
    return (scene.plain_control(KILLED),)


@DRILLS.add(
    "two-drivers",
    """The same pipeline is started a second time while the first one runs, with a copy of its
    checkpoint. The older run is fenced by the store: it writes nothing more and says who took
    over. Each record is in the table once.""",
)
def two_drivers(scene: Scene) -> tuple[Control, ...]:
    first = scene.pipeline()
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
        scene.plain(checkpoint=str(copies[1])).start()
        wait_until(lambda: not first.is_running, 90, "the first driver was not fenced")
        first.stop()
    said = (scene.folder / "pipeline.log").read_text(errors="replace")
    if "is fenced" not in said:
        scene.wrong.append("the first driver did not say that it was fenced")
    scene.wait_committed(400)
    scene.catch_up()
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
