"""The lab's commands: local stacks, drills, the demo. Without the lab each is a name that `--help`
does not show, and that says what to install."""

from collections.abc import Callable

import typer

from tallygate.cli import cluster, drill, machine, stack
from tallygate.extras import has_extra, require_extra

COMMANDS: dict[str, Callable[..., None] | typer.Typer] = {
    "up": stack.up,
    "down": stack.down,
    "dsn": stack.dsn,
    "cluster": cluster.app,
    "drill": drill.app,
    "doctor": machine.doctor,
    "demo": machine.demo,
}
ANYTHING = {"ignore_unknown_options": True, "allow_extra_args": True}


def register(app: typer.Typer) -> None:
    installed = has_extra("lab")
    for name, command in COMMANDS.items():
        if not installed:
            app.command(name, hidden=True, add_help_option=False, context_settings=ANYTHING)(
                _refuse
            )
        elif isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)


def _refuse(context: typer.Context) -> None:
    require_extra("lab", f"`tallygate {context.info_name}`")
