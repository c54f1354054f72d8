"""Drills on consumer groups, without Spark: members come and go."""

import time
from collections.abc import Sequence

from tallygate.lab.drills.drill import Drills
from tallygate.lab.drills.drill_run import Scene
from tallygate.lab.drills.jobs import Job
from tallygate.lab.drills.member import Member
from tallygate.lab.drills.outcome import Control
from tallygate.lab.drills.progress_sampler import RowCount
from tallygate.postgres.connect import connect
from tallygate.quoting import double_quoted
from tallygate.waiting import wait_until

DRILLS = Drills()
MEMBERS = 2


@DRILLS.add(
    "rolling-restart-consumers",
    """The members of a consumer group are killed and started again, one after the other, while they
    write what they read into a table, with the offsets in the same transaction. Nothing is lost
    or repeated.""",
)
def rolling_restart_consumers(scene: Scene) -> tuple[Control, ...]:
    ours = _group(scene, scene.name, exactly_once=True)
    theirs = _group(scene, f"{scene.name}_plain", exactly_once=False)
    scene.gauge.positions = RowCount(scene.stack.dsn, scene.name)
    scene.start(*ours, *theirs)
    scene.wait_committed(800)
    with scene.fault("the consumers are killed, one by one", "all were started again"):
        for job in (*ours, *theirs):
            job.kill()
            scene.event("note", f"{job.name} is killed")
            time.sleep(3)
            scene.wait_committed(100)
    scene.wait_committed(800)
    scene.workload.stop()
    for table in (scene.name, f"{scene.name}_plain"):
        _rest(scene, table)
    scene.report = scene.compared(scene.rows())
    return (
        scene.plain_control(
            "Offsets are committed by the clock (enable.auto.commit), whatever is done.",
            "lose or repeat",
            name="auto-commit",
        ),
    )


def _group(scene: Scene, table: str, *, exactly_once: bool) -> Sequence[Job]:
    with connect(scene.stack.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE public.{double_quoted(table)} (id bigint)".encode())
    kind = "the consumer" if exactly_once else "the auto-commit consumer"
    member = Member(
        scene.connection.bootstrap_servers,
        scene.topic,
        table,
        scene.stack.dsn,
        table,
        exactly_once,
    )
    return [scene.job(f"{kind} {number + 1}", member.command()) for number in range(MEMBERS)]


def _rest(scene: Scene, table: str) -> None:
    """Wait until no more rows come: consumers that have nothing to read are silent."""
    before, since = -1, time.monotonic()

    def rests() -> bool:
        nonlocal before, since
        now = sum(scene.rows(table).values())
        if now != before:
            before, since = now, time.monotonic()
        return time.monotonic() - since > 10

    wait_until(rests, 120, "the consumers do not come to rest", every=0.5)
