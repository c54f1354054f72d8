"""The stack's life against real servers. The shared stack runs beside the ones started here."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from tallygate import Stack, Topics
from tallygate.errors import ConfigError, MachineError, NodeError, StackError
from tallygate.kafka import clients
from tallygate.lab.process import ProcessState, is_alive
from tallygate.lab.stack import StackState
from tallygate.ports import is_free
from tallygate.settings import Settings
from tallygate.waiting import wait_until


@pytest.fixture
def own_stack(settings: Settings) -> Iterator[Stack]:
    """The description of a small stack that a test may start, break and stop."""
    stack = Stack("own", brokers=1, settings=settings)
    yield stack
    stack.down(purge=True)


def _processes(stack: Stack) -> list[psutil.Process]:
    found = [member.process.find() for member in stack.members]
    return [process for process in found if process is not None]


def _state(stack: Stack) -> StackState:
    """The state now. (Asserting on the property would narrow its type for good.)"""
    return stack.state


def _all_gone(processes: list[psutil.Process]) -> bool:
    return not any(map(is_alive, processes))


def test_the_shared_stack_is_ready_for_everything(stack: Stack) -> None:
    assert stack.state is StackState.UP
    assert stack.cluster.registered() == {1, 2, 3}
    assert stack.cluster.controller in (1, 2, 3)
    producer = clients.producer(stack.cluster.connection, transactional_id="ready")
    producer.init_transactions(10)
    with psycopg.connect(stack.dsn) as connection:
        assert connection.execute("SELECT current_database()").fetchone() == ("tallygate",)


def test_the_password_is_needed_and_its_file_is_private(stack: Stack) -> None:
    wrong = stack.dsn.replace(stack.spec.postgres.password, "wrong")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(wrong)
    assert (stack.folder / "stack.json").stat().st_mode & 0o077 == 0


def test_state_survives_down_and_up_even_on_other_ports(own_stack: Stack) -> None:
    own_stack.up()
    topics = Topics(own_stack.cluster.connection, own_stack.settings)
    topics.create("kept", partitions=2)
    producer = clients.producer(own_stack.cluster.connection)
    producer.produce("kept", b"value", partition=1)
    producer.flush()
    with psycopg.connect(own_stack.dsn) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    processes = _processes(own_stack)
    assert len(processes) == 2
    ports = own_stack.spec.ports
    own_stack.down()
    assert _all_gone(processes)
    assert own_stack.state is StackState.DOWN

    with subprocess.Popen(
        [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(min(ports))],
        stderr=subprocess.DEVNULL,
    ) as squatter:
        wait_until(lambda: not is_free(min(ports)), 10, "no squatter")
        own_stack.up()
        squatter.kill()
    assert own_stack.spec.ports.isdisjoint(ports)
    topic = Topics(own_stack.cluster.connection, own_stack.settings).describe("kept", sizes=False)
    assert topic.records == 1
    with psycopg.connect(own_stack.dsn) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


def test_a_stack_that_is_up_is_not_started_twice(stack: Stack, settings: Settings) -> None:
    with pytest.raises(StackError, match="'shared' is up already"):
        Stack("shared", settings=settings).up()


def test_a_stack_keeps_its_shape(stack: Stack, settings: Settings) -> None:
    other = Stack("shared", brokers=5, settings=settings)
    with pytest.raises(StackError, match="exists with 3 brokers and 0 dedicated"):
        other._check_shape(stack.spec)


def test_a_crash_of_everything_leaves_nothing_to_repair(own_stack: Stack) -> None:
    """Stale records, a stale postmaster.pid, unclean logs: `up` copes with all of it."""
    own_stack.up(background=True)
    family = _processes(own_stack)
    family += [child for each in family for child in each.children(recursive=True)]
    for process in family:
        process.kill()
    wait_until(lambda: _all_gone(family), 10, "not dead")
    wait_until(lambda: own_stack.state is StackState.DOWN, 10, "not dead")
    own_stack.up()
    assert own_stack.state is StackState.UP
    with psycopg.connect(own_stack.dsn) as connection:
        connection.execute("SELECT 1")


def test_up_starts_what_is_missing(own_stack: Stack) -> None:
    own_stack.up()
    own_stack.postgres.process.kill()
    assert _state(own_stack) is StackState.PARTIAL
    broker = own_stack.cluster.nodes[0].process.pid
    own_stack.up()
    assert own_stack.state is StackState.UP
    assert own_stack.cluster.nodes[0].process.pid == broker


OWNER = """
import sys, time
from tallygate import Stack
stack = Stack("owned", brokers=1, purge=True)
stack.up()
print("up", flush=True)
{then}
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_its_owner(stack: Stack, settings: Settings, number: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER.format(then="time.sleep(120)")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "up\n"
        owned = Stack.open("owned", settings)
        processes = _processes(owned)
        assert len(processes) == 2
        owner.send_signal(number)
        owner.wait(30)
    wait_until(lambda: _all_gone(processes), 20, "processes are left behind")
    wait_until(lambda: not owned.folder.exists(), 20, "files are left behind")


def test_a_guard_spares_a_stack_that_was_taken_over(own_stack: Stack, settings: Settings) -> None:
    """An owner's stack is stopped and started anew by somebody else; then the owner dies."""
    program = OWNER.format(then="time.sleep(120)").replace('"owned"', '"own"')
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "up\n"
        own_stack.down()
        own_stack.up(background=True)
        processes = _processes(own_stack)
        owner.kill()
        owner.wait(10)
    time.sleep(1)  # the guard has no way to say that it did nothing
    assert own_stack.state is StackState.UP
    assert _processes(own_stack) == processes


def test_stopping_needs_no_java(own_stack: Stack, settings: Settings) -> None:
    own_stack.up(background=True)
    lame = Settings.load({"java.home": "/nowhere", "cache.dir": "/nowhere"})
    assert Stack.open("own", lame).state is StackState.UP
    Stack.open("own", lame).down()
    assert own_stack.state is StackState.DOWN


def test_a_failed_start_leaves_no_process(stack: Stack, settings: Settings) -> None:
    broken = Stack("broken", brokers=1, config={"num.io.threads": "-1"}, settings=settings)
    with pytest.raises(NodeError, match=r"num\.io\.threads"):
        broken.up()
    assert broken.state is StackState.ABSENT
    assert not broken.folder.exists(), "the corrected command can be given at once"


def test_a_fixed_port_in_use_is_refused_before_anything_is_made(
    stack: Stack, settings: Settings
) -> None:
    taken = stack.spec.postgres.port
    other = Stack("fixed", brokers=1, postgres_port=taken, settings=settings)
    with pytest.raises(MachineError, match=f"port {taken} for PostgreSQL is in use"):
        other.up()
    assert not other.folder.exists()
    twice = Stack("twice", brokers=2, kafka_port=15_000, postgres_port=15_001, settings=settings)
    with pytest.raises(ConfigError, match="port 15001 cannot serve both"):
        twice.up()


def test_a_paused_node_is_seen_and_goes_on(own_stack: Stack) -> None:
    own_stack.up()
    node = own_stack.cluster.nodes[0]
    node.process.send(signal.SIGSTOP, tree=True)
    wait_until(lambda: node.state is ProcessState.PAUSED, 5, "not paused")
    assert own_stack.cluster.registered() == set()
    node.process.send(signal.SIGCONT, tree=True)
    wait_until(lambda: own_stack.cluster.registered() == {1}, 20, "did not go on")


@pytest.mark.parametrize("name", ["", "a/b", "..", "-x", "x" * 80])
def test_names_that_are_no_names_are_refused(name: str, settings: Settings) -> None:
    with pytest.raises(ConfigError, match="cannot name a stack"):
        Stack(name, settings=settings)


def test_a_file_that_is_no_stack_is_an_error_with_the_cure(settings: Settings) -> None:
    stack = Stack("garbled", settings=settings)
    stack.folder.mkdir(parents=True)
    (stack.folder / "stack.json").write_text('{"name": ')
    with pytest.raises(StackError, match=r"cannot be read as a stack.*down --purge --name garbled"):
        stack.spec  # noqa: B018
    stack.down(purge=True)
    assert stack.state is StackState.ABSENT


def test_no_disk_is_refused_before_anything_is_made(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tallygate.lab.stack.DISK_NEEDED", 1 << 60)
    stack = Stack("diskless", settings=settings)
    with pytest.raises(MachineError, match="MiB of free disk"):
        stack.up()
    assert not stack.folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's PostgreSQL runs as another user")
def test_a_folder_out_of_postgres_reach_is_refused(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir(mode=0o700)
    settings = Settings.load({"state.dir": str(tmp_path / "private")})
    with pytest.raises(MachineError, match="cannot run as root.*cannot enter"):
        Stack("private", brokers=1, settings=settings).up()
