"""The options that several commands share, and what they amount to."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tallygate.cli.output import Format
from tallygate.errors import ConfigError, StackError

if TYPE_CHECKING:
    from tallygate.kafka.connection import Connection
    from tallygate.settings import Settings
    from tallygate.stack import Stack

__all__ = [
    "Bootstrap",
    "ConfigFile",
    "Name",
    "Output",
    "Profile",
    "Set",
    "open_stack",
    "pairs",
    "resolve_connection",
    "resolve_settings",
]

Name = Annotated[
    str | None, typer.Option("--name", help="The local stack.", show_default="default")
]
Output = Annotated[Format, typer.Option("--output", "-o", help="How to print.")]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", help="The settings file.", show_default="tallygate.toml, if there"),
]
Profile = Annotated[str | None, typer.Option("--profile", help="A profile of the settings file.")]
Bootstrap = Annotated[
    str | None,
    typer.Option("--bootstrap-servers", "-b", help="Kafka brokers, as host:port,host:port."),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any setting; may be given again."),
]


def pairs(texts: Sequence[str] | None, flag: str) -> dict[str, str]:
    """`NAME=VALUE` arguments as a dictionary."""
    found = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"{flag} {text!r} must be written NAME=VALUE.")
        found[name] = value
    return found


def resolve_settings(
    config: Path | None = None,
    profile: str | None = None,
    sets: Sequence[str] | None = None,
    bootstrap: str | None = None,
    name: str | None = None,
) -> "Settings":
    from tallygate.settings import Settings

    flags = pairs(sets, "--set")
    if bootstrap and name:
        raise ConfigError("--bootstrap-servers and --name each say which cluster: give one.")
    if bootstrap:
        flags["kafka.bootstrap.servers"] = bootstrap
    if name:
        flags["stack"] = name
    return Settings.load(flags, file=config, profile=profile)


def resolve_connection(settings: "Settings") -> "Connection":
    """The configured cluster, or that of the local stack."""
    from tallygate.kafka.connection import Connection

    if settings.names_cluster:
        return Connection.of(settings)
    return running_stack(settings).cluster.connection


def open_stack(settings: "Settings") -> "Stack":
    from tallygate.stack import Stack

    return Stack.open(settings.required("stack"), settings)


def running_stack(settings: "Settings") -> "Stack":
    from tallygate.stack import Stack, StackState

    stack = Stack(settings.required("stack"), settings=settings)
    if stack.state in (StackState.ABSENT, StackState.DOWN):
        raise StackError(
            f"no cluster is configured and the local stack {stack.name!r} is not up; start it "
            "with `tallygate up`, or name a cluster with --bootstrap-servers."
        )
    return stack
