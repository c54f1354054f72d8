"""The ways to write: every target in each of its strategies."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from contract.harness import Store

__all__ = ["MODULES", "Servers", "Way", "cases", "ways"]

BEGUN, WRITTEN, STAGED = "rows-begun", "rows-written", "rows-staged"
MOVED, SENT, DONE = "ledger-moved", "commit-sent", "committed"
IN_ONE = (BEGUN, WRITTEN, MOVED, SENT, DONE)
ALL = ("exactly-once", "at-least-once", "at-most-once")


@dataclass(frozen=True)
class Servers:
    """What stores are made of; a server is started when it is first asked for."""

    fixture: Callable[[str], Any]
    folder: Path


@dataclass(frozen=True, kw_only=True)
class Way:
    """A target in one of its strategies, and what of it matters to the suite."""

    kind: str
    strategy: str
    points: tuple[str, ...]
    """The failure points on it, apart from those of the engine."""
    reported: str = ""
    """What the target calls the strategy, where that is another name."""
    weaker: tuple[str, ...] = ()
    """Deliveries other than exactly-once."""
    slow: bool = False
    """Whether a commit takes a second, so that most is left to `make test-all`."""
    live: bool = True
    """Whether it needs a server."""
    tasks: bool = False
    """Whether tasks write, and may be repeated."""
    commits_by_task: bool = False
    """Whether each task commits by itself, so that a batch can be half done."""
    refuses: bool = False
    """Whether the store can be made to refuse a row."""
    hangs_up: bool = False
    """Whether the store can be made to end a connection."""
    staging: bool = False
    """Whether rows wait in a place of the run's own, which a newer run removes."""
    letters_with_rows: bool = False
    """Whether what a task decodes is kept in the transaction of its rows, and by no other step."""
    divisible: bool = True
    """Whether a batch that is half done can be trimmed."""

    def __str__(self) -> str:
        return f"{self.kind}-{self.strategy}"

    def store(self, servers: Servers, **fields: Any) -> Store:
        made = _MAKERS[self.kind](servers)
        return made(strategy=self.strategy, **fields)


def _sqlite(servers: Servers) -> Callable[..., Store]:
    from contract.sqlite_store import SqliteStore

    return lambda **fields: SqliteStore(folder=str(servers.folder), **fields)


def _postgres(servers: Servers) -> Callable[..., Store]:
    from contract.postgres_store import PostgresStore

    dsn = servers.fixture("small_stack").dsn
    return lambda **fields: PostgresStore(dsn=dsn, **fields)


def _parquet(servers: Servers) -> Callable[..., Store]:
    from contract.parquet_store import ParquetStore

    return lambda **fields: ParquetStore(folder=str(servers.folder), **fields)


def _kafka(servers: Servers) -> Callable[..., Store]:
    from contract.kafka_store import KafkaStore

    brokers = servers.fixture("small_stack").bootstrap_servers
    return lambda **fields: KafkaStore(servers=brokers, **fields)


def _delta(servers: Servers) -> Callable[..., Store]:
    from contract.delta_store import DeltaStore, gateway_of

    gateway = gateway_of(servers.fixture("spark"))
    return lambda **fields: DeltaStore(folder=str(servers.folder), gateway=gateway, **fields)


_MAKERS: dict[str, Callable[[Servers], Callable[..., Store]]] = {
    "sqlite": _sqlite,
    "postgres": _postgres,
    "kafka": _kafka,
    "parquet": _parquet,
    "delta": _delta,
}
_WAYS = (
    Way(kind="sqlite", strategy="driver", points=IN_ONE, weaker=ALL[1:], live=False, refuses=True),
    Way(
        kind="sqlite",
        strategy="partition",
        points=IN_ONE,
        weaker=ALL[1:],
        live=False,
        tasks=True,
        commits_by_task=True,
        refuses=True,
    ),
    Way(
        kind="postgres",
        strategy="driver",
        points=IN_ONE,
        weaker=ALL[1:],
        refuses=True,
        hangs_up=True,
    ),
    Way(
        kind="postgres",
        strategy="partition",
        points=IN_ONE,
        weaker=ALL[1:],
        tasks=True,
        commits_by_task=True,
        refuses=True,
        hangs_up=True,
    ),
    Way(
        kind="postgres",
        strategy="staged",
        staging=True,
        points=(BEGUN, STAGED, WRITTEN, MOVED, SENT, DONE),
        weaker=ALL[1:],
        tasks=True,
        refuses=True,
        hangs_up=True,
    ),
    Way(
        kind="postgres",
        strategy="merged",
        reported="staged",
        staging=True,
        points=(BEGUN, STAGED, WRITTEN, MOVED, SENT, DONE),
        weaker=("idempotent",),
        tasks=True,
        refuses=True,
        hangs_up=True,
    ),
    Way(
        kind="postgres",
        strategy="driver-merged",
        reported="driver",
        staging=True,
        points=IN_ONE,
        weaker=("idempotent",),
        refuses=True,
        hangs_up=True,
    ),
    Way(
        kind="kafka",
        strategy="narrow",
        points=IN_ONE,
        weaker=ALL[1:],
        tasks=True,
        commits_by_task=True,
        refuses=True,
        letters_with_rows=True,
    ),
    Way(
        kind="kafka",
        strategy="lanes",
        points=IN_ONE,
        weaker=ALL[1:],
        tasks=True,
        commits_by_task=True,
        divisible=False,
    ),
    Way(
        kind="parquet",
        strategy="driver",
        points=(BEGUN, WRITTEN, STAGED, MOVED, SENT, DONE),
        live=False,
    ),
    Way(
        kind="parquet",
        strategy="tasks",
        points=(BEGUN, WRITTEN, STAGED, MOVED, SENT, DONE),
        live=False,
        tasks=True,
    ),
    Way(
        kind="delta",
        strategy="append",
        points=(BEGUN, MOVED, SENT, DONE),
        slow=True,
        refuses=True,
    ),
    Way(
        kind="delta",
        strategy="upsert",
        points=(BEGUN, MOVED, SENT, DONE),
        slow=True,
        refuses=True,
    ),
)
MODULES = (
    "pyspark.sql.functions",
    "tallygate.lab.killing",
    "contract.ways",
    *(f"contract.{kind}_store" for kind in _MAKERS),
)
"""What the fork server imports."""


def ways(only: Callable[[Way], object] = bool, *, always: bool = False) -> list[Any]:
    """The ways for which something holds, as parameters of a test; `always` also the slow ones,
    which are left to `make test-all` otherwise."""
    return [_parameter(way, always=always) for way in _WAYS if only(way)]


def cases(given: Callable[[Way], Iterable[str]], *, always: bool = False) -> list[Any]:
    """Each way with each of what is said of it."""
    return [_parameter(way, each, always=always) for way in _WAYS for each in given(way)]


def _parameter(way: Way, *more: str, always: bool) -> Any:
    marks = [pytest.mark.live] if way.live else []
    if way.slow and not always:
        marks.append(pytest.mark.system)
    return pytest.param(way, *more, id="-".join([str(way), *more]), marks=marks)
