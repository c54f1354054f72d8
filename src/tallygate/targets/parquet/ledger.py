"""A run's side of the ledger in a folder: the newest entry, and the next one.

**No gap, no overlap.** A batch is planned from an entry and committed with the number after it. If
any other commit came in between, the number is taken, nothing appears, and the batch is planned
anew.

**One writer.** Each run begins with an entry of its own, which has the next epoch. An older run
that planned before it finds its number taken; one that plans after it reads the newer epoch.
"""

import os
import shutil
import threading
import uuid
from pathlib import Path
from typing import Any

from tallygate.core.offsets import MovedError
from tallygate.core.runs import Run, fenced
from tallygate.errors import LedgerError, TargetError
from tallygate.failpoints import reach
from tallygate.targets.parquet.entry import Entry
from tallygate.targets.parquet.folder import LEDGER, Folder, sync

__all__ = ["FolderLedger"]


class FolderLedger:
    def __init__(self, folder: Folder, pipeline: str) -> None:
        self.folder, self.pipeline = folder, pipeline
        self.run = Run()
        self._name = uuid.uuid4().hex[:12]
        self._newest: Entry | None = None
        self._asking = threading.Lock()
        self._lock: int | None = None

    @property
    def staging(self) -> Path:
        """Where this run's rows and letters wait for their commit."""
        return self.folder.run_path(self.run.epoch, self._name)

    def newest(self) -> Entry | None:
        """The ledger as it is. The heartbeat asks too, from a thread of its own."""
        with self._asking:
            self._newest = self.folder.newest(self._newest)
            return self._newest

    def current(self) -> Entry:
        """The newest entry, which must be this run's."""
        found = self.newest()
        if found is None:
            raise LedgerError(
                f"{self.folder.path} does not hold the ledger of {self.pipeline!r} any more; "
                "somebody removed it. Start again with another checkpoint to write it anew."
            )
        if found.run.epoch > self.run.epoch:
            raise fenced(self.pipeline, self.run.epoch, found.run)
        return found

    def begin(self, columns: tuple[tuple[str, str], ...]) -> None:
        """Take the next epoch. A commit of an older run may still come first; then this one's entry
        follows it, and what the older one wrote is known."""
        self._lock = self.folder.lock(alone=False)
        if self._lock is None:
            raise TargetError(f"{self.folder.path} is being compacted; start again after that.")
        while True:
            before = self.newest() or Entry(self.pipeline)
            self.run = Run.mine(before.run.epoch + 1)
            try:
                self.commit(before, self.fresh(), columns=columns)
            except MovedError:
                continue
            self.folder.sweep(self.run.epoch)
            return

    def fresh(self) -> Path:
        """An empty directory, to be filled and committed. What a failed try left is removed."""
        for old in self.staging.glob("commit-*"):
            shutil.rmtree(old, ignore_errors=True)
        path = self.staging / f"commit-{uuid.uuid4().hex}"
        path.mkdir(parents=True)
        return path

    def commit(self, before: Entry, staged: Path, **changes: Any) -> Entry:
        """Give the directory the entry that follows `before`, and make it appear."""
        entry = before.next(self.run, **changes)
        (staged / LEDGER).write_text(entry.text())
        sync(staged / LEDGER)
        sync(staged)
        if entry.batch is not None:
            reach("ledger-moved", entry.batch)
            reach("commit-sent", entry.batch)
        self.folder.publish(staged, entry)
        if entry.batch is not None:
            reach("committed", entry.batch)
        return entry

    def end(self) -> None:
        shutil.rmtree(self.staging, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
