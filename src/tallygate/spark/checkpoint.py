"""Spark's checkpoint, as far as the ledger needs it: which offsets a batch stands for.

    CHECKPOINT/metadata        the query's id
    CHECKPOINT/offsets/N       batch N's end: a version line, a line of settings, a line of JSON
                               offsets for each source; its start is the end of batch N - 1
    CHECKPOINT/commits/N       there once batch N is done
    CHECKPOINT/sources/I/0     where source I began, if it is Kafka

Sources that are not Kafka count too: files by the entries of their log, rows and lines by number.
What such a position stands for is known to this checkpoint alone; the ledger keeps it as the
partition 0 of a topic `source:I`.

It may be on HDFS or in an object store.
"""

import json
import time
from collections.abc import Iterable, Mapping

from pyspark.sql import SparkSession

from tallygate.core.offsets import OTHER_SOURCE, Range, TopicPartition
from tallygate.errors import LedgerError
from tallygate.spark.files import Folder


class Checkpoint(Folder):
    def __init__(self, spark: SparkSession, path: str) -> None:
        super().__init__(spark, path)
        self._known: tuple[int, dict[TopicPartition, int]] | None = None

    @property
    def id(self) -> str | None:
        """The query's id; a new checkpoint gets another one."""
        text = self.read("metadata")
        return None if text is None else str(json.loads(text)["id"])

    @property
    def committed(self) -> int | None:
        """The last batch that Spark has logged as done."""
        return self._last("commits")

    @property
    def next_batch(self) -> int:
        done = self.committed
        return 0 if done is None else done + 1

    @property
    def planned(self) -> int | None:
        """The last batch whose offsets Spark has logged."""
        return self._last("offsets")

    def end(self, batch: int) -> dict[TopicPartition, int] | None:
        """Where batch `batch` ends, if its entry is there."""
        text = self.read(f"offsets/{batch}")
        if text is None:
            return None
        lines = text.splitlines()
        if lines[0] != "v1":
            raise LedgerError(
                f"{self.path}/offsets/{batch} is of a version that is not known here."
            )
        return _positions(enumerate(lines[2:]))

    def setting(self, name: str) -> str | None:
        """What a setting was when the last batch was planned: the state depends on some."""
        last = self.planned
        text = None if last is None else self.read(f"offsets/{last}")
        if text is None:
            return None
        found: str | None = json.loads(text.splitlines()[1]).get("conf", {}).get(name)
        return found

    @property
    def batches(self) -> list[int]:
        """The batches whose offsets are logged; Spark keeps the last hundred."""
        return self._numbers("offsets")

    def watermark(self, batch: int) -> int | None:
        """What was too late for batch `batch`: milliseconds since 1970, 0 if nothing was."""
        text = self.read(f"offsets/{batch}")
        return None if text is None else int(json.loads(text.splitlines()[1])["batchWatermarkMs"])

    def ranges(self, batch: int) -> tuple[Range, ...]:
        """The ranges that a batch stands for."""
        end = self.end(batch)
        if end is None:
            raise LedgerError(f"{self.path} has no offsets of batch {batch}.")
        if self._known is not None and self._known[0] == batch - 1:
            start = self._known[1]
        else:
            start = self.start(batch)
        self._known = batch, end
        return tuple(
            Range(topic, partition, start.get((topic, partition), 0), until)
            for (topic, partition), until in sorted(end.items())
        )

    def start(self, batch: int) -> dict[TopicPartition, int]:
        before = self.end(batch - 1) if batch > 0 else None
        return self._beginning() if before is None else before

    def _beginning(self) -> dict[TopicPartition, int]:
        begun: dict[TopicPartition, int] = {}
        for number in self._numbers("sources"):
            text = self.read(f"sources/{number}/0")
            if text is not None:
                begun |= _kafka_positions(text.lstrip("\0").splitlines()[-1]) or {}
        return begun

    def seed(
        self,
        positions: Mapping[TopicPartition, int],
        halfway: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Make a new checkpoint whose next batch begins at these positions. If it ends `halfway`,
        it is planned already, and Spark repeats it as one that was not finished."""
        self.replace("offsets/0", _entry(positions))
        if halfway is not None:
            self.replace("offsets/1", _entry(halfway))
        self.replace("commits/0", 'v1\n{"nextBatchWatermarkMs":0}')

    def set_aside(self, suffix: str) -> str:
        """Rename the folder, so that nothing of it is lost and nothing of it is used."""
        path = self.path
        aside = f"{path.rstrip('/')}.{suffix}"
        while self._files.exists(self._path(aside)):
            aside += "-again"
        self.move(aside)
        self.path, self._known = path, None
        return aside

    def move(self, path: str) -> None:
        """Move the folder; nothing may be there yet."""
        before = self.path
        if not self.rename(path):
            raise LedgerError(f"the checkpoint {before} could not be moved to {path}.")

    def _last(self, folder: str) -> int | None:
        return max(self._numbers(folder), default=None)

    def _numbers(self, folder: str) -> list[int]:
        return sorted(int(name) for name in self.names(folder) if name.isdigit())


def _entry(positions: Mapping[TopicPartition, int]) -> str:
    """A batch's end, as Spark writes it into its offset log."""
    offsets: dict[str, dict[str, int]] = {}
    for (topic, partition), at in sorted(positions.items()):
        offsets.setdefault(topic, {})[str(partition)] = at
    settings = {"batchWatermarkMs": 0, "batchTimestampMs": int(time.time() * 1000), "conf": {}}
    return f"v1\n{json.dumps(settings)}\n{json.dumps(offsets)}"


def _positions(lines: Iterable[tuple[int, str]]) -> dict[TopicPartition, int]:
    """The positions of all sources, by what each one's line in the offset log says."""
    found: dict[TopicPartition, int] = {}
    for number, line in lines:
        if line == "-":
            continue
        positions = _kafka_positions(line)
        if positions is None:
            positions = {(f"{OTHER_SOURCE}{number}", 0): _counted(line)}
        for topic, partition in positions:
            if (topic, partition) in found:
                raise LedgerError(
                    f"topic {topic!r} is read by two sources of this query, so one position "
                    "cannot stand for both; read it once and use that frame twice."
                )
        found |= positions
    return found


def _kafka_positions(line: str) -> dict[TopicPartition, int] | None:
    try:
        offsets = json.loads(line)
    except ValueError:
        return None
    if not isinstance(offsets, dict) or not all(isinstance(v, dict) for v in offsets.values()):
        return None
    return {
        (topic, int(partition)): at
        for topic, partitions in offsets.items()
        for partition, at in partitions.items()
    }


def _counted(line: str) -> int:
    """How many entries of its log, rows or lines a source has given."""
    position = json.loads(line)
    if isinstance(position, dict) and isinstance(position.get("logOffset"), int):
        return int(position["logOffset"]) + 1
    if isinstance(position, int):
        return position + 1
    raise LedgerError(f"the checkpoint holds a position that cannot be counted: {line[:80]}")
