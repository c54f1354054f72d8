"""What is kept with an offset of a topic's ledger, as its metadata.

It names the run that committed it, and what a later start must know. Kafka keeps only the last of
these texts, so each is made from the one before.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import count
from typing import Any, NamedTuple

from tallygate.core.ledger import Run, specs_with
from tallygate.core.offsets import (
    TopicPartition,
)


@dataclass(frozen=True, kw_only=True)
class Mark:
    """What is kept with an offset: the run that committed it, and what it remembers."""

    run: Run = field(default_factory=Run)
    lanes: int = 0
    topic_id: str | None = None
    checkpoint_id: str | None = None
    first: int | None = None
    """Where the pipeline began in the partition."""
    lost: tuple[tuple[int, int], ...] = ()
    target: str | None = None
    """The id of the topic that the rows are in."""
    by: str | None = None
    """What chooses the lanes of rows."""
    known: int = 0
    """How many partitions of the topic the ledger had by then."""
    specs: tuple[str, ...] = ()
    """What the rows of the partition were made by."""
    leader_epoch: int | None = None
    """Of the leader whose log held all up to the offset."""

    @classmethod
    def read(cls, text: str | None) -> "Mark":
        """A mark of epoch 0 if the text is none. What a later version added is passed over: to
        overlook a ledger would be to write all of it again."""
        try:
            found: dict[str, Any] = json.loads(text or "{}")
            run = {name: found[name] for name in _RUN if name in found}
            own = {name: found[name] for name in _OWN if name in found}
            lost = tuple((start, until) for start, until in found.get("lost", ()))
            specs = tuple(found.get("specs", ()))
            return cls(run=Run(**run), **{**own, "lost": lost, "specs": specs})
        except (ValueError, TypeError, AttributeError):
            return cls()

    def text(self) -> str:
        own = {name: getattr(self, name) for name in _OWN}
        return json.dumps({**asdict(self.run), **own}, separators=(",", ":"))

    def after(self, old: "Mark") -> "Mark":
        """This run's mark where another one is: what that remembers is kept."""
        return replace(
            self,
            topic_id=self.topic_id or old.topic_id,
            checkpoint_id=self.checkpoint_id or old.checkpoint_id,
            first=old.first,
            lost=old.lost,
            target=old.target or self.target,
            known=max(self.known, old.known),
            specs=specs_with((*old.specs, *self.specs), None),
            leader_epoch=old.leader_epoch,
        )


_RUN = [each.name for each in fields(Run)]


_OWN = [each.name for each in fields(Mark) if each.name != "run"]


class Position(NamedTuple):
    """A committed offset, and what is kept with it."""

    offset: int
    mark: Mark


Positions = Mapping[TopicPartition, Position]


def count_known(partitions: Iterable[TopicPartition]) -> dict[str, int]:
    """How many partitions of each topic there are, from the first one on: none is left out."""
    there = set(partitions)
    return {
        topic: next(number for number in count() if (topic, number) not in there)
        for topic in {topic for topic, _ in there}
    }


def forgotten_in(held: Positions) -> set[TopicPartition]:
    """Partitions that a group had, as the offsets of others say, and has no more."""
    known: dict[str, int] = {}
    for (topic, _), position in held.items():
        known[topic] = max(known.get(topic, 0), position.mark.known)
    had = {(topic, number) for topic, many in known.items() for number in range(many)}
    return had - held.keys()
