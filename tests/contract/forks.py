"""Processes to be killed, forked off one that has imported everything and opened nothing.

The test's own process has threads and clients, which a fork does not survive; a new interpreter
would spend a second on imports. A fork server costs neither.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import forkserver, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import psutil

from tallygate import failpoints
from tallygate.waiting import wait_until

__all__ = ["SOON", "Child", "forked", "pause", "serve_forks"]

_context = get_context("forkserver")
SOON = 30.0


def serve_forks(*modules: str) -> None:
    """Start the fork server, with these modules imported."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
        _context.set_forkserver_preload(["pytest", *modules])
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


@dataclass
class Child:
    """A process that does one thing, and says how that ended if it lives to say so."""

    process: BaseProcess
    answers: Connection

    @property
    def died(self) -> bool:
        """Whether it was killed, once it is over."""
        self.process.join(SOON)
        return self.process.exitcode == -signal.SIGKILL

    @property
    def answer(self) -> Any:
        """What it gives back; an error is raised."""
        assert self.answers.poll(SOON), "the process said nothing"
        done, given = self.answers.recv()
        self.process.join(SOON)
        if not done:
            raise given
        return given

    def wait_until_paused(self) -> None:
        process = psutil.Process(self.process.pid)

        def over_or_paused() -> bool:
            return self.answers.poll() or process.status() == psutil.STATUS_STOPPED

        wait_until(over_or_paused, SOON, "the process was not paused")
        assert not self.answers.poll(), f"not paused, but: {self.answers.recv()}"

    def go_on(self) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGCONT)


@contextmanager
def forked(
    act: Callable[..., Any],
    *arguments: Any,
    at: str = "",
    then: Callable[[], None] | None = None,
) -> Iterator[Child]:
    """Have a process of its own do this. At a failure point, if one is given, it is killed by
    SIGKILL, or does something else `then` and goes on."""
    ours, theirs = _context.Pipe()
    process = _context.Process(target=_live, args=(theirs, act, arguments, at, then))
    process.start()
    theirs.close()
    try:
        yield Child(process, ours)
    finally:
        process.kill()
        process.join()
        ours.close()


def pause() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _live(
    answers: Connection,
    act: Callable[..., Any],
    arguments: Any,
    at: str,
    then: Callable[[], None] | None,
) -> None:
    failpoints.ARMED = at or None
    os.environ[failpoints.DRIVER] = str(os.getpid())
    if then is not None:
        failpoints._die = partial(_once, then)
    try:
        answers.send((True, act(*arguments)))
    except Exception as error:
        answers.send((False, error))


def _once(act: Callable[[], None]) -> None:
    failpoints.ARMED = None
    act()
