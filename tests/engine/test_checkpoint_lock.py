"""One run at a time on a local checkpoint."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from fixtures.flows import SCHEMA, Flow
from tallygate.engine.checkpoint_lock import CheckpointLock
from tallygate.errors import MachineError
from tallygate.waiting import wait_until

HOLDER = """
import sys, time
from pathlib import Path
from tallygate.engine import checkpoint_lock
from tallygate.engine.checkpoint_lock import CheckpointLock
checkpoint_lock.SIGN_EVERY = 0.1
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
    with _holding(tmp_path) as older:
        with pytest.raises(MachineError, match=rf"in use by pid {older.pid} on .*, run 1 of 'p',"):
            CheckpointLock(tmp_path / "checkpoint", "run 2", fences=False).take(wait=0.3)
        older.kill()
        older.wait()
        newer = lock(tmp_path)
        newer.take(wait=5)
        newer.release()


def test_a_process_that_is_alive_is_waited_for_and_one_that_hangs_is_not(tmp_path: Path) -> None:
    """It cannot always cut short what it is doing."""
    with _holding(tmp_path) as older:
        newer, notes = lock(tmp_path), list[str]()
        taken = threading.Thread(target=lambda: newer.take(0.5, note=notes.append))
        taken.start()
        taken.join(2)
        assert taken.is_alive(), "the older one has shown that it is alive"
        older.kill()
        taken.join(10)
        assert not taken.is_alive()
        newer.release()
    assert notes
    assert set(notes) == {
        f"waiting for pid {older.pid} on {socket.gethostname()}, run 1 of 'p', which is fenced, to "
        "end and let go of its checkpoint"
    }
    with _holding(tmp_path) as older:
        os.kill(older.pid, signal.SIGSTOP)
        with pytest.raises(MachineError, match="shown no sign of life for 0.5 s. It is fenced"):
            lock(tmp_path).take(0.5)
        older.kill()


def test_a_run_that_nothing_fences_is_not_waited_for(tmp_path: Path) -> None:
    with _holding(tmp_path) as older:
        unfenced = CheckpointLock(tmp_path / "checkpoint", "run 2 of 'p'", fences=False)
        with pytest.raises(
            MachineError, match="no ledger to fence it by, so it goes on: stop that"
        ):
            unfenced.take(0.5)
        older.kill()


@contextmanager
def _holding(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that has the lock."""
    arguments = [sys.executable, "-c", HOLDER, str(folder / "checkpoint")]
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, env=environment) as older:
        assert older.stdout is not None
        assert older.stdout.readline() == b"taken\n"
        try:
            yield older
        finally:
            older.kill()


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


def test_a_newer_process_goes_on_with_the_checkpoint_of_one_that_waits_for_records(
    flow: Flow,
) -> None:
    """The older one is fenced, lets go, and says why."""
    program = textwrap.dedent(
        f"""
        import tallygate
        settings = tallygate.Settings.load({{"stack": "small"}})
        frame = (
            tallygate.session("older", settings=settings)
            .readStream.format("kafka")
            .option("kafka.bootstrap.servers", "{flow.stack.bootstrap_servers}")
            .option("subscribe", "{flow.name}").option("startingOffsets", "earliest").load()
            .selectExpr("from_json(CAST(value AS STRING), '{SCHEMA}') AS e").select("e.*")
        )
        query = tallygate.write_stream(
            frame, name="{flow.name}", sink=tallygate.Postgres("{flow.name}"),
            checkpoint="{flow.checkpoint}", settings=settings,
        )
        query.awaitTermination()
        """
    )
    flow.send(50)
    path = os.pathsep.join(filter(None, sys.path))
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as older:
        try:
            wait_until(lambda: _is_written(flow, 50), 90, "the older process wrote nothing")
            flow.send(50)
            wait_until(lambda: _is_written(flow, 100), 30, "the older process wrote no more")
            flow.run(transform="SELECT id, account FROM source")
            _, said = older.communicate(timeout=60)
        finally:
            older.kill()
    assert older.returncode == 1
    assert "FencedError: run 1 of pipeline" in said
    flow.send(50)
    flow.run(transform="SELECT id, account FROM source")
    flow.check()


def _is_written(flow: Flow, rows: int) -> bool:
    there = flow.rows(f"SELECT to_regclass('public.\"{flow.name}\"') IS NOT NULL")[0]
    return bool(there) and len(flow.rows()) == rows
