"""Long-lived child processes that outlive, or do not outlive, the program that started them.

A process is known by its pid *and* the moment it started: a pid alone may belong to another
process by the time it is read back, after a crash or a reboot. Both are written next to the
process's log as soon as it exists, so any later command can find it, act on it, or clean up.
"""

import contextlib
import json
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import psutil

from tallygate.errors import NodeError
from tallygate.waiting import wait_until

RECORD = "process.json"
LAST_LINES = 10

# Children of this very program, kept so that they can be reaped: an unreaped child is a zombie.
_children: dict[int, subprocess.Popen[bytes]] = {}


def _identity(pid: int) -> str:
    """The boot and the tick at which a process started: no clock that is set can change it."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return f"{boot}:{ticks}"


class ProcessState(Enum):
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Process:
    """The process whose record, log and working files live in `folder`."""

    folder: Path
    log_name: str = "output.log"

    @property
    def log(self) -> Path:
        return self.folder / self.log_name

    def start(
        self,
        command: Sequence[str],
        *,
        user: int | None = None,
    ) -> None:
        """Start `command` in a session of its own, so that no terminal signal reaches it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.log.exists():
            self.log.replace(self.log.with_suffix(".previous.log"))
        with self.log.open("wb") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                user=user,
                group=user,
                extra_groups=None if user is None else [],
                start_new_session=True,
            )
        _children[child.pid] = child
        record = {"pid": child.pid, "identity": _identity(child.pid)}
        partial = self.folder / f"{RECORD}.partial"
        partial.write_text(json.dumps(record))
        partial.replace(self.folder / RECORD)

    def find(self) -> psutil.Process | None:
        """The live process of the record, or None when it is gone, a zombie or another process.

        A child that is said to be gone has been waited for: as long as it is a zombie, others take
        its pid for that of a process that lives."""
        try:
            record = json.loads((self.folder / RECORD).read_text())
            if (child := _children.get(record["pid"])) and child.poll() is not None:
                del _children[record["pid"]]
            found = psutil.Process(record["pid"])
            same = _identity(found.pid) == record["identity"]
            zombie = found.status() == psutil.STATUS_ZOMBIE  # asked once: it may become one
            if child and zombie:
                child.wait()
            return found if same and not zombie else None
        except (OSError, ValueError, KeyError, TypeError, psutil.NoSuchProcess):
            return None

    @property
    def pid(self) -> int | None:
        found = self.find()
        return found.pid if found else None

    @property
    def state(self) -> ProcessState:
        found = self.find()
        if found is None:
            return ProcessState.STOPPED
        with contextlib.suppress(psutil.NoSuchProcess):
            paused = found.status() == psutil.STATUS_STOPPED
            return ProcessState.PAUSED if paused else ProcessState.RUNNING
        return ProcessState.STOPPED

    def send(self, number: signal.Signals, *, tree: bool = False) -> None:
        """Send a signal to the process, or with `tree` to it and all that it started."""
        found = self.find()
        if found is None:
            return
        for member in [found, *(self._family() if tree else ())]:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.send_signal(number)

    def _family(self) -> list[psutil.Process]:
        """All that the process started, and those that they did."""
        with contextlib.suppress(psutil.NoSuchProcess):
            found = self.find()
            return found.children(recursive=True) if found else []
        return []

    def kill(self, timeout: float = 10) -> None:
        """SIGKILL the whole tree and wait until nothing of it is left: a server's children may
        still hold what its next start needs."""
        family = self._family()
        self.send(signal.SIGKILL, tree=True)
        self.wait_gone(timeout)
        wait_until(
            lambda: not any(map(is_alive, family)),
            timeout,
            f"processes that {self.folder.name} had started are still there",
            error=TimeoutError,
            every=0.02,
        )

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout: float = 30) -> None:
        """Ask the process to end; one that has not by `timeout` is killed."""
        self.send(signal.SIGCONT, tree=True)
        self.send(number)
        try:
            self.wait_gone(timeout)
        except TimeoutError:
            self.kill()

    def wait_gone(self, timeout: float) -> None:
        wait_until(
            lambda: self.find() is None,
            timeout,
            lambda: f"process {self.pid} is still there after {timeout:.0f} s",
            error=TimeoutError,
            every=0.02,
        )
        (self.folder / RECORD).unlink(missing_ok=True)


def is_alive(process: psutil.Process) -> bool:
    """Whether it can still do anything: a zombie cannot."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def died(what: str, lines: Sequence[str]) -> NodeError:
    """The error for a process that is gone when it should not be, with what it said last.

    The frames of Java's stack traces are left out: what was thrown says more than where.
    """
    telling = [line for line in lines if line.strip() and not line.startswith("\tat ")][
        -LAST_LINES:
    ]
    said = "".join(f"\n    {line}" for line in telling) or "\n    (it logged nothing)"
    return NodeError(f"{what}; its last lines were:{said}")
