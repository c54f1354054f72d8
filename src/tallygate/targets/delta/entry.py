"""An entry of the ledger: how far a pipeline is after one commit, and whose commit it was."""

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

from tallygate.core.offsets import Known, Place, Range
from tallygate.core.runs import Run, now

__all__ = ["Entry", "Lost"]

RUN_BITS = 62


@dataclass(frozen=True)
class Lost:
    """A range that the source had lost before it was read."""

    range: Range
    reason: str
    at: str


@dataclass(frozen=True)
class Entry:
    version: int = 0
    """Counts the pipeline's commits to the table."""
    run: int = 0
    """A number drawn by lot, so that no two runs ever have the same."""
    epoch: int = 0
    host: str = ""
    pid: int = 0
    started: str = ""
    batch: int | None = None
    ranges: tuple[Range, ...] = ()
    """What this commit moved."""
    begun: Mapping[Place, int] = field(default_factory=dict)
    positions: Mapping[Place, int] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    checkpoint_id: str | None = None
    lost: tuple[Lost, ...] = ()

    @property
    def name(self) -> str:
        """The entry's file. It is told by what the table itself knows: version and run."""
        return f"{self.version:020}-{self.run}.json"

    @property
    def known(self) -> Known:
        return Known(self.positions, self.topic_ids, self.checkpoint_id)

    def next(self) -> "Entry":
        return replace(self, version=self.version + 1, batch=None, ranges=())

    def taken_over(self) -> "Entry":
        """The first entry of a new run."""
        return replace(
            self.next(),
            run=random.SystemRandom().getrandbits(RUN_BITS),
            **asdict(Run.mine(self.epoch + 1)),
        )

    @property
    def writer(self) -> Run:
        return Run(self.epoch, self.host, self.pid, self.started)

    def moved(self, ranges: Iterable[Range], batch: int | None = None) -> "Entry":
        moved = tuple(ranges)
        return replace(
            self.next(),
            batch=batch,
            ranges=moved,
            begun={each.place: each.start for each in moved} | dict(self.begun),
            positions=dict(self.positions) | {each.place: each.until for each in moved},
        )

    def without(self, ranges: Iterable[Range], reason: str) -> "Entry":
        """Past ranges that are lost."""
        gone = tuple(ranges)
        lost = tuple(Lost(each, reason, now()) for each in gone)
        return replace(self.moved(gone), lost=(*self.lost, *lost))

    def text(self) -> str:
        fields = {
            **self.__dict__,
            "ranges": [_flat(each) for each in self.ranges],
            "begun": [[*place, at] for place, at in sorted(self.begun.items())],
            "positions": [[*place, at] for place, at in sorted(self.positions.items())],
            "topic_ids": dict(self.topic_ids),
            "lost": [[*_flat(each.range), each.reason, each.at] for each in self.lost],
        }
        return json.dumps(fields)

    @classmethod
    def parse(cls, text: str) -> "Entry":
        fields = json.loads(text)
        return cls(
            **{
                **fields,
                "ranges": tuple(Range(*each) for each in fields["ranges"]),
                "begun": {(topic, number): at for topic, number, at in fields["begun"]},
                "positions": {(topic, number): at for topic, number, at in fields["positions"]},
                "lost": tuple(
                    Lost(Range(*place), reason, at) for *place, reason, at in fields["lost"]
                ),
            }
        )


def _flat(each: Range) -> list[str | int]:
    return [each.topic, each.partition, each.start, each.until]
