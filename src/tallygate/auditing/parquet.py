"""What the ledger in a folder of Parquet claims, and the rows that a reader of the folder sees.

The folder is listed once. A commit's directory appears whole and is never changed, and the entry of
the newest one says where the ledger is after it and all before: the commits of one listing are one
moment. Whatever else is in the folder that a reader would take for rows counts as rows too.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tallygate.auditing.ledger_snapshot import Claims, Commit
from tallygate.auditing.verdict import Anomaly
from tallygate.core.ledger import LedgerEntry
from tallygate.core.letters import Coordinates
from tallygate.core.offsets import Range
from tallygate.errors import LedgerError
from tallygate.targets.parquet.folder import Folder, is_closed
from tallygate.targets.parquet.letters import read_letters

__all__ = ["FolderEvidence", "folder_evidence"]


@dataclass(frozen=True)
class FolderEvidence:
    spark: SparkSession
    folder: Folder
    files: tuple[Path, ...]
    claims: Claims
    schema: Callable[[], StructType]
    """Of the rows that the pipeline makes, for a folder without files."""
    refuses = False

    @property
    def target(self) -> str:
        return f"folder {self.folder.path}"

    def rows(self, within: Sequence[Range] | None = None) -> DataFrame:
        if not self.files:
            return self.spark.createDataFrame([], self.schema())
        return self.spark.read.parquet(*map(str, self.files))

    def shaped(self, frame: DataFrame, *, has_coordinates: bool) -> DataFrame:
        return frame

    def letter(self, at: Coordinates) -> str | None:
        for commit in self.claims.history:
            if commit.covers(at[:2], at[2]):
                for each in read_letters(self.folder.commit(commit.number)):
                    if each.at == at:
                        return each.cause
        return None

    def own(self, expected: DataFrame, checked: Sequence[Range]) -> list[Anomaly]:
        return []


@contextmanager
def folder_evidence(
    text: str, pipeline: str, spark: SparkSession, schema: Callable[[], StructType]
) -> Iterator[FolderEvidence]:
    folder = Folder.at(text)
    names = sorted(folder.path.iterdir()) if folder.path.is_dir() else []
    entries = list(folder.entries())
    if not entries or entries[-1].pipeline != pipeline:
        raise LedgerError(f"pipeline {pipeline!r} has never written to {folder.path}.")
    newest = entries[-1]
    if is_closed(newest):
        raise LedgerError(
            f"{folder.path} was compacted into {newest.moved_to}, where pipeline {pipeline!r} goes "
            "on: set sink.parquet to it."
        )
    kept = [entry for entry in entries if folder.commit(entry.number) in names]
    files = [file for path in names if _seen(path) for file in _files(path)]
    letters = [each for e in kept for each in read_letters(folder.commit(e.number))]
    claims = _claims(kept, frozenset((e.topic, e.partition, e.offset) for e in letters))
    yield FolderEvidence(spark, folder, tuple(files), claims, schema)


def _claims(entries: Sequence[LedgerEntry], letters: frozenset[tuple[str, int, int]]) -> Claims:
    state = entries[-1].state
    return Claims(
        {
            partition: Range(*partition, state.begun.get(partition, until), until)
            for partition, until in state.positions.items()
        },
        tuple(each.range for each in state.lost),
        letters,
        state.topic_ids,
        history=tuple(
            Commit(each.number, each.state.run.epoch, each.batch, each.ranges, each.rows, each.time)
            for each in entries
        ),
    )


def _files(path: Path) -> list[Path]:
    """The files of rows in what a folder lists, as Spark and others look for them."""
    if path.is_dir():
        return [file for each in sorted(path.iterdir()) if _seen(each) for file in _files(each)]
    return [path]


def _seen(path: Path) -> bool:
    return path.name[0] not in "._"
