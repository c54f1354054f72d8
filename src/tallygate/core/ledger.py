"""The ledger: what a target's own store knows of a pipeline, and the one form it is written in.

**No gap, no overlap.** A position moves only from exactly where a range starts to where it ends
(`LedgerState.moved`), whatever the target. **One writer.** Every state names the run that wrote it
last, and a run that finds a newer one stops (`check_newest`).

Folders and lake tables keep a `LedgerEntry` with each of their commits: the state after it, and
what it did itself. PostgreSQL keeps the state in tables and Kafka in the offsets of groups.
"""

import json
import os
import random
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tallygate.core.offsets import MovedError, Range, TopicPartition, topic_of
from tallygate.errors import FencedError, LedgerError

RUN_BITS = 62
SPECS_KEPT = 8
IN_ANOTHER = "written to another target"
"""Why what came before is not in the target that a pipeline goes on into."""


def now() -> str:
    """The time, for people to read."""
    return time.strftime("%Y-%m-%d %H:%M:%S%z")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One start of a pipeline: its epoch, which grows with each start, and where it is."""

    epoch: int = 0
    host: str = ""
    pid: int = 0
    started: str = ""
    id: int = 0
    """Drawn by lot, so that two starts that took the same epoch at the same moment differ."""

    @classmethod
    def mine(cls, epoch: int) -> "Run":
        lot = random.SystemRandom().getrandbits(RUN_BITS)
        return cls(epoch=epoch, host=socket.gethostname(), pid=os.getpid(), started=now(), id=lot)


@dataclass(frozen=True)
class Claim:
    """A run's right to write for its pipeline. It travels to the tasks, and every commit checks
    it."""

    pipeline: str
    run: Run

    def check_newest(self, writer: Run) -> None:
        """Raise if the ledger was last written by a newer run than this one."""
        twin = writer.epoch == self.run.epoch and writer.id not in (0, self.run.id)
        if writer.epoch > self.run.epoch or twin:
            raise fenced(self.pipeline, self.run.epoch, writer)


def fenced(pipeline: str, epoch: int, newer: Run) -> FencedError:
    """What run `epoch` hears when it finds that a newer one took over."""
    return FencedError(
        f"run {epoch} of pipeline {pipeline!r} is fenced: run {newer.epoch} took over on "
        f"{newer.host} (pid {newer.pid}) at {newer.started}. This one wrote nothing more; stop one "
        "of the two."
    )


class OtherTargetError(LedgerError):
    """The target was dropped and made again, or another one took its name, while a run wrote to it.
    Nothing of the batch is written. What can be done, the engine knows (`core.start`)."""

    @classmethod
    def of(cls, target: str) -> "OtherTargetError":
        return cls(
            f"{target} is not what it was when the run began: it was dropped and made again, or "
            "another one has its name now, in which the rows from before are missing."
        )


@dataclass(frozen=True)
class Lost:
    """A range that the source had lost before it was read."""

    range: Range
    reason: str = ""
    at: str = ""


@dataclass(frozen=True, kw_only=True)
class LedgerState:
    """What the target's store knows of a pipeline."""

    positions: Mapping[TopicPartition, int] = field(default_factory=dict)
    begun: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Where each partition was begun."""
    run: Run = field(default_factory=Run)
    """The run that wrote last."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    leader_epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Under which leader a partition's log held all up to the position (`furthest`, where lanes
    differ), as far as that is known. A log that was cut off since has other records there."""
    checkpoint_id: str | None = None
    specs: tuple[str, ...] = ()
    """What rows were made by, one after the other: transforms, schemas, time zones."""
    target: str | None = None
    """What the target is in its store, where the ledger is not a part of it: a table's number, a
    topic's id. Another table of that name is another target."""
    lost: tuple[Lost, ...] = ()
    furthest: Mapping[TopicPartition, int] | None = None
    """Where a batch ends that some lanes of the target have and others have not."""
    forgotten: tuple[TopicPartition, ...] = ()
    """Partitions that the ledger had and has no more, where its store can lose some of it."""

    def moved(
        self, ranges: Iterable[Range], epochs: Mapping[TopicPartition, int] | None = None
    ) -> "LedgerState":
        """After these ranges are done. Compare and set: each must start at the position. The
        `epochs` are those of the leaders that had their ends."""
        done = tuple(ranges)
        for each in done:
            at = self.positions.get(each.topic_partition, each.start)
            if at != each.start:
                raise MovedError(f"the ledger is at {at} and not at the start of {each} any more.")
        return replace(
            self,
            begun={each.topic_partition: each.start for each in done} | dict(self.begun),
            positions=dict(self.positions) | {each.topic_partition: each.until for each in done},
            leader_epochs=self._epochs_after(done, epochs or {}),
        )

    def _epochs_after(
        self, done: Iterable[Range], epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """An epoch says nothing of the offsets that come after its position."""
        moved = {each.topic_partition: each for each in done}
        kept = {at: old for at, old in self.leader_epochs.items() if not len(moved.get(at, ()))}
        return kept | {at: epochs[at] for at in moved if at in epochs}


@dataclass(frozen=True)
class Lose:
    """Move past ranges that the source has lost, and keep that they are lost."""

    ranges: tuple[Range, ...]
    reason: str

    def applied(self, state: LedgerState) -> LedgerState:
        lost = tuple(Lost(each, self.reason, now()) for each in self.ranges)
        return replace(state.moved(self.ranges), lost=(*state.lost, *lost))


@dataclass(frozen=True)
class Remember:
    """Keep what a later start compares, the checkpoint's id and those of the topics, and what an
    audit does: by what the rows are made."""

    checkpoint_id: str | None
    topic_ids: Mapping[str, str]
    spec: str | None = None

    def applied(self, state: LedgerState) -> LedgerState:
        ids = {**state.topic_ids, **self.topic_ids}
        specs = specs_with(state.specs, self.spec)
        return replace(state, checkpoint_id=self.checkpoint_id, topic_ids=ids, specs=specs)


def specs_with(specs: Iterable[str], spec: str | None) -> tuple[str, ...]:
    """The last of them, each once, and this one."""
    return tuple(dict.fromkeys((*specs, *([] if spec is None else [spec]))))[-SPECS_KEPT:]


@dataclass(frozen=True)
class Retarget:
    """Go on into another target, and keep that what came before is not in it."""

    target: str

    def applied(self, state: LedgerState) -> LedgerState:
        past = tuple(
            Lost(Range(*partition, state.begun.get(partition, 0), until), IN_ANOTHER, now())
            for partition, until in sorted(state.positions.items())
            if until > state.begun.get(partition, 0)
        )
        return replace(state, target=self.target, lost=(*state.lost, *past))


@dataclass(frozen=True)
class Forget:
    """Follow a topic no more, and keep how far it was read under a name that no topic has."""

    name: str
    """What the ledger calls the topic from here on."""
    ranges: tuple[Range, ...]
    """What was read of it. A store may have dropped its positions together with the topic."""

    @property
    def topic(self) -> str:
        return topic_of(self.name)

    def check(self, positions: Mapping[TopicPartition, int]) -> None:
        """Compare: each position that is there must be the one that is kept."""
        for each in self.ranges:
            at = positions.get(each.topic_partition, each.until)
            if at != each.until:
                raise MovedError(f"the ledger is at {at} and not at the end of {each} any more.")

    def applied(self, state: LedgerState) -> LedgerState:
        self.check(state.positions)
        begun = {each.topic_partition: each.start for each in self.ranges} | dict(state.begun)
        until = {each.topic_partition: each.until for each in self.ranges}
        ids = {self._named(topic): topic_id for topic, topic_id in state.topic_ids.items()}
        lost = (
            replace(each, range=replace(each.range, topic=self._named(each.range.topic)))
            for each in state.lost
        )
        return replace(
            state,
            positions=self._renamed({**state.positions, **until}),
            begun=self._renamed(begun),
            topic_ids=ids,
            leader_epochs=self._renamed(state.leader_epochs),
            lost=tuple(lost),
            furthest=None if state.furthest is None else self._renamed(state.furthest),
        )

    def _renamed(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {(self._named(topic), number): at for (topic, number), at in positions.items()}

    def _named(self, topic: str) -> str:
        return self.name if topic == self.topic else topic


@dataclass(frozen=True)
class CutOff:
    """Keep as lost what the target has of a log that was cut off below it, and go on after that:
    the source has other records at these offsets, which are not read."""

    ranges: tuple[Range, ...]
    reason: str

    def applied(self, state: LedgerState) -> LedgerState:
        gone = {each.topic_partition for each in self.ranges}
        for each in self.ranges:
            check_end(each, state.positions.get(each.topic_partition))
        lost = tuple(Lost(each, self.reason, now()) for each in self.ranges)
        epochs = {at: epoch for at, epoch in state.leader_epochs.items() if at not in gone}
        return replace(state, lost=(*state.lost, *lost), leader_epochs=epochs)


def check_end(cut: Range, position: int | None) -> None:
    """Raise if what was cut off does not end at the position."""
    if position != cut.until:
        raise MovedError(f"the ledger is at {position} and not at the end of {cut} any more.")


LedgerChange = Lose | Remember | Retarget | Forget | CutOff
"""A change of the ledger that stands for no rows."""


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """One commit of a target that keeps its ledger with its commits. The newest entry alone says
    where the pipeline is, so nothing has to be added up, and none is changed after it was seen."""

    pipeline: str
    number: int = 0
    """Counts the pipeline's commits to the target."""
    id: str = ""
    """A name that no other entry has, by which a writer knows its own."""
    time: str = ""
    batch: int | None = None
    """Spark's number of the batch; None if the commit holds none, as when a run begins."""
    ranges: tuple[Range, ...] = ()
    """What this commit moved."""
    rows: int = 0
    letters: int = 0
    """Dead letters of this commit and of all before it."""
    columns: tuple[tuple[str, str], ...] = ()
    """Names and types of the rows, where the target keeps them here."""
    moved_to: str | None = None
    """Where the pipeline goes on, after a compaction into another folder."""
    state: LedgerState = field(default_factory=LedgerState)
    """The ledger after this commit."""

    def next(self, **changes: Any) -> "LedgerEntry":
        """The entry that follows this one; what it says of itself alone begins empty."""
        lot = f"{random.SystemRandom().getrandbits(RUN_BITS):016x}"
        own: dict[str, Any] = {"batch": None, "ranges": (), "rows": 0, "moved_to": None}
        fresh: dict[str, Any] = {"number": self.number + 1, "id": lot, "time": now()}
        return replace(self, **{**own, **fresh, **changes})

    def text(self) -> str:
        """As JSON. Positions are listed by partition, since JSON's keys are texts alone."""
        state = {
            **asdict(self.state),
            "positions": _listed(self.state.positions),
            "begun": _listed(self.state.begun),
            "leader_epochs": _listed(self.state.leader_epochs),
            "furthest": None,
            "lost": [[*_flat(each.range), each.reason, each.at] for each in self.state.lost],
        }
        del state["forgotten"]  # an entry has all that there is
        return json.dumps(
            {**asdict(self), "ranges": [_flat(each) for each in self.ranges], "state": state}
        )

    @classmethod
    def parse(cls, text: str) -> "LedgerEntry":
        """Raise a ValueError, TypeError or KeyError if it is no entry."""
        fields: dict[str, Any] = json.loads(text)
        state = fields["state"]
        return cls(
            **{
                **fields,
                "ranges": tuple(Range(*each) for each in fields["ranges"]),
                "columns": tuple((name, kind) for name, kind in fields["columns"]),
                "state": LedgerState(
                    **{
                        **state,
                        "run": Run(**state["run"]),
                        "positions": _by_partition(state["positions"]),
                        "begun": _by_partition(state["begun"]),
                        "specs": tuple(state.get("specs", ())),
                        "leader_epochs": _by_partition(state.get("leader_epochs", ())),
                        "lost": tuple(
                            Lost(Range(*gone), reason, at) for *gone, reason, at in state["lost"]
                        ),
                    }
                ),
            }
        )


def _flat(each: Range) -> list[str | int]:
    return [each.topic, each.partition, each.start, each.until]


def _listed(positions: Mapping[TopicPartition, int]) -> list[list[str | int]]:
    return [[topic, partition, at] for (topic, partition), at in sorted(positions.items())]


def _by_partition(listed: Iterable[tuple[str, int, int]]) -> dict[TopicPartition, int]:
    return {(topic, partition): at for topic, partition, at in listed}
