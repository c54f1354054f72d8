"""Who writes: a run of a pipeline, as every ledger keeps it, and what an older one hears."""

import os
import socket
import time
from dataclasses import dataclass

from tallygate.errors import FencedError

__all__ = ["Run", "fenced", "now"]


@dataclass(frozen=True)
class Run:
    """The number of a run, which grows with each start, and where it is."""

    epoch: int = 0
    host: str = ""
    pid: int = 0
    started: str = ""

    @classmethod
    def mine(cls, epoch: int) -> "Run":
        return cls(epoch, socket.gethostname(), os.getpid(), now())


def fenced(pipeline: str, epoch: int, newer: Run) -> FencedError:
    """What run `epoch` hears when it finds that a newer one took over."""
    return FencedError(
        f"run {epoch} of pipeline {pipeline!r} is fenced: run {newer.epoch} took over on "
        f"{newer.host} (pid {newer.pid}) at {newer.started}. This one wrote nothing more; stop one "
        "of the two."
    )


def now() -> str:
    """The time, for people to read."""
    return time.strftime("%Y-%m-%d %H:%M:%S%z")
