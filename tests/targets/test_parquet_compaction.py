"""Few large files instead of many small ones, and no reader who sees anything but all rows."""

import os
import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fixtures.commands import Tallygate
from fixtures.flows import Flow
from fixtures.readers import files_of, rows_of
from tallygate.core.letters import Letter
from tallygate.core.offsets import MovedError, Range
from tallygate.errors import LedgerError, TargetError
from tallygate.spec import Parquet
from tallygate.targets.parquet.compaction import compact_folder
from tallygate.targets.parquet.folder import Folder, is_closed
from tallygate.targets.parquet.ledger import FolderLedger
from tallygate.targets.parquet.letters import read_letters, write_letters

COMMITS = 12
ROWS = 100


def _written(path: Path) -> Folder:
    """A folder of small commits, each with a dead letter."""
    folder = Folder.at(str(path))
    folder.prepare()
    ledger = FolderLedger(folder, "payments")
    claim = ledger.take_over((("id", "int64"),))
    for number in range(COMMITS):
        ranges = (Range("t", 0, number * ROWS, (number + 1) * ROWS),)
        before, staged = ledger.current(claim), ledger.fresh(claim)
        ids = list(range(number * ROWS, (number + 1) * ROWS))
        for index in range(2):
            part = pa.table({"id": ids[index::2], "text": ["x" * 50] * (ROWS // 2)})
            pq.write_table(part, staged / f"part-{index}.parquet")
        letters = write_letters(staged, [Letter("t", 0, number, "no JSON")])
        ledger.commit(
            claim,
            before,
            staged,
            state=before.state.moved(ranges),
            batch=number,
            ranges=ranges,
            rows=ROWS,
            letters=before.letters + letters,
        )
    ledger.end(claim)
    return folder


def test_rows_letters_and_ledger_are_in_the_new_folder(tmp_path: Path) -> None:
    old, new = _written(tmp_path / "old"), Folder(tmp_path / "new")
    before = old.newest()
    done = compact_folder(old, new, target_bytes=1 << 30)
    assert (done.rows, done.files_before, done.files) == (COMMITS * ROWS, COMMITS * 2, 1)
    for folder in (old, new):
        assert rows_of(folder.path, "id") == list(range(COMMITS * ROWS))
    entry = new.newest()
    assert before is not None
    assert entry is not None
    assert (entry.state.positions, entry.state.begun) == (
        before.state.positions,
        before.state.begun,
    )
    assert entry.letters == COMMITS
    assert entry.ranges == (Range("t", 0, 0, COMMITS * ROWS),)
    assert entry.rows == COMMITS * ROWS
    assert len(read_letters(new.commit(entry.number))) == COMMITS
    closed = old.newest()
    assert closed is not None
    assert is_closed(closed)
    with pytest.raises(TargetError, match="was compacted into"):
        compact_folder(old, Folder(tmp_path / "third"), target_bytes=1)
    with pytest.raises(TargetError, match="exists already"):
        compact_folder(old, new, target_bytes=1)
    with pytest.raises(TargetError, match="whose readers would see it too"):
        compact_folder(old, Folder(old.path / "inside"), target_bytes=1)


def test_files_come_near_the_size_that_is_wanted(tmp_path: Path) -> None:
    old, new = _written(tmp_path / "old"), Folder(tmp_path / "new")
    size = sum(Path(file).stat().st_size for file in files_of(old.path))
    done = compact_folder(old, new, target_bytes=size // 3)
    assert done.files in (3, 4)
    assert next(entry.rows for entry in new.entries() if entry.rows) == 4 * ROWS
    assert rows_of(new.path, "id") == list(range(COMMITS * ROWS))


def test_a_running_pipeline_is_not_compacted_and_a_compacted_one_is_fenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = _written(tmp_path / "old")
    running = FolderLedger(old, "payments")
    claim = running.take_over((("id", "int64"),))
    with pytest.raises(TargetError, match="stop the pipeline first"):
        compact_folder(old, Folder(tmp_path / "new"), target_bytes=1)
    before, staged = running.current(claim), running.fresh(claim)
    monkeypatch.setattr(Folder, "lock", lambda *_, **__: os.open(tmp_path, os.O_RDONLY))
    compact_folder(old, Folder(tmp_path / "new"), target_bytes=1)
    with pytest.raises(MovedError):
        running.commit(claim, before, staged)


def test_a_damaged_folder_is_left_as_it_is(tmp_path: Path) -> None:
    old = _written(tmp_path / "old")
    next(old.commit(5).glob("part-*")).unlink()
    with pytest.raises(LedgerError, match="the folder is damaged"):
        compact_folder(old, Folder(tmp_path / "new"), target_bytes=1 << 30)
    assert not (tmp_path / "new").exists()
    newest = old.newest()
    assert newest is not None
    assert not is_closed(newest)


def test_a_compaction_that_died_before_its_folder_appeared_is_none(tmp_path: Path) -> None:
    old = _written(tmp_path / "old")
    compact_folder(old, Folder(tmp_path / "new"), target_bytes=1 << 30)
    shutil.rmtree(tmp_path / "new")
    compact_folder(old, Folder(tmp_path / "again"), target_bytes=1 << 30)
    assert rows_of(tmp_path / "again", "id") == list(range(COMMITS * ROWS))


def _looks(path: Path, until: threading.Event) -> set[int]:
    """How many rows a reader saw who never stopped looking; a reader may hear that files are gone,
    but must not see fewer rows and take them for all."""
    seen = set()
    while not until.is_set():
        try:
            seen.add(len(rows_of(path, "id")))
        except FileNotFoundError:
            continue
    return seen


def test_readers_of_either_folder_see_all_rows_or_none_while_it_is_compacted(
    tmp_path: Path,
) -> None:
    old, new = _written(tmp_path / "old"), Folder(tmp_path / "new")
    done = threading.Event()
    seen: dict[str, set[int]] = {}
    threads = [
        threading.Thread(target=lambda f=folder: seen.update({f.path.name: _looks(f.path, done)}))
        for folder in (old, new)
    ]
    for thread in threads:
        thread.start()
    compact_folder(old, new, target_bytes=1 << 30)
    done.set()
    for thread in threads:
        thread.join()
    assert seen["old"] == {COMMITS * ROWS}
    assert seen["new"] <= {0, COMMITS * ROWS}


def test_swapping_folders_under_a_reader_would_show_gaps(tmp_path: Path) -> None:
    """The twin, and why compaction makes a new folder: a link that is replaced at once is not seen
    at once by a reader who lists step by step."""
    old, new, link = _written(tmp_path / "old"), Folder(tmp_path / "new"), tmp_path / "link"
    compact_folder(old, new, target_bytes=1 << 30)
    link.symlink_to(old.path)
    done = threading.Event()

    def swap() -> None:
        """Back and forth, as often as it takes."""
        for target in [new.path, old.path] * 100_000:
            if done.wait(0.001):
                return
            (tmp_path / "next").symlink_to(target)
            (tmp_path / "next").replace(link)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        while True:
            try:
                if len(rows_of(link, "id")) != COMMITS * ROWS:
                    break
            except FileNotFoundError:
                continue
            except pa.ArrowInvalid:  # one folder's file, at the length of the other's
                break
    finally:
        done.set()
        swapping.join()


def test_a_pipeline_goes_on_in_the_new_folder(flow: Flow, tallygate: Tallygate) -> None:
    old, new = flow.folder / "old", flow.folder / "new"
    flow.send(250)
    flow.run(sink=Parquet(str(old), driver_rows=0))
    told = tallygate("compact", str(old), str(new), "--target", "1GB").stdout
    assert "250 rows in 1 files" in told
    flow.send(50)
    with pytest.raises(TargetError, match="goes on there: set sink.parquet"):
        flow.run(sink=Parquet(str(old)))
    flow.run(sink=Parquet(str(new)))
    assert rows_of(new, "id") == list(range(300))
    assert rows_of(old, "id") == list(range(250))
