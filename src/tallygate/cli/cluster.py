"""`tallygate cluster`: one node of a local stack at a time."""

import contextlib
import signal
import time
from typing import TYPE_CHECKING, Annotated

import typer

from tallygate.cli.options import Name, Set, open_stack, resolve_settings
from tallygate.cli.output import progress_display
from tallygate.errors import StackError

if TYPE_CHECKING:
    from tallygate.lab.kafka.node import Node
    from tallygate.lab.postgres_server import PostgresServer
    from tallygate.lab.stack import Stack

app = typer.Typer(
    help="Kill, stop, start, pause, resume or read one node of a local stack, or add one.",
    no_args_is_help=True,
)

NodeName = Annotated[str, typer.Argument(metavar="NODE", help="A node's number, or `postgres`.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the cluster has noticed.")]


@app.command()
def kill(node: NodeName, name: Name = None, wait: Wait = True, sets: Set = None) -> None:
    """Kill a node with SIGKILL: it has no chance to say goodbye."""
    stack, member = _running(node, name, sets)
    with stack.locked():
        member.process.kill()
    _after_loss(stack, member, wait, "killed")


@app.command()
def stop(node: NodeName, name: Name = None, wait: Wait = True, sets: Set = None) -> None:
    """Stop a node cleanly: a broker hands over its leaderships first."""
    stack, member = _running(node, name, sets)
    with stack.locked():
        member.stop()
    _after_loss(stack, member, wait, "stopped")


@app.command()
def start(node: NodeName, name: Name = None, sets: Set = None) -> None:
    """Start a node that is stopped or was killed, and wait until it is of use."""
    from tallygate.lab.process import ProcessState

    stack, member = _find(node, name, sets)
    if member.state is not ProcessState.STOPPED:
        raise StackError(f"{member.description} is {member.state.value} already.")
    with progress_display() as progress, stack.locked():
        if member.name == "postgres":
            member.start()
        else:
            stack.cluster.start_node(int(member.name), progress)
    print(f"{_capital(member.description)} is started.")


@app.command()
def pause(node: NodeName, name: Name = None, sets: Set = None) -> None:
    """Freeze a node with SIGSTOP: its connections stay open and nothing answers."""
    _, member = _running(node, name, sets)
    member.process.send(signal.SIGSTOP, tree=True)
    print(f"{_capital(member.description)} is paused.")


@app.command()
def resume(node: NodeName, name: Name = None, sets: Set = None) -> None:
    """Let a paused node go on."""
    from tallygate.lab.process import ProcessState

    _, member = _find(node, name, sets)
    if member.state is not ProcessState.PAUSED:
        raise StackError(f"{member.description} is not paused: it is {member.state.value}.")
    member.process.send(signal.SIGCONT, tree=True)
    print(f"{_capital(member.description)} goes on.")


@app.command()
def logs(
    node: NodeName,
    name: Name = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="How many.")] = 50,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is written next.")
    ] = False,
    sets: Set = None,
) -> None:
    """Show the end of a node's log."""
    from tallygate.paths import tail

    _, member = _find(node, name, sets)
    for line in tail(member.process.log, lines):
        print(line)
    if follow:
        with contextlib.suppress(KeyboardInterrupt), member.process.log.open() as log:
            log.seek(0, 2)
            while True:
                print(log.read(), end="", flush=True)
                time.sleep(0.2)


@app.command()
def add(
    rack: Annotated[str | None, typer.Option(help="The new broker's rack.")] = None,
    name: Name = None,
    sets: Set = None,
) -> None:
    """Add a broker; `tallygate topic reassign` then moves replicas onto it."""
    stack = open_stack(resolve_settings(sets=sets, name=name))
    with progress_display() as progress:
        number = stack.add_broker(rack, progress)
    print(f"Broker {number} is part of stack {stack.name!r}.")


def _find(
    node: str, name: str | None, sets: list[str] | None
) -> "tuple[Stack, Node | PostgresServer]":
    stack = open_stack(resolve_settings(sets=sets, name=name))
    return stack, stack.member(node)


def _running(
    node: str, name: str | None, sets: list[str] | None
) -> "tuple[Stack, Node | PostgresServer]":
    from tallygate.lab.process import ProcessState

    stack, member = _find(node, name, sets)
    if member.state is ProcessState.STOPPED:
        raise StackError(f"{member.description} is not running; `tallygate cluster start {node}`.")
    return stack, member


def _after_loss(stack: "Stack", member: "Node | PostgresServer", wait: bool, what: str) -> None:
    """Say what was done; for a broker, once the rest of the cluster has noticed."""
    message = f"{_capital(member.description)} is {what}."
    others = stack.cluster.registered() - ({int(member.name)} if member.name.isdigit() else set())
    if wait and others and member.name != "postgres" and _is_broker(stack, member):
        with progress_display() as progress:
            progress("Kafka: waiting until the others have noticed")
            if not stack.cluster.wait_unregistered(int(member.name)):
                message += " The rest of the cluster has not noticed within 30 s; is a quorum left?"
    print(message)


def _is_broker(stack: "Stack", member: "Node | PostgresServer") -> bool:
    return stack.cluster.spec.is_broker(int(member.name))


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
