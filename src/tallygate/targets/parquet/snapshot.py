"""A folder of Parquet as a reader of it sees it, and the ledger of that moment.

The newest commit is looked for first, and only then is the folder listed. A commit's directory
appears whole, after all before it, and is never changed: so the listing has that commit and all
before it, which are one moment, and what was committed meanwhile is passed over. Whatever else is
in the folder that a reader would take for rows counts as rows too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tallygate.core.ledger import LedgerEntry
from tallygate.core.ledger_snapshot import Commit, LedgerSnapshot
from tallygate.core.letters import Coordinates
from tallygate.core.offsets import Range, lies_in
from tallygate.errors import LedgerError
from tallygate.targets.parquet.folder import Folder, is_closed
from tallygate.targets.parquet.letters import read_letters
from tallygate.targets.snapshot import Snapshot


@dataclass(frozen=True, kw_only=True)
class ParquetSnapshot(Snapshot):
    spark: SparkSession
    folder: Folder
    files: tuple[Path, ...]
    schema: Callable[[], StructType]
    """Of the rows that the pipeline makes, for a folder without files."""

    def rows(self, within: Sequence[Range] | None = None) -> DataFrame:
        if not self.files:
            return self.spark.createDataFrame([], self.schema())
        return self.spark.read.parquet(*map(str, self.files))

    def letter(self, at: Coordinates) -> str | None:
        commits = (each for each in self.ledger.history if lies_in(each.ranges, *at))
        letters = (each for one in commits for each in read_letters(self.folder.commit(one.number)))
        return next((each.cause for each in letters if each.at == at), None)


def snapshot_of(
    folder: Folder, pipeline: str, *, spark: SparkSession, schema: Callable[[], StructType]
) -> ParquetSnapshot:
    entries, files = up_to(folder, newest_there(folder, pipeline).number)
    letters = (each for entry in entries for each in read_letters(folder.commit(entry.number)))
    return ParquetSnapshot(
        name=f"folder {folder.path}",
        ledger=LedgerSnapshot.of(
            entries[-1].state,
            (each.at for each in letters),
            history=tuple(map(_commit, entries)),
        ),
        spark=spark,
        folder=folder,
        files=tuple(files),
        schema=schema,
    )


def newest_there(folder: Folder, pipeline: str) -> LedgerEntry:
    """The ledger of the pipeline, which must be there and go on there."""
    newest = folder.newest()
    if newest is None or newest.pipeline != pipeline:
        raise LedgerError(f"pipeline {pipeline!r} has never written to {folder.path}.")
    if is_closed(newest):
        raise LedgerError(
            f"{folder.path} was compacted into {newest.moved_to}, where pipeline {pipeline!r} goes "
            "on: set sink.parquet to it."
        )
    return newest


def up_to(folder: Folder, newest: int) -> tuple[list[LedgerEntry], list[Path]]:
    """The entries up to a commit, and the files that were there with it."""
    entries = [each for each in folder.entries() if each.number <= newest]
    listed = [path for path in sorted(folder.path.iterdir()) if _seen(path)]
    then = [path for path in listed if (folder.number(path) or 0) <= newest]
    return entries, [file for path in then for file in _files(path)]


def _commit(entry: LedgerEntry) -> Commit:
    return Commit(
        number=entry.number,
        run=entry.state.run.epoch,
        batch=entry.batch,
        ranges=entry.ranges,
        rows=entry.rows,
        at=entry.time,
    )


def _files(path: Path) -> list[Path]:
    """The files of rows in what a folder lists, as Spark and others look for them."""
    if path.is_dir():
        return [file for each in sorted(path.iterdir()) if _seen(each) for file in _files(each)]
    return [path]


def _seen(path: Path) -> bool:
    return path.name[0] not in "._"
