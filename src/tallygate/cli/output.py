"""Printing: one set of rows as a table for people, or as JSON or YAML for programs.

Results go to stdout, progress to stderr, so that a pipe gets the result alone.
"""

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from tallygate.printable import printable

SECONDS_BETWEEN_LINES = 2.0


class Format(StrEnum):
    table = "table"
    json = "json"
    yaml = "yaml"


def stop_well() -> None:
    """Let a program that is asked to end do so as by Ctrl-C, and leave nothing running."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)


def show(value: Any, output: Format, table: Callable[[], None]) -> None:
    """Print `value` as JSON or YAML, or let `table` print it for people."""
    if output is Format.json:
        print(json.dumps(value, indent=2))
    elif output is Format.yaml:
        import yaml

        print(yaml.safe_dump(value, sort_keys=False), end="")
    else:
        table()


def show_table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> None:
    """Print rows; `columns` maps keys to headings. Numbers are set right, lists with commas."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 240)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for key, heading in columns.items():
        numeric = all(isinstance(row[key], int | float | None) for row in rows)
        table.add_column(heading, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row[key]) for key in columns))
    console.print(table)


def _cell(value: Any) -> str:
    from rich.markup import escape

    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return escape(printable(", ".join(str(item) for item in value)))
    return escape(printable(str(value)))


@contextmanager
def progress_display() -> Iterator[Callable[[str], None]]:
    """A line that changes on a terminal; elsewhere a new line, at most every two seconds."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.markup import escape

        with Console(stderr=True).status("") as status:
            yield lambda message: status.update(escape(printable(message)))
        return
    printed, when = "", float("-inf")

    def line(message: str) -> None:
        nonlocal printed, when
        now = time.monotonic()
        if message != printed and now - when >= SECONDS_BETWEEN_LINES:
            print(printable(message), file=sys.stderr, flush=True)
            printed, when = message, now

    yield line
