"""Drills on Kafka: brokers and controllers die, hang, fill up, come back stale.

The control is a producer that asks for less than `acks=all`. To let it fail for certain, the
followers are held back for a moment before the leader is taken away: what they do not have yet
was acknowledged with `acks=1`, and is gone. With `acks=all` it was not acknowledged.

No drill here touches the pipeline, so it has no reason to end: in all of these drills it must go on
by itself, and one that had to be started again is wrong, though nothing was lost.
"""

import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tallygate.errors import TallygateError
from tallygate.kafka.producer import Acks
from tallygate.lab.drills.drill import Drills
from tallygate.lab.drills.drill_run import Scene
from tallygate.lab.drills.outcome import Control
from tallygate.lab.kafka.node import Node
from tallygate.waiting import wait_until

DRILLS = Drills()
HELD_BACK = 1.0
ACKS_1 = "The leader alone acknowledges; it dies before its followers have the records."
ACKS_0 = "No broker acknowledges: what is on its way to a broker that is gone is gone too."


def leader_of(scene: Scene, topic: str, partition: int = 0) -> int:
    """The broker that leads a partition; one is elected if there is none."""

    def led() -> int | None:
        with suppress(TallygateError):  # no broker answers for a moment
            return scene.topics.describe(topic, sizes=False).partitions[partition].leader
        return None

    return int(wait_until(led, 60, f"partition {partition} of {topic} has no leader") or 0)


@contextmanager
def held_back(scene: Scene, leader: int) -> Iterator[None]:
    """Every other broker hangs while the block lasts."""
    others = [n for n in scene.stack.cluster.nodes if n.spec.broker and n.spec.id != leader]
    for node in others:
        node.process.send(signal.SIGSTOP)
    try:
        yield
    finally:
        for node in others:
            node.process.send(signal.SIGCONT)


class Careless:
    """A producer that asks for less, beside the pipeline and its load; both are on."""

    def __init__(self, scene: Scene, acks: Acks, **options: Any) -> None:
        self.scene = scene
        self.load = scene.careless(acks, **options)
        pipeline = scene.pipeline()
        scene.unaided = (pipeline,)
        scene.start(pipeline)
        self.load.start()
        self.load.wait_for(200)

    @property
    def leader(self) -> int:
        return leader_of(self.scene, self.load.topic)

    def kill_leader(self) -> int:
        """Hold the followers back, let the producer go on for a moment, kill its leader."""
        leader = self.leader
        with held_back(self.scene, leader):
            time.sleep(HELD_BACK)  # a fetch that is under way still brings what comes now
            self.load.wait_for(50, 5)
            _node(self.scene, leader).process.kill()
        return leader

    def finish(self, what: str) -> tuple[Control, ...]:
        """Go on for a while after the fault, then compare."""
        self.scene.wait_committed(400, 120)
        self.load.stop()
        self.scene.catch_up()
        return (self.scene.topic_control(self.load, what),)


def restore(scene: Scene, number: int) -> None:
    scene.stack.cluster.start_node(number)


def _node(scene: Scene, number: int) -> Node:
    return scene.stack.cluster.node(number)


@DRILLS.add(
    "leader-kill",
    """The broker that leads a partition is killed while its followers are a moment behind. Another
    one takes over. No record that was acknowledged is lost, none is in the table twice, and the
    pipeline goes on by itself.""",
)
def leader_kill(scene: Scene) -> tuple[Control, ...]:
    careless = Careless(scene, "1")
    with scene.fault("the leader is killed, its followers a moment behind", "the broker is back"):
        leader = careless.kill_leader()
        scene.stack.cluster.wait_unregistered(leader)
        restore(scene, leader)
    return careless.finish(ACKS_1)


@DRILLS.add(
    "controller-kill",
    """The active controller is killed, and the leader of a partition right after it, so that no
    new leader can be elected until there is a new controller. Nothing acknowledged is lost, nothing
    is there twice, and the pipeline goes on by itself.""",
)
def controller_kill(scene: Scene) -> tuple[Control, ...]:
    careless = Careless(scene, "1")
    controller = scene.stack.cluster.controller or 0
    with scene.fault("the controller is killed, then the leader", "both are back"):
        _node(scene, controller).process.kill()
        leader = careless.kill_leader()
        scene.stack.cluster.wait_unregistered(leader)
        restore(scene, controller)
        restore(scene, leader)
    return careless.finish(ACKS_1)


@DRILLS.add(
    "rolling-restart-clean",
    """Every broker is stopped as operators do it, with time to hand over, and started again, one
    after the other. Producers and the pipeline hardly notice, and go on by themselves; nothing is
    lost or repeated.""",
)
def rolling_restart_clean(scene: Scene) -> tuple[Control, ...]:
    careless = Careless(scene, "0")
    with scene.fault("the brokers are restarted, one by one", "all brokers were restarted"):
        for node in scene.stack.cluster.nodes:
            if node.spec.broker:
                node.stop()
                scene.event("note", f"broker {node.name} is stopped")
                restore(scene, node.spec.id)
    return careless.finish(ACKS_0)


@DRILLS.add(
    "rolling-restart-hard",
    """Every broker is killed and started again, one after the other. Nothing that was acknowledged
    is lost, nothing is repeated, and the pipeline goes on by itself.""",
)
def rolling_restart_hard(scene: Scene) -> tuple[Control, ...]:
    careless = Careless(scene, "1")
    with scene.fault("the brokers are killed, one by one", "all brokers were restarted"):
        for number in [node.id for node in scene.stack.spec.cluster.brokers]:
            if careless.leader == number:
                careless.kill_leader()
            else:
                _node(scene, number).process.kill()
            scene.event("note", f"broker {number} is killed")
            scene.stack.cluster.wait_unregistered(number)
            restore(scene, number)
    return careless.finish(ACKS_1)


@DRILLS.add(
    "broker-paused",
    """A broker hangs for longer than its session lasts, and wakes up as a leader that is none any
    more. What it takes in that belief is refused; nothing acknowledged is lost or repeated, and the
    pipeline goes on by itself.""",
)
def broker_paused(scene: Scene) -> tuple[Control, ...]:
    careless = Careless(scene, "0")
    leader = careless.leader
    node = _node(scene, leader)
    with scene.fault("a broker hangs", "it wakes up"):
        node.process.send(signal.SIGSTOP)
        careless.load.wait_for(50, 10)
        scene.stack.cluster.wait_unregistered(leader)
        node.process.send(signal.SIGCONT)
    scene.stack.cluster.wait_node(leader)
    return careless.finish(ACKS_0)


@DRILLS.add(
    "disk-full",
    """A broker's files cannot grow any more, as on a full disk. It gives up and another one takes
    over; when there is room again it comes back. Nothing acknowledged is lost or repeated, and the
    pipeline goes on by itself.""",
)
def disk_full(scene: Scene) -> tuple[Control, ...]:
    careless = Careless(scene, "0")
    leader = careless.leader
    node = _node(scene, leader)
    with scene.fault("a broker's disk is full", "there is room again, and the broker is back"):
        pid = node.process.pid
        assert pid, "the broker is gone already"
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        wait_until(lambda: careless.leader != leader, 60, "the broker did not give up")
        node.process.kill()
        scene.stack.cluster.wait_unregistered(leader)
        restore(scene, leader)
    return careless.finish(ACKS_0)


@DRILLS.add(
    "unclean-election",
    """The replicas are killed one by one until only the leader is left, then the leader, and a
    stale one is started first. Where unclean elections are forbidden, as everywhere by default, the
    partition waits for a replica that has everything: producers and the pipeline wait with it, go
    on by themselves, and nothing acknowledged is lost. Where they are allowed, the stale one leads,
    and what it missed is gone.""",
)
def unclean_election(scene: Scene) -> tuple[Control, ...]:
    allowed = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    careless = Careless(scene, "1", configs=allowed)
    leader = careless.leader
    others = [node.id for node in scene.stack.spec.cluster.brokers if node.id != leader]
    with scene.fault("the replicas are killed one by one, then the leader", "all are back"):
        for number in others:
            _node(scene, number).process.kill()
            scene.stack.cluster.wait_unregistered(number)
            scene.event("note", f"broker {number} is killed")
            careless.load.wait_for(100, 30)
        _node(scene, leader).process.kill()
        scene.event("note", f"broker {leader}, the last leader, is killed")
        _start_alone(scene, others[0])
        wait_until(lambda: careless.leader == others[0], 60, "no unclean election")
        scene.event("note", f"broker {others[0]}, which is stale, leads where that is allowed")
        careless.load.wait_for(50, 60)
        for number in (leader, others[1]):
            _start_alone(scene, number)
        for number in (leader, *others):
            scene.stack.cluster.wait_node(number)
    return careless.finish("acks=1, and unclean elections are allowed: a stale replica may lead.")


def _start_alone(scene: Scene, number: int) -> None:
    """Start a broker without waiting until it is in sync: its leaders may be away."""
    _node(scene, number).start()
