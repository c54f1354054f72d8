"""The guard: a small process that ends a stack's processes when their owner is gone.

An owner that is killed with SIGKILL cannot clean up, so somebody else has to. The guard reads a
pipe whose other end only the owner holds. The end of that pipe without a word means that the owner
died: everything recorded in the stack's folder is killed. The word `release` means that the owner
has ended things itself, or that the stack is to live on in the background.
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tallygate.process import RECORD, Process

__all__ = ["Guard"]

RELEASE = b"release\n"
PURGE = "purge"


class Guard:
    """The owner's side of the pipe."""

    def __init__(self, folder: Path, *, purge: bool = False) -> None:
        command = [sys.executable, "-m", "tallygate.guard", str(folder), *([PURGE] * purge)]
        self._guard = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def release(self) -> None:
        try:
            self._guard.communicate(RELEASE, timeout=10)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._guard.kill()
            self._guard.wait()


def kill_recorded(folder: Path) -> None:
    """Kill every process that has a record anywhere below `folder`."""
    for record in sorted(folder.rglob(RECORD)):
        Process(record.parent).kill()


def _watch(folder: Path, *, purge: bool) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    said = b""
    while chunk := os.read(0, 64):
        said += chunk
    if said != RELEASE:
        kill_recorded(folder)
        if purge:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _watch(Path(sys.argv[1]), purge=PURGE in sys.argv[2:])
