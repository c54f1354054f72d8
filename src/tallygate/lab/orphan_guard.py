"""The guard: a small process that ends a stack's processes when their owner is gone.

An owner that is killed with SIGKILL cannot clean up, so another process has to. The guard reads a
pipe whose other end only the owner holds. The end of that pipe without a word means that the owner
died. The word `release` means that the owner has ended things itself, or that the stack is to live
on in the background.

By then the stack may belong to another program, which stopped it and started it again. So an owner
writes a token into the stack's folder, and the guard acts only while its own token stands there,
under the lock that every program takes to start or stop a stack.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tallygate.lab.process import RECORD, Process

OWNER = "owner"
RELEASE = b"release\n"
PURGE = "purge"


def lock_file(folder: Path) -> Path:
    """The lock of the stack in `folder`: beside it, so that it outlives a purge."""
    return folder.parent / f".{folder.name}.lock"


class Guard:
    """The owner's side of the pipe."""

    def __init__(self, folder: Path, *, purge: bool = False) -> None:
        self._owner = folder / OWNER
        token = secrets.token_hex(8)
        self._owner.write_text(token)
        words = [
            sys.executable,
            "-m",
            "tallygate.lab.orphan_guard",
            str(folder),
            token,
            *([PURGE] * purge),
        ]
        self._guard = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def release(self) -> None:
        self._owner.unlink(missing_ok=True)
        try:
            self._guard.communicate(RELEASE, timeout=10)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._guard.kill()
            self._guard.wait()


def kill_recorded(folder: Path) -> None:
    """Kill every process that a stack's folder records: all first, then wait for each."""
    found = [Process(record.parent) for record in _records(folder)]
    for process in found:
        process.send(signal.SIGKILL, tree=True)
    for process in found:
        with contextlib.suppress(TimeoutError):
            process.kill()


def _records(folder: Path) -> Iterator[Path]:
    yield from folder.glob(f"kafka/*/{RECORD}")
    yield from folder.glob(f"postgres/{RECORD}")


def _watch(folder: Path, token: str, *, purge: bool) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    said = b""
    while chunk := os.read(0, 64):
        said += chunk
    if said == RELEASE:
        return
    with lock_file(folder).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        owner = folder / OWNER
        if owner.exists() and owner.read_text() == token:
            kill_recorded(folder)
            owner.unlink()
            if purge:
                shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _watch(Path(sys.argv[1]), sys.argv[2], purge=PURGE in sys.argv[3:])
