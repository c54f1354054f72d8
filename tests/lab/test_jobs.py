"""Programs under drill are started again when they die, and not for ever."""

import os
import signal
import sys
from pathlib import Path

import psutil

from tallygate.lab.drills.jobs import Job
from tallygate.waiting import wait_until


def test_a_program_that_is_killed_is_started_again(tmp_path: Path) -> None:
    told: list[str] = []
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    job = Job("it", sleeper, tmp_path / "log", told.append, os.environ)
    job.start()
    job.kill()
    wait_until(lambda: job.starts == 2 and job.is_running, 10, "not started again")
    job.end()
    assert not job.is_running
    assert told == ["it is started", "it is gone (SIGKILL)", "it is started again"]


PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
"""


def _child(log: Path) -> psutil.Process:
    wait_until(lambda: log.exists() and log.read_text().endswith("\n"), 10, "there is no child")
    return psutil.Process(int(log.read_text()))


def test_nothing_is_left_of_what_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    job = Job("it", [sys.executable, "-c", f"{PARENT}child.wait()"], log, print, os.environ)
    job.start()
    child = _child(log)
    job.kill()
    assert not _lives(child)
    job.end()


def test_what_outlives_the_program_that_started_it_is_ended_too(tmp_path: Path) -> None:
    log = tmp_path / "log"
    job = Job("it", [sys.executable, "-c", PARENT], log, print, os.environ)
    job.start()
    child = _child(log)
    wait_until(lambda: job.is_left_alone, 10, "it does not end")
    assert _lives(child)
    job.end()
    assert not _lives(child)


def _lives(process: psutil.Process) -> bool:
    """Whoever adopted it may not have looked after it yet."""
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)


def test_each_environment_is_for_one_start(tmp_path: Path) -> None:
    says = "print(os.environ.get('STEP'), flush=True)"
    program = [sys.executable, "-c", f"import os; {says}; os.abort()"]
    log = tmp_path / "log"
    job = Job("it", program, log, lambda _: None, os.environ)
    job.start({"STEP": "one"}, {"STEP": "two"})
    wait_until(lambda: job.starts > 3, 20, "not started again")
    job.end()
    assert set(job.deaths) == {-signal.SIGABRT}
    assert log.read_text().split()[:3] == ["one", "two", "None"]


def test_a_program_that_only_fails_is_left_alone(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "raise SystemExit('no good')"]
    job = Job("it", program, tmp_path / "log", lambda _: None, os.environ, patience=2)
    job.start()
    wait_until(lambda: job.is_left_alone, 20, "it goes on and on")
    assert job.starts == 2
    assert job.last_words.split("\n")[-2] == "no good"
    job.end()


def test_a_program_that_ends_well_is_not_started_again(tmp_path: Path) -> None:
    job = Job("it", [sys.executable, "-c", ""], tmp_path / "log", lambda _: None, os.environ)
    job.start()
    wait_until(lambda: job.is_left_alone, 20, "it goes on")
    assert (job.starts, job.last_words) == (1, "")
    job.end()
