"""One Kafka process of a local cluster: what it is, how it is configured, how it lives and dies."""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from tallygate.jvm.class_archive import sharing
from tallygate.jvm.jars import jar_paths
from tallygate.jvm.java import find_java
from tallygate.kafka.properties import java_properties
from tallygate.lab.process import Process, ProcessState, died
from tallygate.paths import tail
from tallygate.ports import LOOPBACK, check_free
from tallygate.settings import Settings

# Small heaps and the quickest compiler: a local broker is started often and serves little.
JVM_OPTIONS = (
    "-Xms128m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config.AbstractConfig=warn",
)


class NodeSpec(BaseModel):
    """What a node is, as kept in the stack's file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: int
    broker: bool
    controller: bool
    port: int
    """Where a broker serves clients and other brokers, and a pure controller its quorum."""
    quorum_port: int
    rack: str | None = None
    advertised_port: int | None = None
    """The port that it gives to clients and other brokers, if a proxy stands in between."""

    @property
    def roles(self) -> tuple[str, ...]:
        pairs = (("broker", self.broker), ("controller", self.controller))
        return tuple(role for role, has in pairs if has)


@dataclass(frozen=True)
class Node:
    spec: NodeSpec
    folder: Path
    settings: Settings

    @property
    def process(self) -> Process:
        return Process(self.folder, log_name="kafka.log")

    @property
    def name(self) -> str:
        return str(self.spec.id)

    @property
    def description(self) -> str:
        return f"node {self.spec.id} ({' and '.join(self.spec.roles)})"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def state(self) -> ProcessState:
        return self.process.state

    def configure(self, cluster: Mapping[str, str], voters: Sequence[NodeSpec]) -> None:
        """Write server.properties from what is this node's and what the whole cluster shares."""
        self.folder.mkdir(parents=True, exist_ok=True)
        spec, listeners = self.spec, []
        if spec.broker:
            listeners.append(f"PLAINTEXT://{LOOPBACK}:{spec.port}")
        if spec.controller:
            listeners.append(f"CONTROLLER://{LOOPBACK}:{spec.quorum_port}")
        properties = {
            "node.id": str(spec.id),
            "process.roles": ",".join(spec.roles),
            "listeners": ",".join(listeners),
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "controller.quorum.voters": ",".join(
                f"{voter.id}@{LOOPBACK}:{voter.quorum_port}" for voter in voters
            ),
            "log.dirs": str(self.data),
        }
        if spec.advertised_port is not None:
            properties["advertised.listeners"] = f"PLAINTEXT://{LOOPBACK}:{spec.advertised_port}"
        if spec.rack and spec.broker:
            properties["broker.rack"] = spec.rack
        properties |= cluster
        (self.folder / "server.properties").write_text(java_properties(properties))

    def format(self, cluster_id: str) -> None:
        """Prepare the data folder, once in the node's life."""
        if (self.data / "meta.properties").exists():
            return
        tool = ("kafka.tools.StorageTool", "format", "--cluster-id", cluster_id)
        command = [*self._java(), *tool, "--config", str(self.folder / "server.properties")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = (done.stdout + done.stderr).splitlines()
            raise died(f"Kafka {self.description} could not be formatted", lines)

    def start(self) -> None:
        for port, use in self._ports():
            check_free(port, f"Kafka {self.description}, {use}")
        command = [*self._java(), "kafka.Kafka", str(self.folder / "server.properties")]
        self.process.start(command)

    def stop(self, timeout: float = 30) -> None:
        self.process.stop(signal.SIGTERM, timeout)

    def check_alive(self) -> None:
        if self.state is ProcessState.STOPPED:
            lines = tail(self.process.log, 200)
            raise died(f"Kafka {self.description} died", lines)

    def _ports(self) -> list[tuple[int, str]]:
        ports = [(self.spec.port, "clients")] if self.spec.broker else []
        return [*ports, *([(self.spec.quorum_port, "quorum")] if self.spec.controller else [])]

    def _java(self) -> list[str]:
        """Java is looked for when a JVM is to start, not when one is to be stopped."""
        classpath = ":".join(str(path) for path in jar_paths("kafka", self.settings))
        java = find_java(self.settings)
        shared = sharing("kafka", java, self.settings)
        own = self.folder / "tmp"  # what a killed JVM leaves there goes with the stack
        own.mkdir(exist_ok=True)
        scratch = f"-Djava.io.tmpdir={own}"
        return [java.executable, *JVM_OPTIONS, scratch, *shared, "-cp", classpath]
