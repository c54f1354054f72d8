"""A run's side of the ledger in a folder: the newest entry, and the next one.

**No gap, no overlap.** A commit moves the ledger from where the newest entry has it, and takes the
number after that entry. If any other commit came in between, the number is taken, nothing appears,
and the batch is planned again.

**One writer.** Each run begins with an entry of its own, which has the next epoch. An older run
that planned before it finds its number taken; one that plans after it reads the newer epoch.
"""

import os
import shutil
import threading
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

from tallygate.core.ledger import Claim, LedgerEntry, LedgerState, Run
from tallygate.core.offsets import MovedError
from tallygate.errors import LedgerError, TargetError
from tallygate.failpoints import reach
from tallygate.targets.parquet.folder import LEDGER, Folder, sync


class FolderLedger:
    def __init__(self, folder: Folder, pipeline: str) -> None:
        self.folder, self.pipeline = folder, pipeline
        self._newest: LedgerEntry | None = None
        self._asking = threading.Lock()
        self._lock: int | None = None

    def staging(self, claim: Claim) -> Path:
        """Where a run's rows and dead letters wait for their commit."""
        return self.folder.run_path(claim.run.epoch, f"{claim.run.id:016x}")

    def letters(self, claim: Claim) -> Path:
        """Where tasks leave dead letters."""
        return self.staging(claim) / "letters"

    def newest(self) -> LedgerEntry | None:
        """The ledger as it is. The heartbeat asks too, from a thread of its own."""
        with self._asking:
            found = self.folder.newest(self._newest)
            if found is None and self._newest is not None:
                raise LedgerError(
                    f"the ledger of pipeline {self.pipeline!r} was removed from "
                    f"{self.folder.path}. Bring it back, or remove the checkpoint too: the next "
                    "start then writes the folder from the beginning."
                )
            self._newest = found
            return found

    def current(self, claim: Claim) -> LedgerEntry:
        """The newest entry, which must be of no newer run."""
        found = self.newest()
        assert found is not None, "the run that has the claim has written an entry"
        claim.check_newest(found.state.run)
        return found

    def take_over(self, columns: tuple[tuple[str, str], ...]) -> Claim:
        """Take the next epoch. A commit of an older run may still come first; then this one's entry
        follows it, and knows what the older one wrote."""
        self._lock = self.folder.lock(alone=False)
        if self._lock is None:
            raise TargetError(f"{self.folder.path} is being compacted; start again after that.")
        while True:
            before = self.newest() or LedgerEntry(pipeline=self.pipeline)
            claim = Claim(self.pipeline, Run.mine(before.state.run.epoch + 1))
            try:
                self.commit(claim, before, self.fresh(claim), columns=columns)
            except MovedError:
                continue
            self.folder.sweep(claim.run.epoch)
            self.letters(claim).mkdir(parents=True, exist_ok=True)
            return claim

    def fresh(self, claim: Claim) -> Path:
        """An empty directory, to be filled and committed. What a failed try left is removed."""
        staging = self.staging(claim)
        for old in staging.glob("commit-*"):
            shutil.rmtree(old, ignore_errors=True)
        path = staging / f"commit-{uuid.uuid4().hex}"
        path.mkdir(parents=True)
        return path

    def commit(
        self,
        claim: Claim,
        before: LedgerEntry,
        staged: Path,
        *,
        state: LedgerState | None = None,
        **changes: Any,
    ) -> None:
        """Give the directory the entry that follows `before`, and make it appear."""
        after = replace(state or before.state, run=claim.run)
        entry = before.next(state=after, **changes)
        (staged / LEDGER).write_text(entry.text())
        sync(staged / LEDGER)
        sync(staged)
        if entry.batch is not None:
            reach("ledger-moved", entry.batch)
            reach("commit-sent", entry.batch)
        self.folder.publish(staged, entry)
        with self._asking:
            self._newest = entry
        if entry.batch is not None:
            reach("committed", entry.batch)

    def end(self, claim: Claim) -> None:
        shutil.rmtree(self.staging(claim), ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
