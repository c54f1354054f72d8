"""Drills on the transactions of Kafka's clients."""

from collections import Counter
from dataclasses import dataclass

from confluent_kafka import KafkaError

from tallygate.lab.drills.broker_proxy import Api, LateEnd
from tallygate.lab.drills.copier import Copier, Kind
from tallygate.lab.drills.drill import Drills
from tallygate.lab.drills.drill_run import PARTITIONS, Scene
from tallygate.lab.drills.jobs import Job
from tallygate.lab.drills.outcome import Control
from tallygate.lab.drills.progress_sampler import GroupPositions
from tallygate.lab.drills.workload import ids_in
from tallygate.waiting import wait_until

DRILLS = Drills()
ONE_PRODUCER = "One producer of confluent-kafka for all transactions. "
LATE_COMMIT = (
    ONE_PRODUCER + "The late commit makes one half of the next transaction visible; the client "
    "can neither write the other half nor abort; it ends, and its successor writes all of it again."
)
LATE_ABORT = (
    ONE_PRODUCER + "It aborts now and then, to try again. The late abort throws away the records "
    "of the next transaction; the client commits its offsets, and is told that all is done."
)


@DRILLS.add(
    "end-txn-delayed",
    """A consumer copies a topic into another, exactly once. Its request to commit is held by the
    network, which loses the connection; it is sent again and answered. In the midst of the next
    transaction the first one arrives. The broker refuses it, for the consumer has opened a new
    producer. Nothing is lost or repeated, and the consumer goes on by itself.""",
)
def end_txn_delayed(scene: Scene) -> tuple[Control, ...]:
    ours, plain, aborting = (_Copy.of(scene, kind) for kind in ("ours", "plain", "aborting"))
    scene.gauge.positions = ours.positions
    scene.unaided = (ours.job,)
    scene.start(*(each.job for each in (ours, plain, aborting)))
    scene.wait_committed(400)
    with scene.fault("a request to end a transaction is late", "all has arrived"):
        if not ours.is_ended_late(commit=True, before=Api.PRODUCE, nth=2):
            scene.wrong.append("the late request has ended the next transaction")
        plain.is_ended_late(commit=True, before=Api.PRODUCE, nth=2)
        aborting.is_ended_late(commit=False, before=Api.ADD_OFFSETS)
    scene.wait_committed(400)
    scene.catch_up()
    for each in (plain, aborting):
        each.wait_done()
    scene.held = ours.held()
    scene.report = scene.compared(scene.held)
    return (
        plain.control("one producer", LATE_COMMIT, "lose or repeat"),
        aborting.control("one producer that aborts", LATE_ABORT, "lose"),
    )


@dataclass(frozen=True, kw_only=True)
class _Copy:
    """One program that copies the topic into one of its own."""

    scene: Scene
    copier: Copier
    job: Job
    positions: GroupPositions

    @classmethod
    def of(cls, scene: Scene, kind: Kind) -> "_Copy":
        name = f"{scene.topic}-{kind}"
        scene.create_topic(name)
        servers = scene.connection.bootstrap_servers
        copier = Copier(
            bootstrap_servers=servers, topic=scene.topic, target=name, group=name, kind=kind
        )
        return cls(
            scene=scene,
            copier=copier,
            job=scene.job("the copy" if kind == "ours" else f"the {kind} copy", copier.command()),
            positions=GroupPositions(scene.connection, name, scene.topic, PARTITIONS),
        )

    def is_ended_late(self, *, commit: bool, before: Api, nth: int = 1) -> bool:
        """Have one of its EndTxn come late; return whether the broker refuses it."""
        late = LateEnd(self.copier.transactional_id, commit=commit, before=before, nth=nth)
        for proxy in self.scene.proxies:
            proxy.late = late
        error = late.wait(60)
        for proxy in self.scene.proxies:
            proxy.late = None
        said = f"is refused: {KafkaError(error).name()}" if error else "ends the next transaction"
        self.scene.event("note", f"{self.job.name}: its late EndTxn {said}")
        return bool(error)

    def wait_done(self) -> None:
        """Wait until it has copied all there is, by its own account."""
        wait_until(
            lambda: sum(self.positions.read().values()) >= len(self.scene.workload.acknowledged),
            90,
            f"{self.job.name} does not come to its end",
            every=0.5,
        )

    def held(self) -> Counter[int]:
        return Counter(ids_in(self.copier.target, self.scene.connection))

    def control(self, name: str, what: str, must: str) -> Control:
        lost, twice = self.scene.missing_and_repeated(self.held())
        return Control(name, what, must, len(self.scene.workload.acknowledged), lost, twice)
