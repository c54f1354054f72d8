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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from types import TracebackType

import psutil
from pydantic import BaseModel, ConfigDict, ValidationError

from tallygate.errors import ConfigError, MachineError, StackError
from tallygate.jvm.jars import jar_paths
from tallygate.jvm.java import find_java
from tallygate.lab.kafka.cluster import Cluster, ClusterSpec
from tallygate.lab.kafka.node import Node
from tallygate.lab.orphan_guard import OWNER, Guard, kill_recorded, lock_file
from tallygate.lab.postgres_server import PostgresServer, PostgresSpec
from tallygate.lab.process import ProcessState
from tallygate.ports import check_free, free_ports, is_free
from tallygate.progress import Progress, silent
from tallygate.settings import Settings

SPEC = "stack.json"
DISK_NEEDED = 1 << 30
MEMORY_PER_NODE = 350 << 20


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
    fixed_ports: bool = False
    """Ports that the user chose are not exchanged for others that are free."""

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
        advertised: Sequence[int] = (),
        purge: bool = False,
        settings: Settings | None = None,
    ) -> None:
        """Describe a stack; nothing is started.

        `brokers` (3), `controllers` (0: the brokers are controllers too), `racks` and the broker
        `config` shape a new stack. One that exists keeps its shape, and asking for another is
        refused. `advertised` names ports that brokers give to clients instead of their own,
        for a proxy in between. With `purge` the stack's data is removed when the `with`
        block ends.
        """
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", name):
            raise ConfigError(
                f"{name!r} cannot name a stack: use letters, digits, dots, dashes and underscores."
            )
        if (brokers is not None and brokers < 1) or (controllers or 0) < 0:
            raise ConfigError("a stack needs at least one broker and no negative controllers.")
        self.name = name
        self.settings = settings or Settings.load()
        self._shape = (brokers, controllers, tuple(racks))
        self._fixed_ports = (kafka_port, postgres_port)
        self._config = dict(config or {})
        self._advertised = tuple(advertised)
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
    def postgres(self) -> PostgresServer:
        return PostgresServer(self.spec.postgres, self.folder / "postgres")

    @property
    def bootstrap_servers(self) -> str:
        return self.cluster.bootstrap_servers

    @property
    def dsn(self) -> str:
        return self.postgres.dsn

    @property
    def members(self) -> tuple[Node | PostgresServer, ...]:
        """Every process of the stack, brokers first."""
        return (*self.cluster.nodes, self.postgres)

    def member(self, name: str) -> Node | PostgresServer:
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
        if self.is_broken:
            return StackState.DOWN
        running = [member.state is not ProcessState.STOPPED for member in self.members]
        if all(running):
            return StackState.UP
        return StackState.PARTIAL if any(running) else StackState.DOWN

    def up(self, *, background: bool = False, progress: Progress = silent) -> None:
        """Start what is not running and wait until all of it is ready.

        If anything fails or the program dies on the way, what this call started is ended again,
        and a stack that was not there before is not there after.
        """
        with self.locked():
            state = self.state
            if state is StackState.UP:
                raise StackError(
                    f"stack {self.name!r} is up already; see `tallygate status{self._flag}`, or "
                    "choose another name with --name."
                )
            if state is StackState.PARTIAL and not background and self._guard is None:
                raise StackError(
                    f"stack {self.name!r} is partly up and belongs to another program; start the "
                    f"rest with `tallygate up{self._flag}`, or stop it with `tallygate down`."
                )
            self._check_machine(state)
            find_java(self.settings)
            jar_paths("kafka", self.settings, progress)
            self._prepare(state)
            stopped = [m for m in self.members if m.state is ProcessState.STOPPED]
            healing = state is StackState.PARTIAL
            guard = None if healing else self._new_guard()
            try:
                self.postgres.start(progress)
                self.cluster.start(progress)
            except BaseException:
                for member in stopped:
                    member.process.kill()
                if guard:
                    guard.release()
                    self._guard = None
                if state is StackState.ABSENT:
                    shutil.rmtree(self.folder, ignore_errors=True)
                raise
            if background and guard:
                guard.release()
                self._guard = None

    def down(self, *, purge: bool = False, progress: Progress = silent) -> None:
        """Stop everything; the data stays, unless `purge`."""
        with self.locked():
            if not self.is_broken:
                progress("PostgreSQL: stopping")
                self.postgres.stop()
                self.cluster.stop(progress)
            kill_recorded(self.folder)
            (self.folder / OWNER).unlink(missing_ok=True)
            if self._guard:
                self._guard.release()
                self._guard = None
            if purge:
                shutil.rmtree(self.folder, ignore_errors=True)

    def add_broker(self, rack: str | None = None, progress: Progress = silent) -> int:
        """Add a broker to the running cluster and return its number."""
        with self.locked():
            before = self.spec
            if not self.cluster.registered():
                raise StackError(f"stack {self.name!r} has no running brokers to add one to.")
            grown = before.cluster.with_broker(free_ports(2, self._taken_ports()), rack)
            number = grown.brokers[-1].id
            self._write(before.model_copy(update={"cluster": grown}))
            try:
                self.cluster.start_node(number, progress)
            except BaseException:
                self.cluster.node(number).process.kill()
                self._write(before)
                shutil.rmtree(self.folder / "kafka" / str(number), ignore_errors=True)
                raise
            return number

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

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One program at a time changes a stack."""
        try:
            _make_reachable(self.folder.parent)
            file = lock_file(self.folder).open("w")
        except OSError as error:
            raise MachineError(
                f"the folder {self.folder.parent} cannot be written ({error.strerror}); make it "
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

    @property
    def is_broken(self) -> bool:
        """Whether there is no file that says what the stack is, or one that cannot be read."""
        try:
            self.spec  # noqa: B018
        except StackError:
            return True
        return False

    @property
    def _flag(self) -> str:
        return "" if self.name == "default" else f" --name {self.name}"

    def _new_guard(self) -> Guard:
        if self._guard:
            self._guard.release()
        self._guard = Guard(self.folder, purge=self._purge)
        return self._guard

    def _prepare(self, state: StackState) -> None:
        """Write the stack's file: a new one, or the old one with ports that are free."""
        if state is StackState.ABSENT:
            self._write(self._plan())
            return
        spec = self.spec
        self._check_shape(spec)
        taken = [port for port in sorted(spec.ports) if not is_free(port)]
        if state is StackState.DOWN and taken:
            if spec.fixed_ports:
                check_free(taken[0], f"stack {self.name!r}")
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
        fixed = {} if postgres_port is None else {postgres_port: "PostgreSQL"}
        for number in range(brokers if kafka_port is not None else 0):
            port = (kafka_port or 0) + number
            if port in fixed:
                raise ConfigError(f"port {port} cannot serve both PostgreSQL and a broker.")
            fixed[port] = f"broker {number + 1}"
        for port, use in fixed.items():
            if not 0 < port < 65536:
                raise ConfigError(f"{port} for {use} is not a port: it must be from 1 to 65535.")
            check_free(port, use)
        count = 2 * brokers + controllers + 1
        own, *rest = free_ports(count, self._taken_ports() | set(fixed))
        if kafka_port is not None:
            rest[: 2 * brokers : 2] = range(kafka_port, kafka_port + brokers)
        return StackSpec(
            name=self.name,
            cluster=ClusterSpec.plan(
                brokers, controllers, rest, racks, self._config, self._advertised
            ),
            postgres=PostgresSpec(port=postgres_port or own, password=secrets.token_urlsafe(18)),
            fixed_ports=bool(fixed),
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

    def _check_machine(self, state: StackState) -> None:
        brokers, controllers, _ = self._shape
        nodes = (brokers or 3) + (controllers or 0)
        if state is not StackState.ABSENT:
            nodes = sum(n.state is ProcessState.STOPPED for n in self.cluster.nodes)
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
            if not stack.is_broken:
                taken |= stack.spec.ports
        return taken

    def _write(self, spec: StackSpec) -> None:
        _make_reachable(self.folder)
        partial = self.folder / f"{SPEC}.partial"
        partial.touch(mode=0o600)
        partial.write_text(spec.model_dump_json(indent=1))
        partial.replace(self.folder / SPEC)


def _make_reachable(folder: Path) -> None:
    """Make a folder that others may pass through, whatever the umask: PostgreSQL may be another."""
    if not folder.exists():
        _make_reachable(folder.parent)
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
