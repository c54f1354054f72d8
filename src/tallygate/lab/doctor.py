"""Is everything there that Tallygate needs? One check each, each with what to do."""

import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

import psutil

from tallygate.errors import TallygateError
from tallygate.jvm.jars import all_sets, jar_paths, named_set
from tallygate.jvm.java import find_java
from tallygate.kafka.connection import Connection
from tallygate.kafka.topics import Topics
from tallygate.lab.stack import DISK_NEEDED, MEMORY_PER_NODE, Stack, StackState
from tallygate.ports import free_ports
from tallygate.postgres.connect import check_postgres
from tallygate.settings import Settings
from tallygate.units import human_size


class Health(Enum):
    OK = "ok"
    PROBLEM = "problem"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    check: str
    health: Health
    detail: str
    advice: str = ""


def examine(settings: Settings) -> Iterator[Finding]:
    """Run every check; one that fails does not keep the next from running."""
    for name, check in _CHECKS.items():
        try:
            yield check(settings)
        except TallygateError as error:
            problem, _, advice = str(error).partition("; ")
            yield Finding(name, Health.PROBLEM, problem, advice)


def _python(_: Settings) -> Finding:
    version = platform.python_version()
    return Finding("python", Health.OK, f"{version}, {sys.executable}")


def _java(settings: Settings) -> Finding:
    java = find_java(settings)
    return Finding("java", Health.OK, f"{java.version}, {java.home}")


def _spark(settings: Settings) -> Finding:
    connector = named_set("spark").coordinates[0]
    return Finding(
        "spark", Health.OK, f"{connector.version}, master {settings.get('spark.master')}"
    )


def _jars(settings: Settings) -> Finding:
    known = all_sets()
    missing = [name for name, jar_set in known.items() if not jar_set.is_cached(settings)]
    if missing:
        detail = f"{' and '.join(missing)} not fetched yet"
        return Finding("jars", Health.PROBLEM, detail, "Run `tallygate jars fetch`.")
    count = sum(len(jar_paths(name, settings)) for name in known)
    return Finding("jars", Health.OK, f"{count} in {settings.cache_dir / 'jars'}")


def _disk(settings: Settings) -> Finding:
    folder = settings.state_dir
    while not folder.exists():
        folder = folder.parent
    free = psutil.disk_usage(str(folder)).free
    detail = f"{human_size(free)} free at {folder}"
    if free < DISK_NEEDED:
        advice = f"Free {human_size(DISK_NEEDED)}, or choose another folder by state.dir."
        return Finding("disk", Health.PROBLEM, detail, advice)
    return Finding("disk", Health.OK, detail)


def _memory(_: Settings) -> Finding:
    available = psutil.virtual_memory().available
    detail = f"{human_size(available)} available"
    if available < 3 * MEMORY_PER_NODE + (1 << 30):
        return Finding(
            "memory", Health.PROBLEM, detail, "Close programs, or run `tallygate up --brokers 1`."
        )
    return Finding("memory", Health.OK, detail)


def _ports(_: Settings) -> Finding:
    free_ports(10)
    return Finding("ports", Health.OK, "free ports found on loopback")


def _kafka(settings: Settings) -> Finding:
    if settings.names_cluster:
        connection = Connection.of(settings)
    else:
        stack = _running_stack(settings)
        if stack is None:
            return Finding("kafka", Health.SKIPPED, "none configured, no local stack up")
        connection = stack.cluster.connection
    brokers = Topics(connection, settings).brokers()
    return Finding("kafka", Health.OK, f"{len(brokers)} brokers at {connection.bootstrap_servers}")


def _postgres(settings: Settings) -> Finding:
    dsn = settings.in_place_of_stack("postgres.dsn")
    if dsn is None:
        stack = _running_stack(settings)
        if stack is None:
            return Finding("postgres", Health.SKIPPED, "none configured, no local stack up")
        dsn = stack.dsn
    return Finding("postgres", Health.OK, check_postgres(dsn, settings.timeout))


def _running_stack(settings: Settings) -> Stack | None:
    stack = Stack(settings.required("stack"), settings=settings)
    return stack if stack.state in (StackState.UP, StackState.PARTIAL) else None


_CHECKS: dict[str, Callable[[Settings], Finding]] = {
    "python": _python,
    "java": _java,
    "spark": _spark,
    "jars": _jars,
    "disk": _disk,
    "memory": _memory,
    "ports": _ports,
    "kafka": _kafka,
    "postgres": _postgres,
}
