"""The ledger of a pipeline in the transactions of the Delta table that it writes.

Delta keeps two numbers for us, for as long as the table lives: how far the application
`tallygate.PIPELINE` is, which counts the pipeline's commits, and the application
`tallygate.PIPELINE/run`, which is the number of the run that makes them. An entry of the ledger is
a file that is named after both, so the table itself says which file counts, even when Delta has
cleaned up the history of its log. The file is written before the commit that makes it count; a file
whose commit never came is never looked at.

**No gap, no overlap.** A commit with rows tells Delta to set the count from V to V + 1. Delta
leaves out a write whose count the table has reached already, and refuses one during which somebody
else moved it, so for each V only one commit takes place, and it moves the offsets from where entry
V has them. Rows and count are in one transaction. A run that tries a batch again, because it does
not know whether the commit arrived, plans it from the entry that counts and uses the same number
again: at most one of the two commits takes place, and the file says the same for both.

**One writer.** A new run sets both numbers in one transaction that has read both, so it fails if
anybody commits meanwhile, and is tried again from what is there then. An older run knows a count
that the table has passed: Delta leaves its write out. That is silent, so after each write the table
is asked whether the two numbers are ours.

A batch id plays no part in this. That is what makes a lost checkpoint harmless: with the usual
batch id as the number, ids that start again from 0 are taken for writes that were done already, and
all that follows is left out in silence.
"""

from collections.abc import Callable
from dataclasses import replace

from tallygate.core.runs import fenced
from tallygate.errors import FencedError, LedgerError, TargetError
from tallygate.targets.delta.entry import Entry
from tallygate.targets.delta.table import DeltaTable, Transaction
from tallygate.targets.sink import Retry

__all__ = ["DeltaLedger"]

ENTRIES_KEPT = 1000
ATTEMPTS = 20


class DeltaLedger:
    def __init__(self, table: DeltaTable, pipeline: str) -> None:
        self.table, self.pipeline = table, pipeline
        self.application = f"tallygate.{pipeline}"
        self._run_application = f"{self.application}/run"
        self._table_id = ""
        self._mine = Entry()
        self._held: Entry | None = None

    def known(self) -> Entry | None:
        """The entry that counts; None if the pipeline never ran."""
        return self._counting(self.table.begin())

    def known_at(self) -> tuple[int, Entry | None]:
        """A version of the table, and the entry that counts in it."""
        transaction = self.table.begin()
        return transaction.version, self._counting(transaction)

    def begin(self) -> Entry:
        """Take the next epoch: whoever planned a commit before cannot make it any more."""
        transaction, entry = self._committed(
            lambda transaction: (self._counting(transaction) or Entry()).taken_over()
        )
        self._mine, self._table_id = entry, transaction.table_id
        self._remove_old(entry)
        return entry

    def current(self) -> Entry:
        """The entry that counts, if this run is still the one that writes."""
        return self._own(self.table.begin())

    def move(self, change: Callable[[Entry], Entry]) -> None:
        """Commit a change of the ledger alone."""
        self._committed(lambda transaction: change(self._own(transaction)))

    def intend(self, entry: Entry) -> None:
        """Write an entry down that the next commit makes count."""
        self._write(entry)
        own = replace(entry, version=entry.version - ENTRIES_KEPT)
        if own.version > self._mine.version:
            self.table.remove(self._file(own))

    def confirm(self, entry: Entry) -> None:
        """Make sure that the commit took place and was ours; Delta does not tell."""
        found = self.current()
        if found.version != entry.version:
            raise Retry(
                f"commit {entry.version} of {self.pipeline!r} did not take place: the table is at "
                f"{found.version}"
            )

    def _own(self, transaction: Transaction) -> Entry:
        if not transaction.exists or transaction.table_id != self._table_id:
            raise TargetError(
                f"Delta table {self.table.path} was removed or made anew while pipeline "
                f"{self.pipeline!r} was writing it; start again."
            )
        entry = self._counting(transaction)
        if entry is None or entry.run != self._mine.run:
            raise self._fenced(entry)
        return entry

    def _counting(self, transaction: Transaction) -> Entry | None:
        if not transaction.exists:
            return None
        version = transaction.application(self.application)
        run = transaction.application(self._run_application)
        if version < 0:
            return None
        held = self._held
        if held is not None and (held.version, held.run) == (version, run):
            return held
        name = self._file(Entry(version, run))
        text = self.table.read(name)
        if text is None:
            raise LedgerError(
                f"{self.table.own(name)} is gone, which says how far pipeline {self.pipeline!r} is "
                "in this table. Bring it back; or start a pipeline of another name with a new "
                "table."
            )
        self._held = Entry.parse(text)
        return self._held

    def _committed(self, make: Callable[[Transaction], Entry]) -> tuple[Transaction, Entry]:
        """Commit an entry without rows, made from what its own transaction has read."""
        for _ in range(ATTEMPTS):
            transaction = self.table.begin()
            entry = make(transaction)
            self._write(entry)
            try:
                transaction.commit(
                    {self.application: entry.version, self._run_application: entry.run}
                )
            except Retry:
                continue
            return transaction, entry
        raise LedgerError(
            f"pipeline {self.pipeline!r} could not move its ledger in {self.table.path}: others "
            f"changed the table during each of {ATTEMPTS} attempts. Start again."
        )

    def _write(self, entry: Entry) -> None:
        self.table.write(self._file(entry), entry.text())

    def _file(self, entry: Entry) -> str:
        return f"{self.pipeline}/{entry.name}"

    def _remove_old(self, entry: Entry) -> None:
        """Of entries that do not count any more the newest are kept, as a history."""
        for name in self.table.names(self.pipeline):
            number = name.partition("-")[0]
            if number.isdigit() and int(number) <= entry.version - ENTRIES_KEPT:
                self.table.remove(f"{self.pipeline}/{name}")

    def _fenced(self, newer: Entry | None) -> FencedError:
        if newer is not None:
            return fenced(self.pipeline, self._mine.epoch, newer.writer)
        return FencedError(
            f"run {self._mine.epoch} of pipeline {self.pipeline!r} is fenced: the ledger is gone "
            "from the table. This one wrote nothing more."
        )
