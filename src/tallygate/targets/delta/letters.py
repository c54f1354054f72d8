"""Dead letters of a Delta table: a file each, in the table's folder.

    TABLE/_tallygate/PIPELINE/letters/TOPIC/PARTITION/SHELF/OFFSET-EPOCH.json
    TABLE/_tallygate/PIPELINE/turns/EPOCH.json

Workers write them while they decode, so one may be written twice, by a task that runs again, or
for a batch that is never committed. A file is named after its record, so the second one takes the
place of the first; and only those count that the ledger has moved past. A shelf holds the dead
letters of so many offsets that it is quick to list.

**One writer.** A task of a run that is fenced may still write, and what was unfit for that run may
be fit for the next one. So a file is named after its run's epoch too, and a run writes down where
the ledger was when its turn began: what an older run says of records beyond that does not count.

Workers are Python, so the files are written by pyarrow's file systems.
"""

import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyarrow import fs

from tallygate.core.letters import Coordinates, Letter
from tallygate.core.offsets import Positions, Range, TopicPartition, is_forgotten, topic_of
from tallygate.errors import TargetError
from tallygate.targets.kept_files import KeptFiles
from tallygate.targets.task_report import StepError

SHELF = 10_000
_COLON = "~"
_NAME = re.compile(r"(\d+)-(\d+)\.json")
_TURN = re.compile(r"(\d+)\.json")


@dataclass(frozen=True)
class LetterFolder:
    """It travels to the workers."""

    folder: str
    epoch: int = 0
    """Of the run that writes."""
    kept: KeptFiles = field(default_factory=KeptFiles, compare=False)

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
            shelf = f"{letter.topic}/{letter.partition}/{letter.offset // SHELF}"
            name = f"{shelf}/{letter.offset}-{self.epoch}.json"
            _write(files, f"{root}/{name}", letter.text())
            self.kept.add([name])

    def find_kept(self) -> None:
        """Look for what tasks have named; raise if the driver does not find it."""
        named = sorted(self.kept.names())
        if not named:
            return
        files, root = _opened(self.folder)
        for info in files.get_file_info([f"{root}/{name}" for name in named]):
            if info.type != fs.FileType.File:
                raise TargetError(
                    f"a task left a dead letter in {info.path}, and the driver does not find it; "
                    "the table must be on a file system that all executors share with the driver. "
                    "Its batch is committed: put the file there, or rebuild the table with "
                    "`tallygate rebuild`."
                )
        self.kept.forget(named)

    def begin_turn(self, positions: Positions) -> None:
        """Have nothing count that an older run says of records beyond."""
        files, root = _opened(self.folder)
        held = [[*partition, at] for partition, at in sorted(positions.items())]
        _write(files, f"{_turns_at(root)}/{self.epoch}.json", json.dumps(held))

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
        ((place, _), *_) = _counting(files, root, (held, partition), offset, offset + 1)
        with files.open_input_stream(place) as stream:
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
        for place, offset in _counting(files, root, old, 0, until):
            shelf = f"{_within(root, new)}/{offset // SHELF}"
            files.create_dir(shelf, recursive=True)
            files.move(place, f"{shelf}/{place.rpartition('/')[2]}")

    def remove_beyond(self, positions: Positions) -> None:
        """Remove dead letters of batches that were never committed."""
        files, root = _opened(self.folder)
        for folder in _names(files, root):
            for number in _names(files, f"{root}/{folder}"):
                partition = _named(folder), int(number)
                for place, *_ in _found(files, root, partition, positions.get(partition, 0)):
                    files.delete_file(place)

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
        return sorted({at for _, at in _counting(files, root, partition, start, until)})


def _counting(
    files: Any, root: str, partition: TopicPartition, start: int, until: int | None
) -> list[tuple[str, int]]:
    """Place and offset of the files of a range that are not of a run whose turn was over. Those of
    a topic that is forgotten have been brought there, so they count."""
    found = list(_found(files, root, partition, start, until))
    epochs = set() if is_forgotten(partition[0]) else {epoch for *_, epoch in found}
    ends = _ends_of(epochs, files, _turns_at(root))
    return [
        (place, offset)
        for place, offset, epoch in found
        if epoch not in ends or offset < ends[epoch].get(partition, 0)
    ]


def _found(
    files: Any, root: str, partition: TopicPartition, start: int, until: int | None = None
) -> Iterator[tuple[str, int, int]]:
    """The files of a range: place, offset and epoch."""
    folder = _within(root, partition)
    for shelf in map(int, _names(files, folder)):
        if shelf < start // SHELF or (until is not None and shelf * SHELF >= until):
            continue
        for name in _names(files, f"{folder}/{shelf}"):
            match = _NAME.fullmatch(name)
            offset = int(match[1]) if match else -1
            if match and offset >= start and (until is None or offset < until):
                yield f"{folder}/{shelf}/{name}", offset, int(match[2])


def _ends_of(epochs: set[int], files: Any, folder: str) -> Mapping[int, Positions]:
    """Where the turns of these epochs ended: where that of the next one began. A run that died
    before it wrote that down has moved nothing."""
    if not epochs:
        return {}
    begun = sorted(int(match[1]) for match in map(_TURN.fullmatch, _names(files, folder)) if match)
    ends: dict[int, Positions] = {}
    for epoch in epochs:
        later = next((each for each in begun if each > epoch), None)
        if later is not None:
            with files.open_input_stream(f"{folder}/{later}.json") as stream:
                held = json.loads(stream.read())
            ends[epoch] = {(topic, partition): at for topic, partition, at in held}
    return ends


def _turns_at(root: str) -> str:
    return f"{root.rpartition('/')[0]}/turns"


def _write(files: Any, name: str, text: str) -> None:
    """A local file is seen while it is written, so it gets its name when it is whole."""
    folder = name.rpartition("/")[0]
    local = isinstance(files, fs.LocalFileSystem)
    partial = f"{folder}/.{uuid.uuid4().hex}" if local else name
    files.create_dir(folder, recursive=True)
    with files.open_output_stream(partial) as stream:
        stream.write(text.encode())
    if local:
        files.move(partial, name)


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
