"""Programs under drill, in processes of their own, started again when they die.

A real deployment has something that does this: systemd, Kubernetes, YARN. What it does not have is
patience: a program that ends with an error five times in a row is left alone.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from tallygate.waiting import wait_until

PATIENCE = 5
PAUSE = 0.5


class Job:
    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        on_change: Callable[[str], None],
        environment: Mapping[str, str],
        *,
        patience: int = PATIENCE,
    ) -> None:
        self.name, self._command, self._log, self._on_change = name, list(command), log, on_change
        self.patience, self._environment = patience, environment
        self.deaths: list[int] = []
        """The exit code of each time that it ended unasked."""
        self._environments: list[Mapping[str, str]] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self.starts = 0
        self.last_words = ""
        """The end of what it printed, once it was left alone."""

    def start(self, *environments: Mapping[str, str]) -> None:
        """Start it. Each of `environments` is for one start, in turn, so that a failure point that
        has killed it once does not kill it again."""
        self._ending.clear()
        self._environments = list(environments)
        self._launch()
        self._thread = threading.Thread(target=self._keep_up, daemon=True)
        self._thread.start()

    def kill(self) -> None:
        """SIGKILL, to it and all that it started, until nothing of that is left; it will be started
        again."""
        process = self._process  # not the one that may be started meanwhile

        def gone() -> bool:
            family = _family(process)
            _send(family, signal.SIGKILL)
            return not family

        wait_until(gone, 30, f"{self.name} cannot be killed", every=0.02)

    def pause(self) -> None:
        _send(_family(self._process), signal.SIGSTOP)

    def resume(self) -> None:
        _send(_family(self._process), signal.SIGCONT)

    @property
    def ends(self) -> list[str]:
        """How it ended each time that it ended unasked, in words."""
        return [_said(code) for code in self.deaths]

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def is_left_alone(self) -> bool:
        """Whether it failed so often that it is not started again."""
        return self._thread is not None and not self._thread.is_alive()

    def stop(self, timeout: float = 60) -> None:
        """Ask it to finish, and wait."""
        self._ending.set()
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                process.wait()
        self._join()

    def end(self) -> None:
        """Make sure that nothing of it is left."""
        self._ending.set()
        self.kill()
        self._join()

    def _join(self) -> None:
        """The thread may just have started it once more."""
        if self._thread is not None:
            self._thread.join()
        self.kill()
        if self._process is not None:
            self._process.wait()

    def _launch(self) -> None:
        self.starts += 1
        environment = self._environments.pop(0) if self._environments else {}
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**self._environment, **environment},
                start_new_session=True,
            )
        self._on_change(f"{self.name} is started{'' if self.starts == 1 else ' again'}")

    def _keep_up(self) -> None:
        failures = 0
        while not self._ending.is_set():
            process = self._process
            assert process is not None
            code = process.wait()
            if self._ending.is_set() or code == 0:
                return
            self.deaths.append(code)
            self._on_change(f"{self.name} is gone ({_said(code)})")
            failures = failures + 1 if code > 0 else 0
            if failures >= self.patience:
                self.last_words = self._log.read_text(errors="replace")[-2000:]
                return
            time.sleep(PAUSE)
            if not self._ending.is_set():
                self._launch()


def _family(process: subprocess.Popen[bytes] | None) -> list[psutil.Process]:
    """A program and all that it started. They share a session, by which they are found even when
    the program itself is gone: its JVM may live a little longer, and write."""
    if process is None:
        return []
    if process.poll() is not None and psutil.pid_exists(process.pid):
        return []  # another process has its number, which is free only once no one of them is left
    return [each for each in psutil.process_iter() if _lives_in(each, process.pid)]


def _lives_in(process: psutil.Process, session: int) -> bool:
    try:
        return os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False


def _send(family: Sequence[psutil.Process], number: signal.Signals) -> None:
    for each in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.send_signal(number)


def _said(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
