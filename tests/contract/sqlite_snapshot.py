"""What a file of SQLite holds at one moment: one transaction has read it all."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from tallygate.core.ledger import LedgerEntry, LedgerState
from tallygate.core.ledger_snapshot import LedgerSnapshot
from tallygate.core.letters import Coordinates, Letter
from tallygate.core.offsets import Range
from tallygate.targets.snapshot import Snapshot


@dataclass(frozen=True, kw_only=True)
class SqliteSnapshot(Snapshot):
    refuses: bool = True
    frame: DataFrame
    causes: dict[Coordinates, str]

    @classmethod
    def of(
        cls, name: str, entry: LedgerEntry | None, letters: Sequence[Letter], frame: DataFrame
    ) -> "SqliteSnapshot":
        state = LedgerState() if entry is None else entry.state
        causes = {each.at: each.cause for each in letters}
        return cls(name=name, ledger=LedgerSnapshot.of(state, causes), frame=frame, causes=causes)

    def rows(self, within: Sequence[Range] | None = None) -> DataFrame:
        return self.frame

    def letter(self, at: Coordinates) -> str | None:
        return self.causes.get(at)
