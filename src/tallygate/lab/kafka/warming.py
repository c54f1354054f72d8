"""Start a broker, have it serve a group and a transaction, and stop it: `python -m
tallygate.lab.kafka.warming FILE` lists the classes that it loads (see `jvm.class_archive`)."""

import os
import signal
import sys

from tallygate.lab.kafka.cluster import Cluster, ClusterSpec
from tallygate.lab.orphan_guard import Guard
from tallygate.ports import free_ports
from tallygate.settings import Settings

LONGEST = 60.0


def main(archive: str) -> None:
    settings = Settings.load()
    cluster = Cluster(ClusterSpec.plan(1, 0, free_ports(2)), settings.state_dir / "kafka", settings)
    guard = Guard(settings.state_dir)
    given = os.environ.get("JDK_JAVA_OPTIONS", "")
    os.environ["JDK_JAVA_OPTIONS"] = f"{given} -XX:ArchiveClassesAtExit={archive}"
    cluster.start()
    # The JVM writes when it ends; if that takes too long, what is there is not whole.
    broker = cluster.nodes[0].process
    broker.send(signal.SIGTERM)
    broker.wait_gone(LONGEST)
    guard.release()


if __name__ == "__main__":
    main(sys.argv[1])
