"""`tallygate up`, `down`, `status`, `dsn`: the local stack as a whole."""

import signal
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tallygate.cli.options import (
    Name,
    Output,
    Set,
    open_stack,
    pairs,
    resolve_settings,
    with_settings,
)
from tallygate.cli.output import Format, progress_display, show, show_table
from tallygate.extras import has_extra
from tallygate.printable import printable

if TYPE_CHECKING:
    from tallygate.settings import Settings


def up(
    name: Name = None,
    brokers: Annotated[int | None, typer.Option(help="How many brokers.", show_default="3")] = None,
    controllers: Annotated[
        int | None,
        typer.Option(help="Dedicated controllers; with 0 the brokers are controllers too."),
    ] = None,
    racks: Annotated[
        str | None, typer.Option(help="Racks for the brokers in turn, as a,b,c.")
    ] = None,
    kafka_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port of the first broker; the others follow it."),
    ] = None,
    postgres_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of PostgreSQL.")
    ] = None,
    broker_config: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A broker setting; may be given again."),
    ] = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay, and stop the stack on Ctrl-C.")
    ] = False,
    sets: Set = None,
) -> None:
    """Start a local Kafka cluster and PostgreSQL, or start again one that is down."""
    from tallygate.lab.stack import Stack

    settings = resolve_settings(sets=sets, name=name)
    stack = Stack(
        settings.required("stack"),
        brokers=brokers,
        controllers=controllers,
        racks=racks.split(",") if racks else (),
        kafka_port=kafka_port,
        postgres_port=postgres_port,
        config=pairs(broker_config, "--broker-config"),
        settings=settings,
    )
    started = time.monotonic()
    signal.signal(signal.SIGTERM, _as_interrupt)
    with progress_display() as progress:
        stack.up(background=not foreground, progress=progress)
    took = time.monotonic() - started
    print(f"Stack {stack.name!r} is up after {took:.1f} s.")
    print(f"  Kafka       {stack.bootstrap_servers}")
    print(f"  PostgreSQL  127.0.0.1:{stack.spec.postgres.port} (`tallygate dsn` prints how)")
    if foreground:
        print("Ctrl-C stops it.", flush=True)
        try:
            signal.pause()
        finally:
            with progress_display() as progress:
                stack.down(progress=progress)


def down(
    name: Name = None,
    purge: Annotated[bool, typer.Option("--purge", help="Remove the data too.")] = False,
    sets: Set = None,
) -> None:
    """Stop a local stack; its data stays unless --purge."""
    from tallygate.errors import StackError
    from tallygate.lab.stack import Stack, StackState

    settings = resolve_settings(sets=sets, name=name)
    stack = Stack(settings.required("stack"), settings=settings)
    absent = stack.state is StackState.ABSENT
    if absent or (not purge and stack.state is StackState.DOWN):
        there = "does not exist" if absent else "is down already"
        raise StackError(f"stack {stack.name!r} {there}; `tallygate status` shows what there is.")
    with progress_display() as progress:
        stack.down(purge=purge, progress=progress)
    print(f"Stack {stack.name!r} is down{' and removed' if purge else '; its data is kept'}.")


@with_settings
def status(output: Output = Format.table, *, settings: "Settings") -> None:
    """Show the local stacks (with --name only that one) and the pipelines of the store."""
    found = _stacks(settings) if has_extra("lab") else []
    flows = _pipelines(settings)
    value = {"stacks": found, "pipelines": flows}
    show(value, output, lambda: _show_status(found, flows))


def _stacks(settings: "Settings") -> list[dict[str, Any]]:
    from tallygate.lab.stack import Stack

    names = Stack.names(settings)
    if settings.asks_for_stack:
        names = [open_stack(settings).name]
    return [_describe(Stack(each, settings=settings)) for each in names]


def _pipelines(settings: "Settings") -> list[dict[str, Any]]:
    import tallygate
    from tallygate.engine.status import local_pipelines
    from tallygate.errors import UnreachableError

    try:
        known = tallygate.status(settings=settings)
    except UnreachableError as error:
        said = printable(str(error), lines=True)
        print(f"Pipelines of the store cannot be shown: {said}", file=sys.stderr)
        known = local_pipelines(settings)
    return [
        {
            "pipeline": each.name,
            "state": each.state,
            "target": each.target,
            "delivery": each.delivery,
            "strategy": each.progress.get("strategy"),
            "lag": each.lag,
            "letters": each.letters,
            "lost": each.lost,
            "late": each.late,
            "run": each.run,
            "host": each.host,
            "pid": each.pid,
            "heartbeat_at": each.heartbeat_at.isoformat(timespec="seconds"),
            "outcome": each.outcome,
            "positions": dict(each.positions),
            "progress": dict(each.progress),
        }
        for each in known
    ]


def _show_status(stacks: list[dict[str, Any]], flows: list[dict[str, Any]]) -> None:
    if not stacks and has_extra("lab"):
        print("There is no local stack; `tallygate up` starts one.")
    _show_stacks(stacks)
    if flows:
        print("Pipelines")
        columns = {
            "pipeline": "pipeline",
            "state": "state",
            "target": "target",
            "delivery": "delivery",
            "strategy": "strategy",
            "lag": "lag",
            "letters": "dead letters",
            "lost": "lost",
            "late": "late",
            "run": "run",
            "host": "host",
            "pid": "pid",
            "heartbeat_at": "heartbeat",
        }
        show_table(flows, columns)


def dsn(name: Name = None, sets: Set = None) -> None:
    """Print the DSN of the stack's PostgreSQL, password included: psql "$(tallygate dsn)"."""
    print(open_stack(resolve_settings(sets=sets, name=name)).dsn)


def _as_interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _describe(stack: Any) -> dict[str, Any]:
    if stack.is_broken:
        where = str(stack.folder)
        return {"stack": stack.name, "state": "unreadable", "folder": where, "nodes": []}
    controller = stack.cluster.controller
    nodes = [
        {
            "node": node.name,
            "roles": list(node.spec.roles),
            "state": node.state.value,
            "pid": node.process.pid,
            "port": node.spec.port,
            "rack": node.spec.rack,
            "active_controller": node.spec.id == controller,
        }
        for node in stack.cluster.nodes
    ]
    postgres = stack.postgres
    nodes.append(
        {
            "node": postgres.name,
            "roles": ["database"],
            "state": postgres.state.value,
            "pid": postgres.process.pid,
            "port": postgres.spec.port,
            "rack": None,
            "active_controller": False,
        }
    )
    return {
        "stack": stack.name,
        "state": stack.state.value,
        "bootstrap_servers": stack.bootstrap_servers,
        "folder": str(stack.folder),
        "nodes": nodes,
    }


def _show_stacks(stacks: list[dict[str, Any]]) -> None:
    for found in stacks:
        _show_stack(found)


def _show_stack(found: dict[str, Any]) -> None:
    print(f"Stack {found['stack']!r} is {found['state']}, in {found['folder']}")
    rows = [
        {
            **node,
            "controller": "active" if node["active_controller"] else "",
            "pid": str(node["pid"] or "-"),
            "port": str(node["port"]),
        }
        for node in found["nodes"]
    ]
    columns = {
        "node": "node",
        "state": "state",
        "roles": "roles",
        "controller": "controller",
        "rack": "rack",
        "port": "port",
        "pid": "pid",
    }
    show_table(rows, columns)
