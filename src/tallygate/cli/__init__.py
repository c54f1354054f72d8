"""The command line: parses, calls, prints. What it calls is imported when it is called.

An error of ours is one line on stderr and its own exit code; `--debug`, anywhere on the line,
shows the traceback as well.
"""

import os
import sys
import traceback
from typing import Annotated

import typer

from tallygate import __version__
from tallygate.cli import (
    audit,
    dead_letters,
    lab,
    lake,
    machine,
    pipeline,
    stack,
    topic,
)
from tallygate.cli.consume import consume
from tallygate.cli.produce import produce
from tallygate.errors import TallygateError
from tallygate.extras import naming_extras
from tallygate.printable import printable

__all__ = ["app", "main"]

app = typer.Typer(
    name="tallygate",
    help="Move events from Kafka through Spark into a store exactly once, and prove it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
lab.register(app)
app.command()(stack.status)
pipeline.register(app)
audit.register(app)
lake.register(app)
app.add_typer(topic.app, name="topic")
app.command()(produce)
app.command()(consume)
app.add_typer(dead_letters.app, name="dead-letters")
machine.register(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tallygate {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks; may stand anywhere on the line.")
    ] = False,
) -> None:
    pass


def main() -> None:
    arguments = sys.argv[1:]
    debug = "--debug" in arguments or bool(os.environ.get("TALLYGATE_DEBUG"))
    try:
        with naming_extras("this command"):
            app([argument for argument in arguments if argument != "--debug"])
    except TallygateError as error:
        if debug:
            traceback.print_exc()
        print(f"tallygate: {printable(str(error), lines=True)}", file=sys.stderr)
        sys.exit(error.exit_code)
    except Exception as error:
        if debug:
            traceback.print_exc()
        print(
            f"tallygate: an error that should not happen: {type(error).__name__}: "
            f"{printable(str(error), lines=True)} (--debug shows where; please report it)",
            file=sys.stderr,
        )
        sys.exit(1)
