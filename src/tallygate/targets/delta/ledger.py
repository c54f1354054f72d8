"""The ledger of a pipeline in the transactions of the Delta table that it writes.

Delta keeps two numbers for us, for as long as the table lives: how far the application
`tallygate.PIPELINE` is, which counts the pipeline's commits, and the application
`tallygate.PIPELINE/run`, which is the id of the run that makes them. An entry of the ledger is a
file that is named after both, so the table itself says which file counts, even when Delta has
cleaned up the history of its log. A run writes the file before the commit that makes it count; a
file whose commit never came is never looked at.

**No gap, no overlap.** A commit with rows tells Delta to set the count from V to V + 1. Delta
leaves out a write whose count the table has reached already, and refuses one during which another
writer moved it, so for each V only one commit takes place, and it moves the positions from where
entry V has them. Rows and count are in one transaction. A run that tries a batch again, because it
does not know whether the commit arrived, plans it from the entry that counts and uses the same
number again: at most one of the two commits takes place, and the file says the same for both.

**One writer.** A new run sets both numbers in one transaction that has read both, so it fails if
another writer commits meanwhile, and is tried again from what is there then. An older run knows a
count that the table has passed: Delta leaves its write out. That is silent, so after each write the
run asks the table whether the two numbers are its own.

A batch id plays no part in this. That is what makes a lost checkpoint harmless: with the usual
batch id as the number, ids that start again from 0 are taken for writes that were done already, and
all that follows is left out in silence.
"""

from collections.abc import Callable
from dataclasses import replace

from tallygate.core.ledger import Claim, LedgerEntry, Run, fenced
from tallygate.errors import FencedError, LedgerError, TargetError
from tallygate.targets.base import UnknownOutcomeError
from tallygate.targets.delta.table import DeltaTable, Transaction

ENTRIES_KEPT = 1000
ATTEMPTS = 20


class TableLedger:
    def __init__(self, table: DeltaTable, pipeline: str) -> None:
        self.table, self.pipeline = table, pipeline
        self.application = f"tallygate.{pipeline}"
        self._run_application = f"{self.application}/run"
        self._table_id: str | None = None
        """Of the table that this run took over."""
        self._first = 0
        """The number of the run's first entry."""
        self._read: LedgerEntry | None = None

    def newest(self) -> LedgerEntry | None:
        """The entry that counts; None if the pipeline never ran."""
        return self._counting(self._same_table(self.table.begin()))

    def newest_at(self) -> tuple[int, LedgerEntry | None]:
        """A version of the table, and the entry that counts in it."""
        transaction = self.table.begin()
        return transaction.version, self._counting(transaction)

    def current(self, claim: Claim) -> LedgerEntry:
        """The entry that counts, if this run is still the one that writes."""
        return self._own(claim, self.table.begin())

    def take_over(self) -> LedgerEntry:
        """Take the next epoch: no commit that was planned before takes place from here on."""

        def make(transaction: Transaction) -> LedgerEntry:
            before = self._counting(transaction) or LedgerEntry(pipeline=self.pipeline)
            run = Run.mine(before.state.run.epoch + 1)
            return before.next(state=replace(before.state, run=run))

        transaction, entry = self._commit(make)
        self._table_id, self._first = transaction.table_id, entry.number
        self._remove_old(entry)
        return entry

    def move(self, claim: Claim, change: Callable[[LedgerEntry], LedgerEntry]) -> None:
        """Commit a change of the ledger alone."""
        self._commit(lambda transaction: change(self._own(claim, transaction)))

    def intend(self, entry: LedgerEntry) -> None:
        """Write an entry down that the next commit makes count."""
        self._write(entry)
        old = entry.number - ENTRIES_KEPT
        if old > self._first:
            self.table.own.remove(self.file(old, entry.state.run))

    def confirm(self, claim: Claim, entry: LedgerEntry) -> None:
        """Make sure that the commit took place and was this run's; Delta does not tell."""
        found = self.current(claim)
        if found.number != entry.number:
            raise UnknownOutcomeError(
                f"commit {entry.number} of pipeline {self.pipeline!r} did not take place: the "
                f"table is at {found.number}"
            )

    def file(self, number: int, run: Run) -> str:
        """The file of an entry, named by what the table itself knows: its number and its run."""
        return f"{self.pipeline}/{number:020}-{run.id}.json"

    def _same_table(self, transaction: Transaction) -> Transaction:
        """A table that was removed under the run, or made again, holds nothing of it."""
        if self._table_id is not None and (
            not transaction.exists or transaction.table_id != self._table_id
        ):
            raise TargetError(
                f"Delta table {self.table.path} was removed or replaced while pipeline "
                f"{self.pipeline!r} was writing it; start again."
            )
        return transaction

    def _own(self, claim: Claim, transaction: Transaction) -> LedgerEntry:
        entry = self._counting(self._same_table(transaction))
        if entry is None or entry.state.run.id != claim.run.id:
            raise self._fenced(claim, entry)
        return entry

    def _counting(self, transaction: Transaction) -> LedgerEntry | None:
        if not transaction.exists:
            return None
        number = transaction.application(self.application)
        run = Run(id=transaction.application(self._run_application))
        if number < 0:
            return None
        read = self._read
        if read is not None and (read.number, read.state.run.id) == (number, run.id):
            return read
        name = self.file(number, run)
        text = self.table.own.read(name)
        if text is None:
            raise LedgerError(
                f"{self.table.own.at(name)} is gone, which says how far pipeline "
                f"{self.pipeline!r} is in this table. Bring it back; or start a pipeline of "
                "another name with a new table."
            )
        self._read = self._parsed(name, text)
        return self._read

    def _parsed(self, name: str, text: str) -> LedgerEntry:
        try:
            return LedgerEntry.parse(text)
        except (ValueError, TypeError, KeyError) as error:
            raise LedgerError(f"{self.table.own.at(name)} cannot be read: {error}.") from None

    def _commit(
        self, make: Callable[[Transaction], LedgerEntry]
    ) -> tuple[Transaction, LedgerEntry]:
        """Commit an entry without rows, made from what its own transaction has read."""
        for _ in range(ATTEMPTS):
            transaction = self.table.begin()
            entry = make(transaction)
            self._write(entry)
            applications = {
                self.application: entry.number,
                self._run_application: entry.state.run.id,
            }
            try:
                transaction.commit(applications)
            except UnknownOutcomeError:
                continue
            return transaction, entry
        raise LedgerError(
            f"pipeline {self.pipeline!r} could not move its ledger in {self.table.path}: others "
            f"changed the table during each of {ATTEMPTS} attempts. Start again."
        )

    def _write(self, entry: LedgerEntry) -> None:
        self.table.own.write(self.file(entry.number, entry.state.run), entry.text())

    def _remove_old(self, entry: LedgerEntry) -> None:
        """Of entries that do not count any more the newest are kept, as a history."""
        for name in self.table.own.names(self.pipeline):
            number = name.partition("-")[0]
            if number.isdigit() and int(number) <= entry.number - ENTRIES_KEPT:
                self.table.own.remove(f"{self.pipeline}/{name}")

    def _fenced(self, claim: Claim, newer: LedgerEntry | None) -> FencedError:
        if newer is not None:
            return fenced(self.pipeline, claim.run.epoch, newer.state.run)
        return FencedError(
            f"run {claim.run.epoch} of pipeline {self.pipeline!r} is fenced: the table has lost "
            "its ledger. This one wrote nothing more."
        )
