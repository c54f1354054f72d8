"""How much of the machine's time was spent between two moments, brokers and database included."""

import threading
import time
from types import TracebackType
from typing import Self

import psutil

__all__ = ["Meter"]

EVERY = 0.1


class Meter:
    """Samples while the block lasts."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, float]] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
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

    def between(self, begin: float, end: float) -> float:
        """Seconds of all cores together."""
        return self._at(end) - self._at(begin)

    def _at(self, moment: float) -> float:
        return min(self._samples, key=lambda sample: abs(sample[0] - moment))[1]

    def _run(self) -> None:
        while not self._ending.wait(EVERY):
            spent = psutil.cpu_times()
            self._samples.append((time.time(), spent.user + spent.nice + spent.system))
