"""A random mix of faults, from a seed: the same seed brings the same faults in the same order."""

import random
import shutil
import signal
import time
from collections.abc import Callable

from tallygate.lab.drills.drill import Drill
from tallygate.lab.drills.drill_run import Scene
from tallygate.lab.drills.faults.brokers import leader_of, restore
from tallygate.lab.drills.faults.database import Between
from tallygate.lab.drills.faults.drivers import KILLED
from tallygate.lab.drills.outcome import Control
from tallygate.lab.drills.proxy import LinkFault

MIX = "mix"
FAULTS = 3


def mix(seed: int) -> Drill:
    def play(scene: Scene) -> tuple[Control, ...]:
        chance = random.Random(seed)
        between = Between(scene, driver_rows=chance.choice([0, 20_000]), dies=True)
        between.start()
        for _ in range(FAULTS):
            name = chance.choice(list(_FAULTS))
            with scene.fault(name, "it is over"):
                _FAULTS[name](between, chance)
            scene.wait_committed(50, 120)
        return between.finish(KILLED)

    return Drill(
        f"{MIX}-{seed}",
        f"{FAULTS} faults, chosen by chance (seed {seed}) among those of brokers, driver and "
        "database. Nothing acknowledged is lost, nothing is there twice.",
        play,
        seed,
    )


def _kill_broker(between: Between, chance: random.Random) -> None:
    scene = between.scene
    leader = leader_of(scene, scene.topic, chance.randrange(3))
    scene.stack.cluster.node(leader).process.kill()
    time.sleep(chance.uniform(0, 3))
    restore(scene, leader)


def _pause_broker(between: Between, chance: random.Random) -> None:
    scene = between.scene
    node = scene.stack.cluster.node(leader_of(scene, scene.topic, chance.randrange(3)))
    node.process.send(signal.SIGSTOP)
    time.sleep(chance.uniform(1, 8))
    node.process.send(signal.SIGCONT)
    scene.stack.cluster.wait_node(node.spec.id)


def _kill_driver(between: Between, chance: random.Random) -> None:
    time.sleep(chance.uniform(0, 2))
    between.pipeline.kill()


def _pause_driver(between: Between, chance: random.Random) -> None:
    between.pipeline.pause()
    time.sleep(chance.uniform(1, 4))
    between.pipeline.resume()


def _lose_checkpoint(between: Between, _: random.Random) -> None:
    between.pipeline.end()
    shutil.rmtree(between.scene.folder / "checkpoint")
    between.pipeline.start()


def _cut_commit(between: Between, chance: random.Random) -> None:
    between.cut_commit(between.ours, "answer" if chance.random() < 0.5 else "request")


def _cut_link(between: Between, chance: random.Random) -> None:
    fault: LinkFault = "cut" if chance.random() < 0.5 else "silent"
    between.break_ours(fault, chance.uniform(0.5, 3))


def _kill_database(between: Between, chance: random.Random) -> None:
    server = between.scene.stack.postgres
    server.process.kill()
    time.sleep(chance.uniform(0, 3))
    server.start()


_FAULTS: dict[str, Callable[[Between, random.Random], None]] = {
    "a broker is killed": _kill_broker,
    "a broker hangs": _pause_broker,
    "the driver is killed": _kill_driver,
    "the driver hangs": _pause_driver,
    "the checkpoint is lost": _lose_checkpoint,
    "a commit is cut": _cut_commit,
    "the link to the database is cut": _cut_link,
    "the database is killed": _kill_database,
}
