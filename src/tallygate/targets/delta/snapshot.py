"""One version of a Delta table, with the ledger and the dead letters of that version.

One transaction of Delta's reads one version, which knows both how far the pipeline is and which
rows there are. The rows are then read as of that version, whatever is committed meanwhile.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from tallygate.core.ledger import LedgerEntry
from tallygate.core.ledger_snapshot import Commit, LedgerSnapshot
from tallygate.core.letters import Coordinates
from tallygate.core.offsets import Range
from tallygate.errors import LedgerError
from tallygate.spec import Delta
from tallygate.targets.delta.ledger import TableLedger
from tallygate.targets.delta.letters import LetterFolder
from tallygate.targets.snapshot import Snapshot


@dataclass(frozen=True, kw_only=True)
class DeltaSnapshot(Snapshot):
    spark: SparkSession
    path: str
    version: int
    letters: LetterFolder
    refuses: bool = True

    def rows(self, within: Sequence[Range] | None = None) -> DataFrame:
        reader = self.spark.read.format("delta").option("versionAsOf", self.version)
        return reader.load(self.path)

    def letter(self, at: Coordinates) -> str | None:
        return self.letters.letter(at).cause if at in self.ledger.letters else None


def snapshot_of(
    sink: Delta, ledger: TableLedger, letters: LetterFolder, spark: SparkSession
) -> DeltaSnapshot:
    version, entry = newest_there(ledger)
    return DeltaSnapshot(
        name=f"Delta table {sink.delta}, version {version}",
        ledger=LedgerSnapshot.of(
            entry.state,
            letters.before(entry.state.positions),
            history=tuple(_history(ledger, entry)),
        ),
        key=sink.key,
        keeps_newest=sink.mode == "upsert",
        spark=spark,
        path=sink.delta,
        version=version,
        letters=letters,
    )


def newest_there(ledger: TableLedger) -> tuple[int, LedgerEntry]:
    """A version of the table, and the entry that counts in it, which must be there."""
    version, entry = ledger.newest_at()
    if entry is None:
        raise LedgerError(f"pipeline {ledger.pipeline!r} has never written to {ledger.table.path}.")
    return version, entry


def _history(ledger: TableLedger, newest: LedgerEntry) -> Iterator[Commit]:
    """The entries that led to the newest one, oldest first, as far back as they are known.

    A file of a run may be there whose commit never took place. Of one run all entries up to its
    last one took place; and the one before a run's first is the one whose positions it took over,
    so where two files could be that one, the history ends."""
    found: dict[int, list[LedgerEntry]] = {}
    own, pipeline = ledger.table.own, ledger.pipeline
    for name in own.names(pipeline):
        text = own.read(f"{pipeline}/{name}") if name.endswith(".json") else None
        if text is not None:
            entry = LedgerEntry.parse(text)
            found.setdefault(entry.number, []).append(entry)
    chain = [newest]
    while True:
        before = found.get(chain[-1].number - 1, [])
        same = [each for each in before if each.state.run.id == chain[-1].state.run.id]
        if len(same or before) != 1:
            break
        chain += same or before
    for each in reversed(chain):
        yield Commit(
            number=each.number, run=each.state.run.epoch, batch=each.batch, ranges=each.ranges
        )
