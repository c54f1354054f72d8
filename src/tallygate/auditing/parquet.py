"""What the ledger in a folder of Parquet claims, and the rows that a reader of the folder sees.

The newest commit is looked for first, and only then is the folder listed. A commit's directory
appears whole, after all before it, and is never changed: so the listing has that commit and all
before it, which are one moment, and what was committed meanwhile is passed over. Whatever else is
in the folder that a reader would take for rows counts as rows too.
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
    newest = folder.newest()
    if newest is None or newest.pipeline != pipeline:
        raise LedgerError(f"pipeline {pipeline!r} has never written to {folder.path}.")
    if is_closed(newest):
        raise LedgerError(
            f"{folder.path} was compacted into {newest.moved_to}, where pipeline {pipeline!r} goes "
            "on: set sink.parquet to it."
        )
    entries, files = _up_to(folder, newest.number)
    letters = [each for e in entries for each in read_letters(folder.commit(e.number))]
    claims = _claims(entries, frozenset((e.topic, e.partition, e.offset) for e in letters))
    yield FolderEvidence(spark, folder, tuple(files), claims, schema)


def _up_to(folder: Folder, newest: int) -> tuple[list[LedgerEntry], list[Path]]:
    """The entries up to a commit, and the files that were there with it."""
    entries = [each for each in folder.entries() if each.number <= newest]
    listed = [path for path in sorted(folder.path.iterdir()) if _seen(path)]
    then = [path for path in listed if (folder.number(path) or 0) <= newest]
    return entries, [file for path in then for file in _files(path)]


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
