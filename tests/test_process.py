import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tallygate.lab.process import RECORD, Process, ProcessState, died
from tallygate.paths import tail
from tallygate.waiting import wait_until

FAMILY = (
    "import subprocess, sys, time\n"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    "print('ready', flush=True); time.sleep(60)"
)


def test_a_process_is_found_again_by_its_folder_alone(tmp_path: Path) -> None:
    process = Process(tmp_path)
    assert process.state is ProcessState.STOPPED
    process.start(["sleep", "60"])
    again = Process(tmp_path)
    assert again.pid == process.pid
    assert again.state is ProcessState.RUNNING
    again.stop()
    assert process.state is ProcessState.STOPPED
    assert not (tmp_path / RECORD).exists()


def test_pause_and_resume(tmp_path: Path) -> None:
    process = Process(tmp_path)
    process.start(["sleep", "60"])
    process.send(signal.SIGSTOP)
    wait_until(lambda: process.state is ProcessState.PAUSED, 5, "never paused")
    process.send(signal.SIGCONT)
    wait_until(lambda: process.state is ProcessState.RUNNING, 5, "never resumed")
    process.send(signal.SIGSTOP)
    process.stop()  # a paused process can be stopped too
    assert process.state is ProcessState.STOPPED


def test_kill_ends_the_whole_family(tmp_path: Path) -> None:
    process = Process(tmp_path)
    process.start([sys.executable, "-c", FAMILY])
    wait_until(lambda: tail(process.log, 1) == ["ready"], 10, "never ready")
    found = process.find()
    assert found is not None
    family = [found, *found.children(recursive=True)]
    assert len(family) == 2
    process.kill()
    wait_until(
        lambda: not any(m.is_running() and m.status() != "zombie" for m in family), 5, "alive"
    )


def test_one_that_dies_while_it_is_looked_at_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a zombie it would keep its pid, and PostgreSQL take its own lock file for another's."""
    process = Process(tmp_path)
    process.start(["sleep", "60"])
    pid = process.pid
    assert pid is not None
    asked = psutil.Process.status

    def dies_after_the_answer(self: psutil.Process) -> str:
        said: str = asked(self)
        if said != psutil.STATUS_ZOMBIE:
            os.kill(self.pid, signal.SIGKILL)
            wait_until(lambda: asked(self) == psutil.STATUS_ZOMBIE, 5, "it lives")
        return said

    monkeypatch.setattr(psutil.Process, "status", dies_after_the_answer)
    process.wait_gone(5)
    assert not psutil.pid_exists(pid)


def test_somebody_elses_pid_is_not_taken_for_ours(tmp_path: Path) -> None:
    """After a crash and a reboot the recorded pid may belong to any process, even to us."""
    (tmp_path / RECORD).write_text(json.dumps({"pid": os.getpid(), "identity": "another boot:1"}))
    process = Process(tmp_path)
    assert process.state is ProcessState.STOPPED
    process.kill()  # must not kill this test


def test_a_broken_record_counts_as_none(tmp_path: Path) -> None:
    for text in ("{", "null", "{}", '{"pid": 1}'):
        (tmp_path / RECORD).write_text(text)
        assert Process(tmp_path).state is ProcessState.STOPPED


def test_a_stubborn_process_is_killed_in_the_end(tmp_path: Path) -> None:
    process = Process(tmp_path)
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN)\nprint(1, flush=True)\n"
    deaf += "time.sleep(60)"
    process.start([sys.executable, "-c", deaf])
    wait_until(lambda: tail(process.log, 1) == ["1"], 10, "never ready")
    process.stop(timeout=0.3)
    assert process.state is ProcessState.STOPPED


def test_the_log_of_the_run_before_is_kept(tmp_path: Path) -> None:
    process = Process(tmp_path)
    for word in ("first", "second"):
        process.start(["echo", word])
        process.wait_gone(5)
    assert tail(process.log, 5) == ["second"]
    assert tail(tmp_path / "output.previous.log", 5) == ["first"]


def test_tail_reads_the_end_only(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"line {n}\n" for n in range(100_000)))
    assert tail(path, 2) == ["line 99998", "line 99999"]
    assert tail(tmp_path / "none", 2) == []


def test_the_error_for_a_dead_process_shows_its_last_lines() -> None:
    assert str(died("Kafka node 1 died", ["why"])).endswith("its last lines were:\n    why")
    assert "it logged nothing" in str(died("Kafka node 1 died", []))


def _owner(folder: Path, ending: str) -> subprocess.CompletedProcess[bytes]:
    """A program that starts a process under a guard and then ends in some way."""
    program = (
        "import os, sys; from pathlib import Path\n"
        "from tallygate.lab.orphan_guard import Guard; from tallygate.lab.process import Process\n"
        f"guard = Guard(Path({str(folder)!r}))\n"
        f"Process(Path({str(folder / 'kafka' / '1')!r})).start(['sleep', '60'])\n{ending}"
    )
    return subprocess.run([sys.executable, "-c", program], check=False, timeout=30)


def test_the_guard_ends_what_a_killed_owner_left(tmp_path: Path) -> None:
    _owner(tmp_path, "os.kill(os.getpid(), 9)")
    node = Process(tmp_path / "kafka" / "1")
    wait_until(lambda: node.state is ProcessState.STOPPED, 10, "left behind")


def test_a_released_guard_leaves_the_process_alone(tmp_path: Path) -> None:
    """The twin of the test above: without the guard the process does live on."""
    _owner(tmp_path, "guard.release(); os.kill(os.getpid(), 9)")
    node = Process(tmp_path / "kafka" / "1")
    assert node.state is ProcessState.RUNNING
    node.kill()
