"""An entry of the ledger in a folder: what one commit says of itself and of all before it.

Each commit's directory holds its entry. The newest one alone tells where the pipeline is, so that
nothing has to be added up, and nothing is ever changed after it was seen.
"""

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tallygate.core.offsets import Place, Range
from tallygate.core.runs import Run, now

__all__ = ["Entry"]


@dataclass(frozen=True)
class Entry:
    """One commit. What it did itself is in `batch`, `ranges` and `rows`; the rest is the sum."""

    pipeline: str
    number: int = 0
    run: Run = field(default_factory=Run)
    id: str = ""
    """A name that no other entry has, by which a writer knows its own."""
    time: str = ""
    batch: int | None = None
    """Spark's number of the batch; None if the commit is none, as when a run begins."""
    ranges: tuple[Range, ...] = ()
    rows: int = 0
    first: Mapping[Place, int] = field(default_factory=dict)
    """Where each partition was begun."""
    positions: Mapping[Place, int] = field(default_factory=dict)
    """The next offset of each partition, after this commit."""
    lost: tuple[Range, ...] = ()
    letters: int = 0
    """Dead letters of this commit and all before."""
    columns: tuple[tuple[str, str], ...] = ()
    """Names and Arrow types of the rows."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    checkpoint_id: str | None = None
    moved_to: str | None = None
    """The folder in which the pipeline goes on, after a compaction."""

    @property
    def goes_on_elsewhere(self) -> bool:
        """Whether a compaction was finished: one that died had not made its folder yet."""
        return self.moved_to is not None and Path(self.moved_to).exists()

    def next(self, run: Run, **changes: Any) -> "Entry":
        """The entry that follows this one."""
        own: dict[str, Any] = {"batch": None, "ranges": (), "rows": 0, "moved_to": None}
        fresh = {"number": self.number + 1, "run": run, "id": uuid.uuid4().hex, "time": now()}
        return replace(self, **{**own, **changes, **fresh})

    def moved(self, ranges: Iterable[Range]) -> dict[str, Any]:
        """What changes when the ranges are done."""
        done = tuple(ranges)
        begun = {each.place: each.start for each in done}
        return {
            "first": {**begun, **self.first},
            "positions": {**self.positions, **{each.place: each.until for each in done}},
        }

    def text(self) -> str:
        fields = asdict(self)
        return json.dumps(
            {
                **fields,
                "ranges": [_range_fields(each) for each in self.ranges],
                "lost": [_range_fields(each) for each in self.lost],
                "first": _by_topic(self.first),
                "positions": _by_topic(self.positions),
            },
            indent=1,
        )

    @classmethod
    def read(cls, text: str) -> "Entry":
        fields: dict[str, Any] = json.loads(text)
        return cls(
            **{
                **fields,
                "run": Run(**fields["run"]),
                "ranges": tuple(_range(each) for each in fields["ranges"]),
                "lost": tuple(_range(each) for each in fields["lost"]),
                "first": _by_place(fields["first"]),
                "positions": _by_place(fields["positions"]),
                "columns": tuple((name, kind) for name, kind in fields["columns"]),
            }
        )


def _range_fields(each: Range) -> dict[str, Any]:
    return {
        "topic": each.topic,
        "partition": each.partition,
        "from": each.start,
        "until": each.until,
    }


def _range(fields: Mapping[str, Any]) -> Range:
    return Range(fields["topic"], fields["partition"], fields["from"], fields["until"])


def _by_topic(positions: Mapping[Place, int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), at in sorted(positions.items()):
        found.setdefault(topic, {})[str(partition)] = at
    return found


def _by_place(found: Mapping[str, Mapping[str, int]]) -> dict[Place, int]:
    return {(topic, int(p)): at for topic, places in found.items() for p, at in places.items()}
