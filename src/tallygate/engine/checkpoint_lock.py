"""One run at a time on a local checkpoint.

**A newer run must never be the one that dies of it.** The ledger fences the older of two runs, but
both plan their batches in Spark's log, and of two queries that write the same entry Spark stops
either one. So a run holds a lock beside the checkpoint for as long as its query lives. A newer run
takes over first, so that the older one finds itself fenced by its next heartbeat or batch and lets
go; then it takes the lock.

The system releases the lock of a process that dies, however it dies. File systems without locks,
and folders that this user may not write to, are left as they are.
"""

import fcntl
import os
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tallygate.errors import MachineError
from tallygate.waiting import wait_until

WAIT = 30.0
"""How long an older run may take to find out that it is fenced and to end, in seconds."""
OWN_WAIT = 5.0
"""The same for one of this process: two heartbeats, and a little more."""
_GUARD = threading.Lock()
_HERE: dict[Path, "CheckpointLock"] = {}
"""What runs of this process hold."""


@dataclass
class CheckpointLock:
    checkpoint: Path
    holder: str
    """The run, for messages of others."""
    _file: TextIO | None = None

    @property
    def path(self) -> Path:
        return self.checkpoint.with_name(f"{self.checkpoint.name}.lock")

    def take(self, wait: float = WAIT, *, own: float = OWN_WAIT) -> None:
        """Wait until no other run has it; raise, and name the one that has it, after a while."""
        deadline = time.monotonic() + own

        def taken() -> bool:
            return self._taken() or (time.monotonic() >= deadline and self._inherited())

        wait_until(taken, wait, lambda: self._held(wait), error=MachineError)

    def release(self) -> None:
        with _GUARD:
            if self._file is not None:
                self.path.unlink(missing_ok=True)
                self._file.close()
                self._file = None
                del _HERE[self.path]

    def _inherited(self) -> bool:
        """Take it from an older run of this process, as of a user who starts a query again. It may
        wait for records for long; when another one is started on its checkpoint Spark stops it."""
        with _GUARD:
            older = _HERE.get(self.path)
            if older is None or older._file is None:
                return False
            self._hold(older._file)
            older._file = None
            return True

    def _hold(self, file: TextIO) -> None:
        file.truncate(0)
        file.write(f"pid {os.getpid()} on {socket.gethostname()}, {self.holder}")
        file.flush()
        self._file = file
        _HERE[self.path] = self

    def _taken(self) -> bool:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = self.path.open("a+")
        except OSError:
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        except OSError:
            file.close()
            return True
        if not self._is_there(file):  # the run that had it has removed it just now
            file.close()
            return False
        with _GUARD:
            self._hold(file)
        return True

    def _is_there(self, file: TextIO) -> bool:
        try:
            return os.path.samestat(os.fstat(file.fileno()), self.path.stat())
        except FileNotFoundError:
            return False

    def _held(self, wait: float) -> str:
        try:
            who = self.path.read_text()
        except OSError:
            who = ""
        return (
            f"the checkpoint {self.checkpoint} is in use by {who or 'another process'}, which has "
            f"not let go for {wait:g} s. It is fenced and writes nothing more: end that process, "
            "and start again; or give this run a checkpoint of its own."
        )
