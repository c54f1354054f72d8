"""A run of a pipeline whose store keeps no heartbeats, as a file in the state folder.

PostgreSQL has a row for each run. Topics, folders and lake tables have no place for one that is
written every few seconds, so such a run is seen, and can be asked to stop, on its own machine.
"""

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class LocalRun:
    folder: Path
    pipeline: str
    _mine: tuple[int, int] | None = None
    """The run's number and pid: another run's file is left alone."""

    def begin(self, *, target: str, delivery: str, run: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._stop.unlink(missing_ok=True)
        now = time.time()
        self._mine = run, os.getpid()
        self._write(
            {
                "name": self.pipeline,
                "target": target,
                "delivery": delivery,
                "run": run,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "started_at": now,
                "heartbeat_at": now,
                "outcome": None,
                "progress": {},
            }
        )

    def beat(self, progress: Mapping[str, Any]) -> bool:
        """Say that the run is alive; True if it was asked to stop."""
        if not self._is_mine():
            return False
        self._write({**self.read(), "heartbeat_at": time.time(), "progress": dict(progress)})
        return self._stop.exists()

    def end(self, outcome: str) -> None:
        if self._is_mine():
            self._write({**self.read(), "heartbeat_at": time.time(), "outcome": outcome})

    def _is_mine(self) -> bool:
        if self._mine is None or not self._file.exists():
            return False
        held = self.read()
        return (held["run"], held["pid"]) == self._mine

    def ask_to_stop(self) -> None:
        self._stop.touch()

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._file.read_text())
        return found

    @property
    def _file(self) -> Path:
        return self.folder / f"{self.pipeline}.json"

    @property
    def _stop(self) -> Path:
        return self.folder / f"{self.pipeline}.stop"

    def _write(self, fields: Mapping[str, Any]) -> None:
        partial = self._file.with_suffix(".partial")
        partial.write_text(json.dumps(fields))
        partial.replace(self._file)


def local_runs(folder: Path) -> Iterator[LocalRun]:
    """The newest run of each pipeline that this machine knows."""
    for file in sorted(folder.glob("*.json")):
        yield LocalRun(folder, file.stem)
