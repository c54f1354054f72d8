"""A drill on the events' own time, which jumps."""

import json
import time
from pathlib import Path

from tallygate.lab.drills.drill import Drills
from tallygate.lab.drills.drill_run import Scene
from tallygate.lab.drills.outcome import Control
from tallygate.lab.drills.workload import Workload
from tallygate.postgres.connect import connect
from tallygate.quoting import double_quoted
from tallygate.waiting import wait_until

DRILLS = Drills()
DAY = 24 * 3600
BEFORE, JUMPED = 2000, 200


@DRILLS.add(
    "clock-jump",
    """The clock of some producer jumps a day ahead for a moment, and then back: the events' own
    times are far off, and most come late. Delivery does not go by them: every record is in the
    table once.""",
)
def clock_jump(scene: Scene) -> tuple[Control, ...]:
    scene.workload = Workload(scene.connection, scene.topic, value=_event)
    pipeline, windows = scene.pipeline(), scene.plain(windows=True)
    scene.start(pipeline, windows)
    commits = scene.folder / "plain-checkpoint" / "commits"
    with scene.fault("the events' clock jumps a day ahead, and back", "it is right again"):
        wait_until(lambda: scene.workload.produced > BEFORE + JUMPED, 60, "the load is too slow")
    done = _batches(commits)
    # Spark drops what is late by the watermark of the batch before: some must come after the jump.
    wait_until(lambda: _batches(commits) > done + 4, 90, "the windows are not counted")
    scene.wait_committed(400)
    scene.catch_up()
    everything = len(scene.workload.acknowledged)
    scene.wait_plain()
    counted = _counted(scene)
    return (
        Control(
            "windows by event time",
            "Counts by window with a watermark, in plain Spark: what the watermark has passed is "
            "dropped, without a word.",
            "lose",
            everything,
            everything - counted,
            0,
        ),
    )


def _batches(commits: Path) -> int:
    return len(list(commits.glob("[0-9]*")))


def _event(number: int) -> str:
    ahead = DAY if BEFORE <= number < BEFORE + JUMPED else 0
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + ahead))
    return json.dumps({"id": number, "account": "a", "amount": 1.0, "at": at})


def _counted(scene: Scene) -> int:
    """Each window as it was written last."""
    table = double_quoted(f"{scene.name}_plain")
    query = (
        f"SELECT coalesce(sum(n), 0) FROM (SELECT max(n) AS n FROM public.{table} GROUP BY id) w"
    )
    with connect(scene.stack.dsn, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
    return int(row[0]) if row else 0
