"""A real Spark cluster on this machine: a master and two workers, on loopback hosts of their own.

Local mode has no executors that could be lost. Here each worker has its own host, since Spark
starts the second copy of a slow task on another host than the first.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tallygate.jvm.java import find_java
from tallygate.lab.process import Process
from tallygate.ports import LOOPBACK, free_ports, is_open
from tallygate.settings import Settings
from tallygate.waiting import wait_until

WORKERS = ("127.0.0.2", "127.0.0.3")
PACKAGE = "org.apache.spark.deploy"


@contextmanager
def spark_cluster(folder: Path, settings: Settings) -> Iterator[str]:
    """The address of a cluster of two executors, one core each; gone when the block ends."""
    (port,) = free_ports(1)
    address = f"spark://{LOOPBACK}:{port}"
    started: list[Process] = []

    def start(name: str, main: str, *arguments: str) -> Process:
        process = Process(folder / name)
        started.append(process)
        process.start(_java(settings, f"{PACKAGE}.{main}", "--webui-port", "0", *arguments))
        return process

    try:
        start("master", "master.Master", "--host", LOOPBACK, "--port", str(port))
        wait_until(lambda: is_open(port), 30, "the master of the Spark cluster does not answer")
        for host in WORKERS:
            size = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / host / "work"))
            worker = start(host, "worker.Worker", "--host", host, *size, address)
            wait_until(
                lambda log=worker.log: "registered with master" in log.read_text(),  # type: ignore[misc]
                30,
                f"the Spark worker on {host} found no master",
            )
        yield address
    finally:
        for process in reversed(started):
            process.kill()


def _java(settings: Settings, *arguments: str) -> list[str]:
    home = Path(pyspark.__file__).parent
    java = find_java(settings)
    environment = {
        "SPARK_HOME": home,
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_SCALA_VERSION": "2.13",
        "JAVA_HOME": java.home,
    }
    given = [f"{name}={value}" for name, value in environment.items()]
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    return ["env", *given, java.executable, *options, "-cp", f"{home}/jars/*", *arguments]
