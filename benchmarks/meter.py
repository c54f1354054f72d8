"""What was spent between two moments: time by kind of process, brokers and database included, and
the memory of those who read and write."""

import contextlib
import re
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

__all__ = ["KINDS", "Meter", "Peak"]

EVERY = 0.2
MEMORY_EVERY = 5
"""Samples: the kernel has to walk all pages for it."""
KINDS = ("broker", "JVM", "Python", "PostgreSQL", "upkeep")
"""The last is PostgreSQL's work on its own: vacuum, checkpoints, writing out what has changed."""
OF_A_CLIENT = re.compile(r"^postgres: \S+ \S+ \S+\(\d+\)")
"""How PostgreSQL titles a process that serves one: user, database, address and port."""


class Peak:
    """The most memory that a process has held since now, as the kernel notes it: nothing that it
    held for a moment only is missed."""

    def __init__(self, pid: int) -> None:
        self._place = Path(f"/proc/{pid}")
        (self._place / "clear_refs").write_text("5")  # forgets the peak

    @property
    def size(self) -> float:
        """In MiB."""
        lines = (self._place / "status").read_text().splitlines()
        peak = next(line for line in lines if line.startswith("VmHWM:"))
        return int(peak.split()[1]) / 1024


class Meter:
    """Samples while the block lasts."""

    def __init__(self, *, newcomers: bool = False) -> None:
        """With `newcomers`, only processes that start meanwhile count for the memory."""
        self._others = set(psutil.pids()) if newcomers else set()
        self._spent: dict[int, tuple[str, float]] = {}
        """The kind of each process, and what it had spent when it was last seen: one that has
        ended has still spent it."""
        self._samples: list[tuple[float, dict[str, float]]] = []
        self._memory: list[tuple[float, float]] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._sample()
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

    def peak(self, begin: float, end: float) -> float:
        """The most memory, in MiB, of JVMs and Pythons together, without the brokers."""
        return max((size for at, size in self._memory if begin <= at <= end), default=0.0)

    def _at(self, moment: float) -> dict[str, float]:
        return min(self._samples, key=lambda sample: abs(sample[0] - moment))[1]

    def _run(self) -> None:
        while not self._ending.wait(EVERY):
            self._sample()
            if len(self._samples) % MEMORY_EVERY == 0:
                self._memory.append((time.time(), _held(self._others)))

    def _sample(self) -> None:
        for process in psutil.process_iter(["name", "cmdline", "cpu_times"]):
            kind, times = _kind(process), process.info["cpu_times"]
            if kind is not None and times is not None:
                self._spent[process.pid] = kind, times.user + times.system
        total = dict.fromkeys(KINDS, 0.0)
        for kind, seconds in self._spent.values():
            total[kind] += seconds
        self._samples.append((time.time(), total))


def _held(others: set[int]) -> float:
    """Pages that several processes share, as workers do that were forked, count once."""
    found = 0
    for process in psutil.process_iter(["name", "cmdline"]):
        if process.pid not in others and _kind(process) in ("JVM", "Python"):
            with contextlib.suppress(psutil.Error):
                found += process.memory_full_info().pss
    return found / 2**20


def _kind(process: psutil.Process) -> str | None:
    name, words = process.info["name"] or "", process.info["cmdline"] or []
    if name == "java":
        return "broker" if "kafka.Kafka" in words else "JVM"
    if name.startswith("postgres"):
        return "PostgreSQL" if OF_A_CLIENT.search(" ".join(words)) else "upkeep"
    return "Python" if words and Path(words[0]).name.startswith("python") else None
