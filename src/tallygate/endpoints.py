"""Where Kafka and PostgreSQL are: as configured, or those of the local stack that runs.

The laboratory starts and stops the stack, and may not be installed where a pipeline runs. What a
pipeline needs of a stack stands in the stack's file, and whether it runs is asked of its ports.
"""

import json
from pathlib import Path
from typing import Any

from tallygate.errors import StackError
from tallygate.kafka.connection import Connection
from tallygate.ports import LOOPBACK, is_open
from tallygate.settings import SETTINGS, Settings

STACK_FILE = "stack.json"
DATABASE = "tallygate"


def stack_folder(settings: Settings) -> Path:
    """Where the local stack that the settings name keeps its files."""
    return settings.state_dir / "stacks" / settings.required("stack")


def running_connection(settings: Settings) -> Connection:
    """The configured cluster, or that of the local stack."""
    if settings.names_cluster:
        return Connection.of(settings)
    cure = "name a cluster with --bootstrap-servers"
    stack = _running_stack(settings, "no cluster is configured", cure)
    ports = [node["port"] for node in stack["cluster"]["nodes"] if node["broker"]]
    return Connection.to(",".join(f"{LOOPBACK}:{port}" for port in ports))


def running_dsn(settings: Settings) -> str:
    """The configured PostgreSQL, or that of the local stack."""
    configured = settings.in_place_of_stack("postgres.dsn")
    if configured is not None:
        return configured
    cure = f"set postgres.dsn ({SETTINGS['postgres.dsn'].variable})"
    server = _running_stack(settings, "no PostgreSQL is configured", cure)["postgres"]
    return f"postgresql://{DATABASE}:{server['password']}@{LOOPBACK}:{server['port']}/{DATABASE}"


def _running_stack(settings: Settings, missing: str, cure: str) -> dict[str, Any]:
    """The file of the local stack, of which some process must answer."""
    try:
        found: dict[str, Any] = json.loads((stack_folder(settings) / STACK_FILE).read_text())
        ports = [found["postgres"]["port"], *(node["port"] for node in found["cluster"]["nodes"])]
    except (OSError, ValueError, KeyError, TypeError):
        ports = []
    if not any(map(is_open, ports)):
        raise StackError(
            f"{missing} and the local stack {settings.required('stack')!r} is not up; start it "
            f"with `tallygate up`, or {cure}."
        )
    return found
