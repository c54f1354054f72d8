"""Compaction: the rows of many small commits in few large files, in a new folder.

It cannot be done in place. A reader lists a folder step by step: the names first, then each
directory by its path. Whatever is swapped in between, be it a directory or a link to all of them,
is gone when the reader comes to it, and a reader may pass over what is gone without a word, as
pyarrow does: a gap. If the names stayed the same, such a reader would take rows from both sides: a
duplicate. So nothing that readers may be looking at is ever changed or removed.

The compacted rows appear in a folder of another name, by one rename, with the ledger. The last
entry of the old folder says where the pipeline goes on, so that no run writes there any more. Both
folders are whole: readers change over when it suits them, and the old one is removed when none is
left.
"""

import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow.parquet as pq

from tallygate.core.ledger import Claim, LedgerEntry, Run
from tallygate.core.offsets import Range, TopicPartition
from tallygate.errors import LedgerError, TargetError
from tallygate.targets.base import UnknownOutcomeError
from tallygate.targets.parquet.folder import COMPACTION, LEDGER, Folder, is_closed, sync
from tallygate.targets.parquet.ledger import FolderLedger
from tallygate.targets.parquet.letters import read_letters, write_letters
from tallygate.targets.parquet.rows import RowFile

ROWS_AT_ONCE = 64 * 1024


@dataclass(frozen=True)
class FolderCompaction:
    """What a compaction made of what."""

    rows: int
    files_before: int
    files: int


def compact_folder(source: Folder, into: Folder, *, target_bytes: int) -> FolderCompaction:
    """Write the rows of `source` into a new folder, in files of about so many bytes.

    The old folder is closed before the new one appears: if a commit came in between, its number is
    taken and nothing appears; if the program dies in between, the folder that the old one leads to
    does not exist, and then it counts as open."""
    if into.path.exists():
        raise TargetError(f"{into.path} exists already; compaction makes a new folder.")
    if into.path.is_relative_to(source.path):
        raise TargetError(f"{into.path} is in {source.path}, whose readers would see it too.")
    if source.newest() is None:
        raise TargetError(
            f"no pipeline has written to {source.path}; name the folder of a Parquet sink."
        )
    try:
        return _compact(source, into, target_bytes)
    except (OSError, UnknownOutcomeError) as error:
        raise TargetError(
            f"{source.path} cannot be compacted into {into.path}: {error}."
        ) from error


def _compact(source: Folder, into: Folder, target_bytes: int) -> FolderCompaction:
    with _alone(source) as (ledger, claim):
        entries = list(source.entries())
        into.hidden.mkdir(parents=True, exist_ok=True)
        building = Folder(into.hidden / f"{COMPACTION}{uuid.uuid4().hex}")
        try:
            done = _build(source, entries, building, target_bytes)
            ledger.commit(claim, entries[-1], ledger.fresh(claim), moved_to=str(into.path))
            building.path.rename(into.path)
        finally:
            shutil.rmtree(building.path, ignore_errors=True)
        sync(into.path.parent)
    return done


@contextmanager
def _alone(source: Folder) -> Iterator[tuple[FolderLedger, Claim]]:
    """Write while no run is alive on this machine. A run on another one, which a file system may
    hide from the lock, is fenced like any older run."""
    lock = source.lock(alone=True)
    if lock is None:
        raise TargetError(f"a run is writing to {source.path}; stop the pipeline first.")
    newest = source.newest()
    assert newest is not None
    ledger = FolderLedger(source, newest.pipeline)
    claim = Claim(newest.pipeline, Run.mine(newest.state.run.epoch + 1))
    try:
        if is_closed(newest):
            raise TargetError(f"{source.path} was compacted into {newest.moved_to} already.")
        ledger.commit(claim, newest, ledger.fresh(claim))
        yield ledger, claim
    finally:
        ledger.end(claim)
        os.close(lock)


def _build(
    source: Folder, entries: Sequence[LedgerEntry], into: Folder, target_bytes: int
) -> FolderCompaction:
    into.path.mkdir()
    rows = before = files = 0
    for group in _groups(source, entries, target_bytes):
        parts = [part for entry in group for part in _parts(source, entry)]
        commit = into.commit(group[-1].number)
        commit.mkdir()
        entry = _together(group)
        made = _merge(parts, commit, entry, target_bytes)
        letters = [each for e in group for each in read_letters(source.commit(e.number))]
        write_letters(commit, letters)
        (commit / LEDGER).write_text(entry.text())
        sync(commit / LEDGER)
        sync(commit)
        rows, before, files = rows + entry.rows, before + len(parts), files + made
    sync(into.path)
    return FolderCompaction(rows, before, files)


def _groups(
    source: Folder, entries: Sequence[LedgerEntry], target_bytes: int
) -> Iterator[list[LedgerEntry]]:
    """Commits that follow each other, until they hold enough for a file."""
    group: list[LedgerEntry] = []
    size = 0
    for entry in entries:
        group.append(entry)
        size += sum(part.stat().st_size for part in _parts(source, entry))
        if size >= target_bytes:
            yield group
            group, size = [], 0
    if group:
        yield group


def _parts(source: Folder, entry: LedgerEntry) -> list[Path]:
    return sorted(source.commit(entry.number).glob("part-*.parquet"))


def _together(group: Sequence[LedgerEntry]) -> LedgerEntry:
    """The last entry of a group, which stands for all of it."""
    ranges: dict[TopicPartition, Range] = {}
    for each in (each for entry in group for each in entry.ranges):
        known = ranges.get(each.topic_partition, each)
        ranges[each.topic_partition] = replace(each, start=known.start)
    batches = [entry.batch for entry in group if entry.batch is not None]
    return replace(
        group[-1],
        batch=batches[-1] if batches else None,
        ranges=tuple(ranges.values()),
        rows=sum(entry.rows for entry in group),
    )


def _merge(parts: Sequence[Path], commit: Path, entry: LedgerEntry, target_bytes: int) -> int:
    """Copy rows file by file, a block at a time; the count must come out."""
    files: list[RowFile] = []
    for part in parts:
        with pq.ParquetFile(part) as file:
            for block in file.iter_batches(ROWS_AT_ONCE):
                if not files or files[-1].size >= target_bytes:
                    for full in files[-1:]:
                        full.close()
                    name = f"part-{entry.number:012d}-{len(files):05d}.parquet"
                    files.append(RowFile(commit / name, file.schema_arrow))
                files[-1].add(block)
    for last in files[-1:]:
        last.close()
    rows = sum(file.rows for file in files)
    if rows != entry.rows:
        raise LedgerError(
            f"the files up to commit {entry.number} hold {rows} rows, and the ledger says "
            f"{entry.rows}: the folder is damaged, so nothing was compacted."
        )
    return len(files)
