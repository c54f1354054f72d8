"""The options that several commands share, and what they amount to."""

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tallygate.cli.output import Format
from tallygate.errors import ConfigError

if TYPE_CHECKING:
    from tallygate.kafka.connection import Connection
    from tallygate.lab.stack import Stack
    from tallygate.settings import Settings

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
    sets: Set = None,
    name: Name = None,
    bootstrap_servers: Bootstrap = None,
    config: ConfigFile = None,
    profile: Profile = None,
) -> "Settings":
    """What the shared options amount to."""
    from tallygate.settings import Settings

    flags = pairs(sets, "--set")
    if bootstrap_servers and name:
        raise ConfigError("--bootstrap-servers and --name each say which cluster: give one.")
    if bootstrap_servers:
        flags["kafka.bootstrap.servers"] = bootstrap_servers
    if name:
        flags["stack"] = name
    return Settings.load(flags, file=config, profile=profile)


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `resolve_settings`, and call it with the settings they make.

    The command declares a parameter `settings`; the command line sees the options in its place.
    """
    shared = list(inspect.signature(resolve_settings).parameters.values())

    @functools.wraps(command)
    def run(**given: Any) -> None:
        options = {option.name: given.pop(option.name) for option in shared}
        command(settings=resolve_settings(**options), **given)

    own = inspect.signature(command).parameters.values()
    parameters = [*(p for p in own if p.name != "settings"), *shared]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def resolve_connection(settings: "Settings") -> "Connection":
    """The configured cluster, or that of the local stack."""
    from tallygate.endpoints import running_connection

    return running_connection(settings)


def open_stack(settings: "Settings") -> "Stack":
    from tallygate.lab.stack import Stack

    return Stack.open(settings.required("stack"), settings)
