"""A local Kafka cluster in KRaft mode: real brokers, on loopback, one process each.

A node is either combined (broker and controller, the default) or dedicated. Dedicated controllers
matter when most brokers are to be stopped: a quorum that lives in the brokers dies with them.

Everything a node is stands in its spec and its folder, so a cluster can be opened by any later
program: nothing is known only to the process that started it.
"""

import base64
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, TopicPartition
from pydantic import BaseModel, ConfigDict

from tallygate.errors import ConfigError, NodeError, StackError
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.lab.kafka.node import Node, NodeSpec
from tallygate.lab.process import ProcessState
from tallygate.ports import LOOPBACK, is_open
from tallygate.progress import Progress, silent
from tallygate.settings import Settings
from tallygate.waiting import wait_until

FIRST_CONTROLLER = 101
READY_TIMEOUT = 90.0
STOP_TIMEOUT = 8.0
INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state")


class ClusterSpec(BaseModel):
    """What a cluster is, as kept in the stack's file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cluster_id: str
    nodes: tuple[NodeSpec, ...]
    config: Mapping[str, str] = {}

    @classmethod
    def plan(
        cls,
        brokers: int,
        controllers: int,
        ports: Iterable[int],
        racks: tuple[str, ...] = (),
        config: Mapping[str, str] | None = None,
        advertised: Sequence[int] = (),
    ) -> "ClusterSpec":
        """Brokers are numbered from 1, dedicated controllers from 101; racks go round."""
        if brokers < 1 or controllers < 0:
            raise ConfigError("a cluster needs at least one broker and no negative controllers.")
        free = iter(ports)
        nodes = [
            NodeSpec(
                id=number,
                broker=True,
                controller=controllers == 0,
                port=next(free),
                quorum_port=next(free),
                rack=racks[(number - 1) % len(racks)] if racks else None,
                advertised_port=advertised[number - 1] if advertised else None,
            )
            for number in range(1, brokers + 1)
        ]
        for number in range(FIRST_CONTROLLER, FIRST_CONTROLLER + controllers):
            port = next(free)
            nodes.append(
                NodeSpec(id=number, broker=False, controller=True, port=port, quorum_port=port)
            )
        return cls(cluster_id=_new_id(), nodes=tuple(nodes), config=config or {})

    @property
    def brokers(self) -> tuple[NodeSpec, ...]:
        return tuple(node for node in self.nodes if node.broker)

    def is_broker(self, number: int) -> bool:
        return any(node.id == number for node in self.brokers)

    @property
    def voters(self) -> tuple[NodeSpec, ...]:
        return tuple(node for node in self.nodes if node.controller)

    @property
    def ports(self) -> set[int]:
        return {port for node in self.nodes for port in (node.port, node.quorum_port)}

    def with_ports(self, ports: Iterable[int]) -> "ClusterSpec":
        """The same cluster elsewhere, for when another program took a port while it was down."""
        free = iter(ports)
        moved = []
        for node in self.nodes:
            port = next(free)
            quorum = next(free) if node.broker else port
            moved.append(node.model_copy(update={"port": port, "quorum_port": quorum}))
        return self.model_copy(update={"nodes": tuple(moved)})

    def with_broker(self, ports: Iterable[int], rack: str | None) -> "ClusterSpec":
        """The cluster and one more broker; the quorum stays as it was."""
        port, quorum_port = ports
        number = max(node.id for node in self.brokers) + 1
        node = NodeSpec(
            id=number, broker=True, controller=False, port=port, quorum_port=quorum_port, rack=rack
        )
        return self.model_copy(update={"nodes": (*self.nodes, node)})


@dataclass(frozen=True)
class Cluster:
    """The processes of a cluster, in a folder of their own."""

    spec: ClusterSpec
    folder: Path
    settings: Settings

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{LOOPBACK}:{node.port}" for node in self.spec.brokers)

    @property
    def connection(self) -> Connection:
        return Connection.to(self.bootstrap_servers)

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(
            Node(spec, self.folder / str(spec.id), self.settings) for spec in self.spec.nodes
        )

    def node(self, number: int) -> Node:
        for node in self.nodes:
            if node.spec.id == number:
                return node
        known = ", ".join(str(spec.id) for spec in self.spec.nodes)
        raise StackError(f"there is no node {number}; the nodes are {known}.")

    @property
    def controller(self) -> int | None:
        """The node that leads the metadata quorum, read from what the voters wrote down.

        Clients cannot ask for it: in KRaft mode brokers give them any broker's id instead.
        """
        seen = []
        for node in self.nodes:
            path = node.data / "__cluster_metadata-0" / "quorum-state"
            if node.spec.controller and node.state is ProcessState.RUNNING and path.exists():
                quorum = json.loads(path.read_text())
                seen.append((quorum["leaderEpoch"], quorum["leaderId"]))
        leader = max(seen, default=(0, -1))[1]
        return leader if leader >= 0 else None

    def start(self, progress: Progress = silent) -> None:
        """Start every node that is not running, and wait until the cluster is of use."""
        nodes = self.nodes
        for node in nodes:
            node.configure(self._properties(), self.spec.voters)
        stopped = [node for node in nodes if node.state is ProcessState.STOPPED]
        progress(f"Kafka: preparing {len(stopped)} nodes")
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda node: node.format(self.spec.cluster_id), stopped))
        for node in stopped:
            node.start()
        self.wait_ready(progress)

    def start_node(self, number: int, progress: Progress = silent) -> None:
        """Start one node beside the running others, and wait until it serves."""
        node = self.node(number)
        node.configure(self._properties(), self.spec.voters)
        node.format(self.spec.cluster_id)
        node.start()
        self.wait_node(number, progress)

    def wait_ready(self, progress: Progress = silent) -> None:
        """Wait until every broker is registered and the internal topics can be used."""
        nodes = self.nodes

        def listening() -> int:
            for node in nodes:
                node.check_alive()
            up = sum(is_open(node.spec.port) for node in nodes)
            progress(f"Kafka: {up} of {len(nodes)} nodes listen")
            return up == len(nodes)

        wait_until(listening, READY_TIMEOUT, self._late("not every node listened"), error=NodeError)
        wanted = {node.id for node in self.spec.brokers}

        def registered() -> bool:
            for node in nodes:
                node.check_alive()
            there = self.registered()
            progress(f"Kafka: {len(there & wanted)} of {len(wanted)} brokers registered")
            return wanted <= there

        wait_until(registered, READY_TIMEOUT, self._late("not all registered"), error=NodeError)
        progress("Kafka: creating the internal topics")
        self._touch_internal_topics()

    def wait_node(self, number: int, progress: Progress = silent) -> None:
        """Wait until one node serves: a broker is registered and in sync with all its leaders."""
        node = self.node(number)

        def serves() -> bool:
            node.check_alive()
            progress(f"Kafka: waiting for {node.description}")
            return is_open(node.spec.port) and (not node.spec.broker or self._in_sync(number))

        wait_until(
            serves,
            READY_TIMEOUT,
            self._late(f"Kafka {node.description} did not catch up"),
            error=NodeError,
        )

    def registered(self) -> set[int]:
        """The brokers that the cluster counts as alive at this moment."""
        metadata = self._metadata()
        return set(metadata.brokers) if metadata else set()

    def wait_unregistered(self, number: int, timeout: float = 30) -> bool:
        """Wait until no broker counts `number` as alive and no partition is led by it.

        False when that did not come to pass, as when the quorum went down with the node.
        """

        def noticed() -> bool:
            metadata = self._metadata()
            return (
                metadata is not None
                and number not in metadata.brokers
                and all(partition.leader != number for partition in _partitions(metadata))
            )

        try:
            return wait_until(noticed, timeout, "", error=TimeoutError, every=0.2)
        except TimeoutError:
            return False

    def _in_sync(self, number: int) -> bool:
        metadata = self._metadata()
        return (
            metadata is not None
            and number in metadata.brokers
            and all(number in p.isrs for p in _partitions(metadata) if number in p.replicas)
        )

    def _metadata(self) -> Any:
        """What the brokers know of each other and the topics; None while none of them answers."""
        try:
            return clients.admin(self.connection).list_topics(timeout=5)
        except KafkaException:
            return None

    def stop(self, progress: Progress = silent) -> None:
        """Stop all nodes together, brokers before dedicated controllers.

        A broker that stops asks the controller to take over its leaderships. When the quorum
        stops too, the last ones ask in vain for minutes: they are killed, which loses nothing,
        since what was acknowledged is in the files.
        """
        progress("Kafka: stopping")
        for kind in (True, False):
            group = [node for node in self.nodes if node.spec.broker is kind]
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda node: node.stop(STOP_TIMEOUT), group))

    def _properties(self) -> dict[str, str]:
        """What all nodes share. Durable by default: three replicas, two of them in sync."""
        replicas = min(3, len(self.spec.brokers))
        in_sync = min(2, replicas)
        return {
            "auto.create.topics.enable": "false",
            "unclean.leader.election.enable": "false",
            "default.replication.factor": str(replicas),
            "min.insync.replicas": str(in_sync),
            "offsets.topic.replication.factor": str(replicas),
            "offsets.topic.num.partitions": "12",
            "transaction.state.log.replication.factor": str(replicas),
            "transaction.state.log.min.isr": str(in_sync),
            "transaction.state.log.num.partitions": "12",
            "share.coordinator.state.topic.replication.factor": str(replicas),
            "share.coordinator.state.topic.min.isr": str(in_sync),
            # A lost broker is noticed in 6 s rather than 9, and a first consumer need not wait.
            "broker.session.timeout.ms": "6000",
            "broker.heartbeat.interval.ms": "1000",
            "group.initial.rebalance.delay.ms": "0",
            "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
            "num.network.threads": "2",
            "num.io.threads": "4",
            **self.spec.config,
        }

    def _late(self, what: str) -> str:
        return (
            f"Kafka: {what} within {READY_TIMEOUT:.0f} s; the logs are {self.folder}/*/kafka.log."
        )

    def _touch_internal_topics(self) -> None:
        """Kafka makes the topics for offsets and transactions when they are first asked for.

        Until their leaders have loaded them, brokers answer with errors that ask to try again.
        """
        reader = clients.consumer(self.connection, group_id="tallygate.ready")
        writer = clients.producer(self.connection, transactional_id="tallygate.ready")
        said, initialized = "", False

        def usable() -> bool:
            nonlocal said, initialized
            for node in self.nodes:
                node.check_alive()
            try:
                reader.committed([TopicPartition("tallygate.ready", 0)], timeout=5)
                if not initialized:
                    writer.init_transactions(5)
                    initialized = True
            except KafkaException as error:
                said = error.args[0].str()
                return False
            metadata = self._metadata()
            internal = [metadata.topics.get(name) if metadata else None for name in INTERNAL_TOPICS]
            return all(t and all(p.leader >= 0 for p in t.partitions.values()) for t in internal)

        try:
            wait_until(
                usable,
                READY_TIMEOUT,
                lambda: f"Kafka's internal topics did not get ready: {said}.",
                error=NodeError,
            )
        finally:
            reader.close()


def _partitions(metadata: Any) -> Iterator[Any]:
    for topic in metadata.topics.values():
        yield from topic.partitions.values()


def _new_id() -> str:
    """A random UUID in base64, as Kafka has it; its tools take a leading dash for a flag."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text
