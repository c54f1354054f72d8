"""A folder of commits on a POSIX file system, and the one step by which a commit appears in it.

    payments/commit=000000000042/part-000000000042-00000.parquet    rows
                                 _ledger.json                       the ledger's entry
                                 _letters.jsonl                     dead letters, if there are any
    .payments.tallygate/                                            what is not committed yet

**Every commit is one rename.** A writer fills a directory beside the folder, where no reader of the
folder looks, and renames it into the folder: rows, dead letters and ledger are there at once or not
at all, however a reader lists the folder. From then on nothing in it is changed.

**The rename is the compare-and-set.** A commit's number follows that of the newest entry that its
writer had read. If another commit took the number, the file system refuses to put one directory in
the place of another that is not empty. So of two writers that read the same entry one succeeds, and
the other finds out who it was.

The name `commit=N` is what Spark, DuckDB and others take for a partition: they can choose by it.
Names that begin with an underscore or a dot are no data for any of them.
"""

import errno
import fcntl
import os
import re
import shutil
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tallygate.core.ledger import LedgerEntry
from tallygate.core.offsets import MovedError
from tallygate.errors import ConfigError, LedgerError, TargetError

LEDGER = "_ledger.json"
LETTERS = "_letters.jsonl"
PARTITION = "commit"
COMPACTION = "compaction-"
_COMMIT = re.compile(rf"{PARTITION}=(\d{{12}})")
_RUN = re.compile(r"run-(\d+)-.+")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


@dataclass(frozen=True)
class Folder:
    path: Path

    @classmethod
    def at(cls, text: str) -> "Folder":
        """The folder that a pipeline names; it need not exist."""
        scheme = _SCHEME.match(text)
        if scheme is not None and scheme[1].lower() != "file":
            raise ConfigError(
                f"sink.parquet {text!r} is not a folder of this machine: only a POSIX file system "
                "can make a whole batch appear by one rename."
            )
        plain = urllib.parse.unquote(urllib.parse.urlsplit(text).path) if scheme else text
        return cls(Path(plain).resolve())

    @property
    def hidden(self) -> Path:
        """Beside the folder, so that no listing of it leads here; on the same file system, so that
        a directory can be renamed from here."""
        return self.path.parent / f".{self.path.name}.tallygate"

    def commit(self, number: int) -> Path:
        return self.path / f"{PARTITION}={number:012d}"

    def prepare(self) -> None:
        """Make the folder, or check that nothing is in it that readers would take for rows."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.hidden.mkdir(exist_ok=True)
            names = [path.name for path in self.path.iterdir()]
        except OSError as error:
            raise TargetError(
                f"the pipeline cannot write the folder {self.path}: {error.strerror}."
            ) from None
        if self.path.stat().st_dev != self.hidden.stat().st_dev:
            raise TargetError(
                f"{self.path} is a file system of its own, and what is not committed yet must be "
                "beside it; choose a folder one level below."
            )
        foreign = sorted(n for n in names if n[0] not in "._" and not _COMMIT.fullmatch(n))
        if foreign:
            raise TargetError(
                f"{self.path} holds {foreign[0]!r}, which is not a commit of a pipeline: readers "
                "would take it for rows. Choose a folder that is empty or new."
            )

    def entry(self, number: int) -> LedgerEntry | None:
        try:
            return LedgerEntry.parse((self.commit(number) / LEDGER).read_text())
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise LedgerError(f"{self.commit(number) / LEDGER} cannot be read: {error}.") from None

    def numbers(self) -> list[int]:
        if not self.path.exists():
            return []
        found = map(self.number, self.path.iterdir())
        return sorted(number for number in found if number is not None)

    def number(self, path: Path) -> int | None:
        """Which commit a directory is, if it is one."""
        match = _COMMIT.fullmatch(path.name)
        return int(match[1]) if match else None

    def entries(self) -> Iterator[LedgerEntry]:
        """All entries, from the oldest on."""
        return map(self._entry_there, self.numbers())

    def newest(self, since: LedgerEntry | None = None) -> LedgerEntry | None:
        """The ledger. `since` is an entry that was the newest: most often it still is, and then
        nothing has to be listed. In a folder that took the place of another the entry of that
        number is another one."""
        there = None if since is None else self.entry(since.number)
        if since is None or there is None or there.id != since.id:
            numbers = self.numbers()
            if not numbers:
                return None
            since = self._entry_there(numbers[-1])
        while (following := self.entry(since.number + 1)) is not None:
            since = following
        return since

    def _entry_there(self, number: int) -> LedgerEntry:
        found = self.entry(number)
        if found is None:
            raise LedgerError(
                f"{self.commit(number)} has lost its {LEDGER}. Bring the file back, or restore "
                "the folder from a backup."
            )
        return found

    def publish(self, staged: Path, entry: LedgerEntry) -> None:
        """Make a filled directory the commit of its number, or raise: then it is not there.

        **An unanswered commit is neither done nor failed**: a file system over a network may rename
        and then report an error, so the entry that is there tells whose it is."""
        target = self.commit(entry.number)
        try:
            staged.rename(target)
        except OSError as error:
            there = self.entry(entry.number)
            if there is None and error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            if there is None or there.id != entry.id:
                raise MovedError(f"another writer committed {target}.") from error
        sync(self.path)

    def run_path(self, epoch: int, name: str) -> Path:
        """Where a run keeps what it has not committed."""
        return self.hidden / f"run-{epoch:06d}-{name}"

    def sweep(self, epoch: int) -> None:
        """Remove what runs before `epoch` left, and what compactions that died were making of this
        folder, which exists now. Nothing else: what can still be committed must lose no file."""
        for path in self.hidden.iterdir():
            match = _RUN.fullmatch(path.name)
            if path.name.startswith(COMPACTION) or (match and int(match[1]) < epoch):
                shutil.rmtree(path, ignore_errors=True)

    def lock(self, *, alone: bool) -> int | None:
        """Keep this folder from being compacted, or, `alone`, from being written meanwhile; None if
        another program does what excludes that. Closing the file, or dying, gives the lock up."""
        handle = os.open(self.hidden / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        return handle


def is_closed(entry: LedgerEntry) -> bool:
    """Whether a finished compaction closed the folder with this entry: a compaction that died has
    not made the folder that the entry names."""
    return entry.moved_to is not None and Path(entry.moved_to).exists()


def sync(path: Path) -> None:
    """Have a file, or the names in a directory, outlast a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
