"""One run at a time on a local checkpoint."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tallygate.engine.checkpoint_lock import CheckpointLock
from tallygate.errors import MachineError

HOLDER = """
import sys, time
from pathlib import Path
from tallygate.engine.checkpoint_lock import CheckpointLock
lock = CheckpointLock(Path(sys.argv[1]), "run 1 of 'p'")
lock.take()
print("taken", flush=True)
time.sleep(60)
"""


def lock(folder: Path) -> CheckpointLock:
    return CheckpointLock(folder / "checkpoint", "run 2 of 'p'")


def test_a_run_waits_until_the_older_one_has_let_go(tmp_path: Path) -> None:
    older, newer = lock(tmp_path), lock(tmp_path)
    older.take()
    let_go = threading.Timer(0.5, older.release)
    let_go.start()
    began = time.monotonic()
    newer.take()
    assert time.monotonic() - began >= 0.4
    newer.release()
    assert list(tmp_path.iterdir()) == [], "nothing is left beside the checkpoint"
    newer.release()


def test_a_run_inherits_it_from_one_of_the_same_process_that_waits_for_records(
    tmp_path: Path,
) -> None:
    older, newer, third = lock(tmp_path), lock(tmp_path), lock(tmp_path)
    older.take()
    newer.take(own=0.2)
    older.release()
    with pytest.raises(MachineError):
        third.take(wait=0.2, own=60)
    newer.release()
    third.take(wait=0)
    third.release()


def test_a_process_that_does_not_let_go_is_named_and_one_that_is_killed_holds_nothing(
    tmp_path: Path,
) -> None:
    arguments = [sys.executable, "-c", HOLDER, str(tmp_path / "checkpoint")]
    path = os.pathsep.join(filter(None, sys.path))
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    ) as older:
        assert older.stdout is not None
        assert older.stdout.readline() == b"taken\n"
        with pytest.raises(MachineError, match=rf"in use by pid {older.pid} on .*, run 1 of 'p',"):
            lock(tmp_path).take(wait=0.3)
        older.kill()
        older.wait()
        newer = lock(tmp_path)
        newer.take(wait=5)
        newer.release()


def test_of_many_runs_one_has_it_at_a_time(tmp_path: Path) -> None:
    """Also while the file is removed and made again."""
    holding: list[int] = []
    most: list[int] = []

    def hold(number: int) -> None:
        mine = lock(tmp_path)
        for _ in range(5):
            mine.take(own=60)
            holding.append(number)
            time.sleep(0.001)
            most.append(len(holding))
            holding.remove(number)
            mine.release()
            time.sleep(0.001)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(hold, range(8)))
    assert most == [1] * 40


def test_a_file_that_was_removed_meanwhile_is_no_lock(tmp_path: Path) -> None:
    """A run that waited has the old file open; another one has made a new file since."""
    older, newer = lock(tmp_path), lock(tmp_path)
    older.take()
    with newer.path.open("a+") as file:
        assert newer._is_there(file)
        older.release()
        assert not newer._is_there(file)
        newer.take()
        assert not newer._is_there(file)
    newer.release()


def test_a_folder_that_takes_no_lock_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    lock(tmp_path / "file").take(wait=0)
