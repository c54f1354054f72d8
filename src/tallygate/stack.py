"""A local stack: a Kafka cluster and a PostgreSQL, under a name, in one folder.

    STATE_DIR/stacks/NAME/
      stack.json        what the stack is: nodes, ports, password (readable by its owner only)
      kafka/N/          one node: server.properties, data/, kafka.log, process.json
      postgres/         data/, postgres.log, process.json

What runs is never written down as a fact: it is looked up from the records of the processes each
time, so a crash, a reboot or a killed program leaves nothing that has to be repaired by hand.

A stack belongs to the program that started it, and a guard ends its processes when that program
dies, unless it was asked to leave the stack in the background.
"""

import fcntl
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from types import TracebackType

import psutil
from pydantic import BaseModel, ConfigDict, ValidationError

from tallygate.errors import ConfigError, MachineError, StackError
from tallygate.guard import Guard, kill_recorded
from tallygate.java import find_java
from tallygate.kafka.cluster import Cluster, ClusterSpec
from tallygate.kafka.node import Node
from tallygate.ports import check_free, free_ports, is_free
from tallygate.postgres.server import Postgres, PostgresSpec
from tallygate.process import ProcessState
from tallygate.settings import Settings
from tallygate.spark.jars import jar_paths

__all__ = ["Stack", "StackSpec", "StackState"]

SPEC = "stack.json"
DISK_NEEDED = 1 << 30
MEMORY_PER_NODE = 350 << 20

Progress = Callable[[str], None]


def _silent(_: str) -> None:
    pass


class StackState(Enum):
    ABSENT = "absent"
    DOWN = "down"
    PARTIAL = "partly up"
    UP = "up"


class StackSpec(BaseModel):
    """What a stack is, as kept in its file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    cluster: ClusterSpec
    postgres: PostgresSpec

    @property
    def ports(self) -> set[int]:
        return {*self.cluster.ports, self.postgres.port}


class Stack:
    """Start with `with Stack() as stack:`; open one that is there with `Stack.open()`."""

    def __init__(
        self,
        name: str = "default",
        *,
        brokers: int | None = None,
        controllers: int | None = None,
        racks: Sequence[str] = (),
        kafka_port: int | None = None,
        postgres_port: int | None = None,
        config: Mapping[str, str] | None = None,
        purge: bool = False,
        settings: Settings | None = None,
    ) -> None:
        """Describe a stack; nothing is started.

        `brokers` (3), `controllers` (0: the brokers are controllers too), `racks` and the broker
        `config` shape a new stack. One that exists keeps its shape, and asking for another is
        refused. With `purge` the stack's data is removed when the `with` block ends.
        """
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", name):
            raise ConfigError(
                f"{name!r} cannot name a stack: use letters, digits, dots, dashes and underscores."
            )
        self.name = name
        self.settings = settings or Settings.load()
        self._shape = (brokers, controllers, tuple(racks))
        self._fixed_ports = (kafka_port, postgres_port)
        self._config = dict(config or {})
        self._purge = purge
        self._guard: Guard | None = None

    @classmethod
    def open(cls, name: str = "default", settings: Settings | None = None) -> "Stack":
        """A stack that exists, whether it runs or not."""
        stack = cls(name, settings=settings)
        stack.spec  # noqa: B018 - reads the file, and says so if there is none
        return stack

    @classmethod
    def names(cls, settings: Settings) -> list[str]:
        return sorted(path.parent.name for path in settings.state_dir.glob(f"stacks/*/{SPEC}"))

    @property
    def folder(self) -> Path:
        return self.settings.state_dir / "stacks" / self.name

    @property
    def spec(self) -> StackSpec:
        path = self.folder / SPEC
        try:
            return StackSpec.model_validate_json(path.read_text())
        except FileNotFoundError:
            raise StackError(
                f"there is no stack {self.name!r}; start one with `tallygate up{self._flag}`."
            ) from None
        except (OSError, ValidationError, UnicodeDecodeError) as error:
            raise StackError(
                f"{path} cannot be read as a stack ({type(error).__name__}); remove the stack "
                f"with `tallygate down --purge{self._flag}`."
            ) from error

    @property
    def cluster(self) -> Cluster:
        return Cluster(self.spec.cluster, self.folder / "kafka", self.settings)

    @property
    def postgres(self) -> Postgres:
        return Postgres(self.spec.postgres, self.folder / "postgres")

    @property
    def bootstrap_servers(self) -> str:
        return self.cluster.bootstrap_servers

    @property
    def dsn(self) -> str:
        return self.postgres.dsn

    @property
    def members(self) -> tuple[Node | Postgres, ...]:
        """Every process of the stack, brokers first."""
        return (*self.cluster.nodes, self.postgres)

    def member(self, name: str) -> Node | Postgres:
        """A member by its number, or PostgreSQL by its name."""
        for member in self.members:
            if member.name == name:
                return member
        known = ", ".join(member.name for member in self.members)
        raise StackError(f"stack {self.name!r} has no node {name!r}; its nodes are {known}.")

    @property
    def state(self) -> StackState:
        if not (self.folder / SPEC).exists():
            return StackState.ABSENT
        running = [member.state is not ProcessState.STOPPED for member in self.members]
        if all(running):
            return StackState.UP
        return StackState.PARTIAL if any(running) else StackState.DOWN

    def up(self, *, background: bool = False, progress: Progress = _silent) -> None:
        """Start what is not running and wait until all of it is ready.

        If anything fails or the program dies on the way, what this call started is ended again.
        """
        with self._lock():
            state = self.state
            if state is StackState.UP:
                raise StackError(
                    f"stack {self.name!r} is up already; see `tallygate status{self._flag}`, or "
                    "choose another name with --name."
                )
            self._check_machine()
            find_java(self.settings)
            jar_paths("kafka", self.settings, progress)
            self._prepare(state)
            healing = state is StackState.PARTIAL
            guard = None if healing else Guard(self.folder, purge=self._purge)
            try:
                self.postgres.start(progress)
                self.cluster.start(progress)
            except BaseException:
                if guard:
                    kill_recorded(self.folder)
                    guard.release()
                raise
            if background and guard:
                guard.release()
            elif guard:
                self._guard = guard

    def down(self, *, purge: bool = False, progress: Progress = _silent) -> None:
        """Stop everything; the data stays, unless `purge`."""
        with self._lock():
            if (self.folder / SPEC).exists() and not (purge and self._is_broken()):
                progress("PostgreSQL: stopping")
                self.postgres.stop()
                self.cluster.stop(progress)
            kill_recorded(self.folder)
            if self._guard:
                self._guard.release()
                self._guard = None
            if purge:
                shutil.rmtree(self.folder, ignore_errors=True)

    def add_broker(self, rack: str | None = None, progress: Progress = _silent) -> int:
        """Add a broker to the running cluster and return its number."""
        with self._lock():
            spec = self.spec
            cluster = spec.cluster.with_broker(free_ports(2, self._taken_ports()), rack)
            self._write(spec.model_copy(update={"cluster": cluster}))
            self.cluster.start(progress)
            return cluster.brokers[-1].id

    def __enter__(self) -> "Stack":
        self.up()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.down(purge=self._purge)

    @property
    def _flag(self) -> str:
        return "" if self.name == "default" else f" --name {self.name}"

    def _is_broken(self) -> bool:
        try:
            self.spec  # noqa: B018
        except StackError:
            return True
        return False

    def _prepare(self, state: StackState) -> None:
        """Write the stack's file: a new one, or the old one with ports that are free."""
        if state is StackState.ABSENT:
            self._write(self._plan())
            return
        spec = self.spec
        self._check_shape(spec)
        if state is StackState.DOWN and not all(is_free(port) for port in spec.ports):
            ports = free_ports(2 * len(spec.cluster.nodes) + 1, self._taken_ports())
            self._write(
                StackSpec(
                    name=spec.name,
                    cluster=spec.cluster.with_ports(ports[1:]),
                    postgres=spec.postgres.model_copy(update={"port": ports[0]}),
                )
            )

    def _plan(self) -> StackSpec:
        brokers, controllers, racks = self._shape
        brokers, controllers = brokers if brokers is not None else 3, controllers or 0
        kafka_port, postgres_port = self._fixed_ports
        ports = free_ports(2 * brokers + controllers + 1, self._taken_ports())
        own, rest = ports[0], ports[1:]
        if kafka_port is not None:
            for number in range(brokers):
                check_free(kafka_port + number, f"broker {number + 1}")
                rest[2 * number] = kafka_port + number
        if postgres_port is not None:
            check_free(postgres_port, "PostgreSQL")
        return StackSpec(
            name=self.name,
            cluster=ClusterSpec.plan(brokers, controllers, rest, racks, self._config),
            postgres=PostgresSpec(port=postgres_port or own, password=secrets.token_urlsafe(18)),
        )

    def _check_shape(self, spec: StackSpec) -> None:
        brokers, controllers, racks = self._shape
        there = (
            len(spec.cluster.brokers),
            sum(not node.broker for node in spec.cluster.nodes),
        )
        asked = (
            there[0] if brokers is None else brokers,
            there[1] if controllers is None else controllers,
        )
        if asked != there or racks or self._config or any(self._fixed_ports):
            raise StackError(
                f"stack {self.name!r} exists with {there[0]} brokers and {there[1]} dedicated "
                "controllers, and keeps the shape, racks, ports and broker settings it was made "
                f"with; remove it first with `tallygate down --purge{self._flag}`."
            )

    def _check_machine(self) -> None:
        brokers, controllers, _ = self._shape
        nodes = (brokers or 3) + (controllers or 0)
        free = psutil.disk_usage(str(self._existing_parent())).free
        if free < DISK_NEEDED:
            raise MachineError(
                f"{self.settings.state_dir} has {free >> 20} MiB of free disk; a stack needs "
                f"{DISK_NEEDED >> 20} MiB. Free some, or choose another folder by state.dir."
            )
        available = psutil.virtual_memory().available
        if available < nodes * MEMORY_PER_NODE:
            raise MachineError(
                f"{available >> 20} MiB of memory are free; {nodes} Kafka nodes need "
                f"{nodes * MEMORY_PER_NODE >> 20} MiB. Start fewer with --brokers."
            )

    def _existing_parent(self) -> Path:
        folder = self.folder
        while not folder.exists():
            folder = folder.parent
        return folder

    def _taken_ports(self) -> set[int]:
        """The ports of all stacks of this user, running or not, so that they do not collide."""
        taken: set[int] = set()
        for name in self.names(self.settings):
            stack = Stack(name, settings=self.settings)
            if not stack._is_broken():
                taken |= stack.spec.ports
        return taken

    def _write(self, spec: StackSpec) -> None:
        partial = self.folder / f"{SPEC}.partial"
        partial.touch(mode=0o600)
        partial.write_text(spec.model_dump_json(indent=1))
        partial.replace(self.folder / SPEC)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """One program at a time changes a stack."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = (self.folder.parent / f".{self.name}.lock").open("w")
        except OSError as error:
            raise MachineError(
                f"the folder {self.folder} cannot be written ({error.strerror}); make it "
                "writable or choose another by the setting state.dir."
            ) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StackError(
                    f"another program is starting or stopping stack {self.name!r}; wait for it."
                ) from None
            yield
