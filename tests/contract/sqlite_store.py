"""SQLite in the contract suite."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.harness import Store
from contract.source import At, place_of
from contract.sqlite_target import SqliteTarget
from tallygate.core.letters import Letter

__all__ = ["SqliteStore"]


@dataclass(frozen=True, kw_only=True)
class SqliteStore(Store):
    folder: str

    @property
    def file(self) -> Path:
        return Path(self.folder) / f"{self.at}.sqlite"

    def make(self) -> None:
        check = "CHECK (id % 10 <> 3)" if self.refuses else ""
        with closing(sqlite3.connect(self.file)) as connection:
            connection.execute(
                f"CREATE TABLE rows (id INT {check}, account, _topic, _partition, _offset)"
            )

    def target(self) -> SqliteTarget:
        by_task = self.strategy == "partition"
        return SqliteTarget(
            self.file, "rows", pipeline=self.pipeline, delivery=self.delivery, by_task=by_task
        )

    def rows(self) -> list[At]:
        found = self._query("SELECT id, _partition, _offset FROM rows")
        assert all(place_of(id) == (partition, offset) for id, partition, offset in found)
        return [place_of(id) for id, *_ in found]

    def causes(self) -> list[tuple[At, str]]:
        found = self._query("SELECT letter FROM tallygate_dead_letters")
        letters = [Letter.read(text) for (text,) in found]
        return [((letter.partition, letter.offset), letter.cause) for letter in letters]

    def _query(self, query: str) -> list[Any]:
        with closing(sqlite3.connect(self.file, timeout=30)) as connection:
            return connection.execute(query).fetchall()
