"""What the ledger of a Delta table claims, and the rows of that same version of the table.

One transaction of Delta's reads one version, which knows both how far the pipeline is and which
rows there are. The rows are then read as of that version, whatever is committed meanwhile.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from tallygate.auditing.ledger_snapshot import Claims, Commit
from tallygate.auditing.verdict import Anomaly
from tallygate.core.ledger import LedgerEntry
from tallygate.core.letters import Coordinates
from tallygate.core.offsets import Range
from tallygate.errors import LedgerError
from tallygate.targets.delta.ledger import TableLedger
from tallygate.targets.delta.letters import LetterFolder
from tallygate.targets.delta.table import DeltaTable


@dataclass(frozen=True)
class VersionEvidence:
    spark: SparkSession
    path: str
    version: int
    letters: LetterFolder
    claims: Claims
    refuses = False

    @property
    def target(self) -> str:
        return f"Delta table {self.path}, version {self.version}"

    def rows(self, within: Sequence[Range] | None = None) -> DataFrame:
        reader = self.spark.read.format("delta").option("versionAsOf", self.version)
        return reader.load(self.path)

    def shaped(self, frame: DataFrame, *, has_coordinates: bool) -> DataFrame:
        return frame

    def letter(self, at: Coordinates) -> str | None:
        return self.letters.cause(at[:2], at[2]) if at in self.claims.letters else None

    def own(self, expected: DataFrame, checked: Sequence[Range]) -> list[Anomaly]:
        return []


@contextmanager
def version_evidence(path: str, pipeline: str, spark: SparkSession) -> Iterator[VersionEvidence]:
    table = DeltaTable(spark, path)
    version, entry = TableLedger(table, pipeline).newest_at()
    if entry is None:
        raise LedgerError(f"pipeline {pipeline!r} has never written to {table.path}.")
    state, letters = entry.state, LetterFolder(table.own.at(f"{pipeline}/letters"))
    claims = Claims(
        {
            partition: Range(*partition, state.begun.get(partition, until), until)
            for partition, until in state.positions.items()
        },
        tuple(each.range for each in state.lost),
        frozenset(
            (*partition, offset)
            for partition, until in state.positions.items()
            for offset in letters.offsets(partition, 0, until)
        ),
        state.topic_ids,
        history=tuple(_history(table, pipeline, entry)),
    )
    yield VersionEvidence(spark, path, version, letters, claims)


def _history(table: DeltaTable, pipeline: str, newest: LedgerEntry) -> Iterator[Commit]:
    """The entries that led to the newest one, oldest first, as far back as they are known.

    A file of a run may be there whose commit never took place. Of one run all entries up to its
    last one took place; and the one before a run's first is the one whose positions it took over,
    so where two files could be that one, the history ends."""
    found: dict[int, list[LedgerEntry]] = {}
    for name in table.own.names(pipeline):
        text = table.own.read(f"{pipeline}/{name}") if name.endswith(".json") else None
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
    for entry in reversed(chain):
        yield Commit(entry.number, entry.state.run.epoch, entry.batch, entry.ranges)
