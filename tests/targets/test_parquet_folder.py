"""A folder of commits: one rename each, one writer at a time. No server is needed."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fixtures.readers import Watcher, rows_of
from tallygate.core.ledger import Claim, LedgerEntry
from tallygate.core.letters import Letter
from tallygate.core.offsets import MovedError, Range
from tallygate.errors import ConfigError, FencedError, LedgerError, TargetError
from tallygate.targets.parquet.folder import LEDGER, Folder
from tallygate.targets.parquet.ledger import FolderLedger
from tallygate.targets.parquet.letters import FoundLetters, read_letters, write_letters
from tallygate.targets.parquet.snapshot import up_to
from tallygate.targets.task_report import StepError
from tallygate.waiting import wait_until

COLUMNS = (("id", "int64"),)


def _opened(path: Path) -> FolderLedger:
    folder = Folder.at(str(path))
    folder.prepare()
    return FolderLedger(folder, "payments")


@dataclass(frozen=True)
class _Run:
    ledger: FolderLedger
    claim: Claim

    @classmethod
    def begun(cls, path: Path) -> "_Run":
        ledger = _opened(path)
        return cls(ledger, ledger.take_over(COLUMNS))

    def current(self) -> LedgerEntry:
        return self.ledger.current(self.claim)

    def filled(self, numbers: range, files: int = 2) -> Path:
        staged = self.ledger.fresh(self.claim)
        for index in range(files):
            part = pa.table({"id": list(numbers[index::files])})
            pq.write_table(part, staged / f"part-{index}.parquet")
        return staged

    def commit(self, before: LedgerEntry, staged: Path, rows: int) -> None:
        self.ledger.commit(self.claim, before, staged, rows=rows)

    def append(self, until: int, files: int = 2) -> None:
        before = self.current()
        at = before.state.positions.get(("t", 0), 0)
        ranges = (Range("t", 0, at, until),)
        self.ledger.commit(
            self.claim,
            before,
            self.filled(range(at, until), files),
            state=before.state.moved(ranges),
            batch=before.number,
            ranges=ranges,
            rows=until - at,
        )


@dataclass(frozen=True)
class _Growing(Folder):
    """Another commit appears whenever the newest one was looked for, or the folder was listed."""

    grow: Callable[[], None]

    def newest(self, since: LedgerEntry | None = None) -> LedgerEntry | None:
        found = super().newest(since)
        self.grow()
        return found

    def numbers(self) -> list[int]:
        found = super().numbers()
        self.grow()
        return found


def test_an_audit_counts_commits_up_to_one_moment(tmp_path: Path) -> None:
    """However many are committed while it looks."""
    run = _Run.begun(tmp_path / "rows")
    run.append(10)

    def grow() -> None:
        run.append(run.current().state.positions["t", 0] + 10)

    folder = _Growing(run.ledger.folder.path, grow)
    newest = folder.newest()
    assert newest is not None
    entries, files = up_to(folder, newest.number)
    assert [each.number for each in entries] == list(range(1, newest.number + 1))
    assert {file.parent for file in files} == {folder.commit(n) for n in (2, newest.number)}
    assert len(run.ledger.folder.numbers()) > newest.number
    (run.ledger.folder.path / "copy.parquet").touch()
    assert run.ledger.folder.path / "copy.parquet" in up_to(folder, newest.number)[1]


@pytest.mark.parametrize("path", ["s3a://bucket/x", "hdfs:/x", "http://host/x"])
def test_only_folders_of_this_machine(path: str) -> None:
    with pytest.raises(ConfigError, match="not a folder of this machine"):
        Folder.at(path)


def test_a_folder_as_a_url_is_the_same_folder(tmp_path: Path) -> None:
    wanted = (tmp_path / "a b").resolve()
    assert Folder.at(f"file://{tmp_path}/a%20b").path == wanted
    assert Folder.at(f"file:{tmp_path}/a%20b").path == wanted
    assert Folder.at(f"{tmp_path}/a b").path == wanted


def test_a_folder_with_foreign_files_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "other.parquet")
    with pytest.raises(TargetError, match="holds 'other.parquet'"):
        Folder.at(str(tmp_path)).prepare()


def test_positions_go_on_from_entry_to_entry(tmp_path: Path) -> None:
    run = _Run.begun(tmp_path / "rows")
    run.append(10)
    run.append(25)
    newest = _opened(tmp_path / "rows").newest()
    assert newest is not None
    assert newest == run.current()
    assert (newest.number, newest.state.run, newest.rows) == (3, run.claim.run, 15)
    assert (newest.state.positions, newest.state.begun) == ({("t", 0): 25}, {("t", 0): 0})
    assert [entry.rows for entry in run.ledger.folder.entries()] == [0, 10, 15]
    assert [entry.columns for entry in run.ledger.folder.entries()] == [COLUMNS] * 3
    assert rows_of(tmp_path / "rows", "id") == list(range(25))


def test_of_two_commits_with_one_number_only_one_appears(tmp_path: Path) -> None:
    run = _Run.begun(tmp_path / "rows")
    before = run.current()
    other = _Run(_opened(tmp_path / "rows"), run.claim)
    other.commit(before, other.filled(range(5)), rows=5)
    with pytest.raises(MovedError):
        run.commit(before, run.filled(range(5)), rows=5)
    assert rows_of(tmp_path / "rows", "id") == list(range(5))


def test_a_rename_that_was_done_and_not_answered_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _Run.begun(tmp_path / "rows")
    rename = Path.rename

    def unanswered(self: Path, target: Path) -> Path:
        rename(self, target)
        raise TimeoutError("the file server does not answer")

    monkeypatch.setattr(Path, "rename", unanswered)
    run.append(10)
    assert run.current().number == 2
    monkeypatch.undo()
    run.append(20)
    assert rows_of(tmp_path / "rows", "id") == list(range(20))


def test_an_older_run_is_fenced_whenever_it_had_read_the_ledger(tmp_path: Path) -> None:
    older = _Run.begun(tmp_path / "rows")
    older.append(10)
    before, staged = older.current(), older.filled(range(10, 20))
    newer = _Run.begun(tmp_path / "rows")
    with pytest.raises((MovedError, FileNotFoundError)):
        older.commit(before, staged, rows=10)
    with pytest.raises(FencedError, match=r"run 1 of pipeline 'payments' .* run 2 took over on"):
        older.current()
    newer.append(20)
    assert rows_of(tmp_path / "rows", "id") == list(range(20))


def test_a_run_never_sweeps_what_a_newer_one_stages(tmp_path: Path) -> None:
    older, newer = _Run.begun(tmp_path / "rows"), _Run.begun(tmp_path / "rows")
    staged = newer.filled(range(10))
    older.ledger.folder.sweep(older.claim.run.epoch)
    assert len(list(staged.iterdir())) == 2
    assert not older.ledger.staging(older.claim).exists()


def test_a_folder_that_is_gone_is_not_begun_again_in_mid_run(tmp_path: Path) -> None:
    run = _Run.begun(tmp_path / "rows")
    shutil.rmtree(tmp_path / "rows")
    with pytest.raises(LedgerError, match="was removed from"):
        run.current()


def test_an_entry_that_is_damaged_or_gone_is_named(tmp_path: Path) -> None:
    entry = _Run.begun(tmp_path / "rows").ledger.folder.commit(1) / LEDGER
    entry.write_text("{")
    with pytest.raises(LedgerError, match=r"_ledger.json cannot be read"):
        _opened(tmp_path / "rows").newest()
    entry.unlink()
    with pytest.raises(LedgerError, match=r"commit=0+1 has lost its _ledger.json"):
        _opened(tmp_path / "rows").newest()


def test_letters_of_a_repeated_task_count_once(tmp_path: Path) -> None:
    found = FoundLetters(str(tmp_path / "letters"))
    (tmp_path / "letters").mkdir()
    bad = Letter("t", 0, 5, "no JSON", b"k", b"\xff\x00", 1)
    text = Letter("t", 0, 6, "no JSON", None, "é".encode())
    found.keep([bad, text])
    found.keep([bad, replace(bad, offset=11), replace(bad, partition=1)])
    taken = found.take()
    assert taken.within([Range("t", 0, 0, 10)]) == [bad, text]
    assert write_letters(tmp_path, taken.within([Range("t", 0, 0, 10)])) == 2
    assert read_letters(tmp_path) == [bad, text]
    taken.forget()
    assert found.take().letters == ()


def test_letters_are_not_left_where_the_driver_would_not_find_them(tmp_path: Path) -> None:
    """On an executor's own disk, where the path of the driver's folder leads to nothing."""
    letter = Letter("t", 0, 5, "no JSON", b"k", b"v", 1)
    with pytest.raises(StepError, match="must be on a file system that all executors share"):
        FoundLetters(str(tmp_path / "letters")).keep([letter])
    assert not list(tmp_path.iterdir())


def test_a_folder_in_the_place_of_another_is_not_taken_for_it(tmp_path: Path) -> None:
    """As after a rebuild or a restored backup, whose commits have the same numbers."""
    run = _Run.begun(tmp_path / "rows")
    run.append(10)
    (tmp_path / "rows").rename(tmp_path / "away")
    other = _Run.begun(tmp_path / "rows")
    other.append(5)
    found = run.ledger.newest()
    assert found is not None
    assert found.state.positions == {("t", 0): 5}


def test_a_reader_never_sees_a_part_of_a_commit(tmp_path: Path) -> None:
    with Watcher(tmp_path / "rows") as watcher:
        run = _Run.begun(tmp_path / "rows")
        for until in range(10, 1010, 10):
            run.append(until, files=5)
    assert not watcher.wrong
    assert len(watcher.sizes) > 3


def test_the_watcher_sees_a_part_of_a_commit_and_a_commit_that_came_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: files that are moved one by one, then a ledger that is not compared."""

    def piecemeal(self: Folder, staged: Path, entry: LedgerEntry) -> None:
        self.commit(entry.number).mkdir()
        for number, path in enumerate(sorted(staged.iterdir())):
            path.rename(self.commit(entry.number) / path.name)
            if number == 10:
                wait_until(lambda: watcher.wrong, 30, "the watcher did not see the part")

    run = _Run.begun(tmp_path / "rows")
    with Watcher(tmp_path / "rows") as watcher, monkeypatch.context() as patched:
        patched.setattr(Folder, "publish", piecemeal)
        run.append(100, files=20)
    assert any("of 100 rows" in each for each in watcher.wrong)
    with Watcher(tmp_path / "rows") as watcher:
        run.commit(run.current(), run.filled(range(100)), rows=100)
        wait_until(lambda: watcher.wrong, 30, "the watcher did not see rows that came twice")
    assert "100 ids are there twice" in watcher.wrong
