"""Dead letters of a Delta table: a file each, in the table's folder.

    TABLE/_tallygate/PIPELINE/letters/TOPIC/PARTITION/SHELF/OFFSET.json

Workers write them while they decode, so one may be written twice, by a task that runs again, or
for a batch that is never committed. A file is named after its record, so the second one takes the
place of the first; and only those count that the ledger has moved past. A shelf holds the dead
letters of so many offsets that it is quick to list.

Workers are Python, so the files are written by pyarrow's file systems.
"""

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyarrow import fs

from tallygate.core.letters import Coordinates, Letter
from tallygate.core.offsets import Positions, Range, TopicPartition, is_forgotten, topic_of
from tallygate.targets.task_report import StepError

SHELF = 10_000
_COLON = "~"


@dataclass(frozen=True)
class LetterFolder:
    """It travels to the workers."""

    folder: str

    def keep(self, letters: list[Letter]) -> None:
        files, root = _opened(self.folder)
        local = isinstance(files, fs.LocalFileSystem)
        if local and not (Path(root).parents[2] / "_delta_log").is_dir():
            raise StepError(
                "denied",
                f"the Delta table {Path(root).parents[2]}, which the driver sees, is not here: it "
                "must be on a file system that all executors share with the driver.",
            )
        for letter in letters:
            shelf = f"{root}/{letter.topic}/{letter.partition}/{letter.offset // SHELF}"
            name = f"{shelf}/{letter.offset}.json"
            # A local file is seen while it is written, so it gets its name when it is whole.
            partial = f"{shelf}/.{uuid.uuid4().hex}" if local else name
            files.create_dir(shelf, recursive=True)
            with files.open_output_stream(partial) as stream:
                stream.write(letter.text().encode())
            if local:
                files.move(partial, name)

    def letter(self, at: Coordinates) -> Letter:
        """The dead letter of a record."""
        files, root = _opened(self.folder)
        topic, partition, offset = at
        folders = [topic, *(each for each in _names(files, root) if each.endswith(f"~{topic}"))]
        held = next(
            each
            for each in map(_named, folders)
            if len(folders) == 1 or self.offsets((each, partition), offset, offset + 1)
        )
        name = f"{_within(root, (held, partition))}/{offset // SHELF}/{offset}.json"
        with files.open_input_stream(name) as stream:
            return Letter.read(stream.read().decode())

    def causes(self, ranges: Iterable[Range]) -> Iterator[str]:
        """Why the first records of each range are dead letters."""
        for each in ranges:
            for offset in sorted(self.offsets(each.topic_partition, each.start, each.until))[:100]:
                yield self.letter((*each.topic_partition, offset)).cause

    def follow_names(self, positions: Positions) -> None:
        """Bring the dead letters of topics that were forgotten to the names that the ledger has for
        them. If that is cut off, the next start goes on with it."""
        files, root = _opened(self.folder)
        done, known = _names(files, root), {topic for topic, _ in positions}
        for name in sorted(filter(is_forgotten, known)):
            if f"{_folder_of(name)}.moved" in done:
                continue
            for (held, number), until in positions.items():
                if held == name and topic_of(name) not in known:
                    self._rename(files, root, (topic_of(name), number), (name, number), until)
            files.create_dir(f"{root}/{_folder_of(name)}.moved", recursive=True)

    def _rename(
        self, files: Any, root: str, old: TopicPartition, new: TopicPartition, until: int
    ) -> None:
        for offset in self.offsets(old, 0, until):
            shelf = f"{_within(root, new)}/{offset // SHELF}"
            files.create_dir(shelf, recursive=True)
            before = f"{_within(root, old)}/{offset // SHELF}/{offset}.json"
            files.move(before, f"{shelf}/{offset}.json")

    def remove_beyond(self, positions: Positions) -> None:
        """Remove dead letters of batches that were never committed."""
        files, root = _opened(self.folder)
        for folder in _names(files, root):
            for number in _names(files, f"{root}/{folder}"):
                partition = _named(folder), int(number)
                for offset in self.offsets(partition, positions.get(partition, 0), None):
                    files.delete_file(f"{root}/{folder}/{number}/{offset // SHELF}/{offset}.json")

    def before(self, positions: Positions) -> list[Coordinates]:
        """The records whose dead letters count: the ledger has moved past them."""
        return [
            (*partition, offset)
            for partition, until in positions.items()
            for offset in self.offsets(partition, 0, until)
        ]

    def offsets(self, partition: TopicPartition, start: int, until: int | None) -> list[int]:
        """The offsets of the dead letters of a range."""
        files, root = _opened(self.folder)
        folder = _within(root, partition)
        found: list[int] = []
        for shelf in map(int, _names(files, folder)):
            if shelf < start // SHELF or (until is not None and shelf * SHELF >= until):
                continue
            names = [name.removesuffix(".json") for name in _names(files, f"{folder}/{shelf}")]
            found += [int(name) for name in names if name.isdigit()]
        return [at for at in found if at >= start and (until is None or at < until)]


def _folder_of(topic: str) -> str:
    """No file system minds it, and no topic has it in its name."""
    return topic.replace(":", _COLON)


def _named(folder: str) -> str:
    return folder.replace(_COLON, ":")


def _within(root: str, partition: TopicPartition) -> str:
    return f"{root}/{_folder_of(partition[0])}/{partition[1]}"


def _opened(folder: str) -> tuple[Any, str]:
    """The file system of a folder as Hadoop writes it, and its path there."""
    scheme = urlsplit(folder).scheme
    if scheme in ("", "file"):
        return fs.LocalFileSystem(), "/" + folder.removeprefix("file:").lstrip("/")
    files, path = fs.FileSystem.from_uri(
        folder.replace(f"{scheme}:", "s3:", 1) if scheme in ("s3a", "s3n") else folder
    )
    return files, path


def _names(files: Any, folder: str) -> list[str]:
    listed = files.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    return [info.base_name for info in listed]
