"""Dead letters of a folder: found by tasks, kept by the commit of their batch.

A task that decodes does not know which batch it works for, nor whether it is the first to try. It
leaves what is unfit in a file beside the folder, and its result names the file. The commit takes
from all these files the dead letters that lie in its own ranges, each once: what a repeated task
found again is the same one. A file that a result names and the driver does not find stops it.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tallygate.core.letters import Letter
from tallygate.core.offsets import Range, lies_in
from tallygate.errors import TargetError
from tallygate.targets.kept_files import KeptFiles
from tallygate.targets.parquet.folder import LETTERS, sync
from tallygate.targets.task_report import StepError


@dataclass(frozen=True)
class FoundLetters:
    """The files in which tasks leave what they find. It travels to the workers."""

    folder: str
    kept: KeptFiles = field(default_factory=KeptFiles, compare=False)

    def keep(self, letters: list[Letter]) -> None:
        """A file gets its name when it is whole, so that a killed task leaves none. The driver has
        made the folder: one that a task made by itself, on a disk of its own, no commit would
        find."""
        folder = Path(self.folder)
        if not folder.is_dir():
            raise StepError(
                "denied",
                f"{folder}, which the driver has made, is not here: the folder must be on a file "
                "system that all executors share with the driver.",
            )
        name = uuid.uuid4().hex
        partial = folder / f"{name}.partial"
        partial.write_text("".join(f"{each.text()}\n" for each in letters))
        partial.rename(folder / f"{name}.jsonl")
        self.kept.add([f"{name}.jsonl"])

    def take(self) -> "TakenLetters":
        """All that is there, which is all that successful tasks have named, or more."""
        folder, named = Path(self.folder), self.kept.names()
        names = sorted({file.name for file in folder.glob("*.jsonl")} | named)
        files = tuple(folder / name for name in names)
        gone = next((file for file in files if not file.exists()), None)
        if gone is not None:
            raise TargetError(
                f"a task left dead letters in {gone}, and the driver does not find it; the folder "
                "must be on a file system that all executors share with the driver."
            )
        letters = tuple(letter for file in files for letter in _read(file))
        return TakenLetters(files, letters, lambda: self.kept.forget(names))


@dataclass(frozen=True)
class TakenLetters:
    files: tuple[Path, ...]
    letters: tuple[Letter, ...]
    _forget: Callable[[], None]

    def within(self, ranges: Iterable[Range]) -> list[Letter]:
        """The dead letters of the ranges, each once."""
        wanted = tuple(ranges)
        found = {each.at: each for each in self.letters if lies_in(wanted, *each.at)}
        return [found[at] for at in sorted(found)]

    def forget(self) -> None:
        """The commit that took them is there: whatever lies outside its ranges was there before."""
        for file in self.files:
            file.unlink(missing_ok=True)
        self._forget()


def write_letters(commit: Path, letters: Iterable[Letter]) -> int:
    """Put dead letters into a commit's directory."""
    lines = [f"{each.text()}\n" for each in letters]
    if lines:
        (commit / LETTERS).write_text("".join(lines))
        sync(commit / LETTERS)
    return len(lines)


def read_letters(commit: Path) -> list[Letter]:
    """The dead letters of a commit."""
    return list(_read(commit / LETTERS)) if (commit / LETTERS).exists() else []


def _read(file: Path) -> Iterator[Letter]:
    with file.open() as lines:
        yield from map(Letter.read, lines)
