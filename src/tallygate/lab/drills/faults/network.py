"""Drills on the network of Kafka: between clients and brokers, and among brokers.

Each broker stands behind a proxy. A proxy knows the caller by the first request of a connection,
which carries the caller's name: brokers that replicate call themselves `broker-N-fetcher-M`.
"""

import time

from tallygate.lab.drills.drill import Drills
from tallygate.lab.drills.drill_run import Scene
from tallygate.lab.drills.faults.brokers import ACKS_0, ACKS_1, Careless, restore
from tallygate.lab.drills.outcome import Control
from tallygate.lab.drills.proxy import LinkFault

DRILLS = Drills()
NAME_AT = 14
"""Where a request has its caller's name: after the length, kind, version, number, name's length."""


def _is_broker(hello: bytes) -> bool:
    return hello[NAME_AT:].startswith(b"broker-")


def _is_client(hello: bytes) -> bool:
    return not _is_broker(hello)


@DRILLS.add(
    "client-network",
    """Producers and the pipeline lose their brokers: the network is slow, then cut, then silent,
    then lets nothing back, for some seconds each. Records wait and are delivered once, in spite of
    the retries; the pipeline goes on by itself.""",
)
def client_network(scene: Scene) -> tuple[Control, ...]:
    careless = Careless(scene, "0")
    faults: tuple[LinkFault, ...] = ("slow", "cut", "silent", "deaf")
    with scene.fault("the network of the clients is bad in four ways", "it is good again"):
        for fault in faults:
            scene.event("note", f"the links are {fault}")
            for proxy in scene.proxies:
                proxy.break_link(fault, _is_client)
            time.sleep(4)
            for proxy in scene.proxies:
                proxy.heal()
            scene.event("note", "the links are good")
            scene.wait_committed(100, 120)
    return careless.finish(ACKS_0)


@DRILLS.add(
    "broker-network",
    """The followers of a partition cannot reach its leader, while clients can. What the leader
    takes meanwhile is not acknowledged, unless by acks=1. Then the leader dies. Nothing
    acknowledged is lost or repeated, and the pipeline goes on by itself.""",
)
def broker_network(scene: Scene) -> tuple[Control, ...]:
    careless = Careless(scene, "1")
    leader = careless.leader
    proxy = scene.proxies[leader - 1]
    with scene.fault("the leader's followers cannot reach it, then it dies", "all is well again"):
        proxy.break_link("silent", _is_broker)
        time.sleep(1)
        careless.load.wait_for(200, 20)
        scene.stack.cluster.node(leader).process.kill()
        proxy.heal()
        scene.stack.cluster.wait_unregistered(leader)
        restore(scene, leader)
    return careless.finish(ACKS_1)
