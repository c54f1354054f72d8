"""Where the machine's time went between two moments, brokers and database included."""

import threading
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

__all__ = ["KINDS", "Meter"]

EVERY = 0.2
KINDS = ("broker", "JVM", "Python", "PostgreSQL")


class Meter:
    """Samples while the block lasts."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, Counter[str]]] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._samples.append((time.time(), _spent()))
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending.set()
        self._thread.join()

    def between(self, begin: float, end: float) -> dict[str, float]:
        """Seconds of all cores together, by kind of process."""
        before, after = self._at(begin), self._at(end)
        return {kind: after[kind] - before[kind] for kind in KINDS}

    def _at(self, moment: float) -> Counter[str]:
        return min(self._samples, key=lambda sample: abs(sample[0] - moment))[1]

    def _run(self) -> None:
        while not self._ending.wait(EVERY):
            self._samples.append((time.time(), _spent()))


def _spent() -> Counter[str]:
    """What each kind has spent so far. PostgreSQL has a process for each connection: what those
    that ended have spent is in their parent's account."""
    found: Counter[str] = Counter()
    for process in psutil.process_iter(["name", "cmdline", "cpu_times"]):
        kind, times = _kind(process), process.info["cpu_times"]
        if kind is not None and times is not None:
            found[kind] += times.user + times.system
            if kind == "PostgreSQL":
                found[kind] += times.children_user + times.children_system
    return found


def _kind(process: psutil.Process) -> str | None:
    name, words = process.info["name"] or "", process.info["cmdline"] or []
    if name == "java":
        return "broker" if "kafka.Kafka" in words else "JVM"
    if name.startswith("postgres"):
        return "PostgreSQL"
    return "Python" if words and Path(words[0]).name.startswith("python") else None
