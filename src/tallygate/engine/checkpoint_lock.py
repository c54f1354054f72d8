"""One run at a time on a local checkpoint.

**A newer run must never be the one that dies of it.** The ledger fences the older of two runs, but
both plan their batches in Spark's log, and of two queries that write the same entry Spark stops
either one. So a run holds a lock beside the checkpoint for as long as its query lives. A newer run
takes over first, so that the older one finds itself fenced by its next heartbeat or batch and lets
go; then it takes the lock. It waits for as long as the older one takes, whose batch cannot always
be cut short: a process that holds a lock shows every few seconds that it is alive, and only one
that hangs is given up. Where there is no ledger to fence a run, it goes on, and is not waited for.

The system releases the lock of a process that dies, however it dies. File systems without locks,
and folders that this user may not write to, are left as they are.
"""

import fcntl
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from tallygate.errors import MachineError
from tallygate.waiting import wait_until

WAIT = 30.0
"""How long an older run may show no sign of life, in seconds; one that is not fenced, how long it
may take to end."""
SIGN_EVERY = 2.0
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
    fences: bool = field(default=True, kw_only=True)
    """Whether a newer run fences an older one."""
    _file: TextIO | None = None

    @property
    def path(self) -> Path:
        return self.checkpoint.with_name(f"{self.checkpoint.name}.lock")

    def take(
        self,
        wait: float = WAIT,
        *,
        own: float = OWN_WAIT,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Wait until no other run has it, and say so; raise, and name the one that has it, if that
        is not fenced or shows no sign of life."""
        deadline = time.monotonic() + own

        def taken() -> bool:
            return self._taken() or (time.monotonic() >= deadline and self._inherited())

        while True:
            sign = self._sign()
            try:
                wait_until(taken, wait, lambda: self._held(wait), error=MachineError)
                return
            except MachineError:
                if not self.fences or self._sign() == sign:
                    raise
            note(f"waiting for {self._who()}, which is fenced, to end and let go of its checkpoint")

    def _sign(self) -> int | None:
        """Changes for as long as the process that has it is alive."""
        try:
            return self.path.stat().st_mtime_ns
        except OSError:
            return None

    def _show_life(self, file: TextIO) -> None:
        while True:
            time.sleep(SIGN_EVERY)
            with _GUARD:
                if self._file is not file:
                    return
                os.utime(file.fileno())

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
        threading.Thread(target=self._show_life, args=(file,), daemon=True).start()

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

    def _who(self) -> str:
        try:
            return self.path.read_text() or "another process"
        except OSError:
            return "another process"

    def _held(self, wait: float) -> str:
        said = f"has not let go for {wait:g} s. There is no ledger to fence it by, so it goes on"
        if self.fences:
            said = f"has shown no sign of life for {wait:g} s. It is fenced and moves no ledger"
        return (
            f"the checkpoint {self.checkpoint} is in use by {self._who()}, which {said}: stop that "
            "process, and start again; or give this run a checkpoint of its own."
        )
