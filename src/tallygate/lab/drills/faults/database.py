"""Drills on PostgreSQL: it dies, the connection is cut at the worst moment, the network is bad.

The worst moment is the commit: the server has it, and the answer is lost. An unanswered commit is
neither done nor failed, and a program that just tries again writes twice: this is the control.
"""

import time

from tallygate.errors import TallygateError
from tallygate.lab.drills.drill import Drills
from tallygate.lab.drills.drill_run import Scene
from tallygate.lab.drills.outcome import Control
from tallygate.lab.drills.progress_sampler import Gauge
from tallygate.lab.drills.proxy import CommitFault, DatabaseProxy, LinkFault, Proxy
from tallygate.waiting import wait_until

DRILLS = Drills()
UNANSWERED = "Its commit is done, but the answer is lost; Spark writes the batch again."
UNDER_WAY = 1.5
"""Seconds in which a commit that was under way when a link broke may still be seen."""


class Between:
    """A pipeline and a plain job, each with a proxy of its own before the database."""

    def __init__(self, scene: Scene, *, driver_rows: int = 20_000, dies: bool = False) -> None:
        self.scene = scene
        self.ours = DatabaseProxy(scene.stack.dsn)
        self.theirs = DatabaseProxy(scene.stack.dsn)
        for proxy in (self.ours, self.theirs):
            scene.at_end.callback(proxy.close)
        sink = {"dsn": self.ours.dsn, "driver_rows": driver_rows}
        self.pipeline = scene.pipeline(scene.spec(sink=sink))
        self.plain = scene.plain(dsn=self.theirs.dsn, dies=dies)

    def start(self) -> None:
        self.scene.start(self.pipeline, self.plain)
        self.scene.wait_committed(400)

    def cut_commit(self, proxy: DatabaseProxy, fault: CommitFault) -> None:
        before = proxy.cut
        proxy.armed = fault
        wait_until(lambda: proxy.cut > before, 60, "no commit came by")

    def break_ours(self, fault: LinkFault, seconds: float) -> None:
        break_for(seconds, self.ours, fault, self.scene.gauge)

    def finish(self, what: str = UNANSWERED) -> tuple[Control, ...]:
        self.scene.wait_committed(400, 120)
        self.scene.catch_up()
        self.scene.wait_plain()
        return (self.scene.plain_control(what),)


def break_for(seconds: float, proxy: Proxy, fault: LinkFault, gauge: Gauge) -> None:
    """The pipeline's link is bad for so long. If it commits through one on which nothing passes,
    the fault did not bite, and the drill has shown nothing."""
    proxy.break_link(fault)
    time.sleep(min(UNDER_WAY, seconds))
    before = gauge.committed
    time.sleep(max(0.0, seconds - UNDER_WAY))
    more = gauge.committed - before
    proxy.heal()
    if more and fault != "slow":
        raise TallygateError(f"{more} records were committed through a link that is {fault}")


@DRILLS.add(
    "commit-cut",
    """The connection to PostgreSQL is cut during COMMIT: before the server has heard of it, and
    after it has committed but before the answer, more than once. The ledger is asked before
    anything is tried again; nothing is lost or repeated.""",
)
def commit_cut(scene: Scene) -> tuple[Control, ...]:
    between = Between(scene)
    between.start()
    with scene.fault("connections are cut during COMMIT", "they are let through"):
        for fault in ("request", "answer", "answer", "request"):
            between.cut_commit(between.ours, fault)
            scene.event("note", f"a commit lost its {fault}")
            scene.wait_committed(100)
        between.cut_commit(between.theirs, "answer")
    return between.finish()


@DRILLS.add(
    "database-kill",
    """PostgreSQL is killed at the moment when it has committed a batch and before it answers,
    and started again. Rows and ledger are both there or both not; nothing is lost or repeated.""",
)
def database_kill(scene: Scene) -> tuple[Control, ...]:
    between = Between(scene)
    between.start()
    server = scene.stack.postgres
    with scene.fault("PostgreSQL is killed as it commits", "it is up again"):
        between.cut_commit(between.theirs, "answer")
        between.ours.at_commit = server.process.kill
        between.cut_commit(between.ours, "answer")
        between.ours.at_commit = lambda: None
        scene.event("note", "PostgreSQL is gone")
        time.sleep(3)
        server.start()
    return between.finish()


@DRILLS.add(
    "database-network",
    """The network between the driver and PostgreSQL is slow, then cut, then silent, then lets
    nothing back, for some seconds each. The pipeline waits or is started again, and goes on where
    the ledger is.""",
)
def database_network(scene: Scene) -> tuple[Control, ...]:
    between = Between(scene)
    between.start()
    faults: tuple[LinkFault, ...] = ("slow", "cut", "silent", "deaf")
    with scene.fault("the network to PostgreSQL is bad in four ways", "it is good again"):
        between.cut_commit(between.theirs, "answer")
        for fault in faults:
            scene.event("note", f"the link is {fault}")
            between.break_ours(fault, 5)
            scene.event("note", "the link is good")
            scene.wait_committed(100, 120)
    return between.finish()
