"""The groups that are a pipeline's ledger: one, or one for each lane.

The ledger says what all lanes have done. Some may be ahead of it by one batch.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter

from confluent_kafka import TopicPartition as Offset
from confluent_kafka.admin import AdminClient

from tallygate.core.ledger import (
    Claim,
    CutOff,
    Forget,
    LedgerState,
    Lose,
    Lost,
    Remember,
    specs_with,
)
from tallygate.core.offsets import MovedError, Range, TopicPartition
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.targets.kafka.ledger import (
    LOST_KEPT,
    GroupLedger,
    Names,
    commit_offsets,
    committed,
    committed_in,
)
from tallygate.targets.kafka.marks import Mark, Position, Positions, forgotten_in

OPENED_AT_ONCE = 8
Lanes = Sequence[Mapping[TopicPartition, Position]]
"""Where each group is."""


def kept_lanes(names: Names, connection: Connection, *, stand_in: bool) -> int | None:
    """In how many lanes a pipeline was written so far; 0 if by partition, None if it never was."""
    if committed(connection, names.group, stand_in=stand_in):
        return 0
    first = committed(connection, names.lane_group(0), stand_in=stand_in)
    return max((position.mark.lanes for position in first.values()), default=None)


@dataclass(frozen=True)
class _Part:
    """Offsets that one transactional id fences."""

    ledger: GroupLedger
    transactional_id: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, kw_only=True)
class PipelineGroups:
    connection: Connection
    names: Names
    lanes: int
    """How many; 0 if there is one group, with a transactional id for each partition."""
    stand_in: bool
    """Whether offsets are kept for stand-ins of the source's topics."""
    target: str | None
    """The id of the topic that rows are written to."""
    by: str | None
    """What chooses the lanes of rows."""
    known: Mapping[str, int] = field(default_factory=dict)
    """How many partitions of each topic all groups have."""

    @property
    def groups(self) -> list[str]:
        return self.names.groups(self.lanes)

    def positions(self, *, settled: bool = False) -> list[dict[TopicPartition, Position]]:
        """Where each group is."""
        return committed_in(self.groups, self.connection, stand_in=self.stand_in, settled=settled)

    def behind(self, *, settled: bool = False) -> dict[TopicPartition, Position]:
        """Of several lanes the one that is furthest behind counts."""
        return _merged(self.positions(settled=settled), min)

    def in_all(self) -> set[TopicPartition]:
        """The partitions that all groups have."""
        lanes = self.positions()
        return set(lanes[0]).intersection(*lanes[1:])

    def state(self, *, settled: bool = False) -> LedgerState | None:
        return state_of(self.positions(settled=settled))

    def check_newest(
        self,
        claim: Claim,
        admin: AdminClient | None = None,
        *,
        partition: TopicPartition | None = None,
    ) -> None:
        """Raise if a newer run has taken over: it has put its mark into all lanes, so one tells. Of
        one `partition` it is known for sure, also while a transaction holds its offset."""
        (found,) = committed_in(
            self.groups[:1],
            self.connection,
            stand_in=self.stand_in,
            settled=partition is not None,
            only=None if partition is None else [partition],
            admin=admin,
        )
        for position in found.values():
            claim.check_newest(position.mark.run)

    def ledgers(
        self,
        claim: Claim,
        remembered: Remember,
        epochs: Mapping[TopicPartition, int] | None = None,
    ) -> tuple[GroupLedger, ...]:
        return tuple(
            GroupLedger(
                group=group,
                claim=claim,
                lanes=self.lanes,
                stand_in=self.stand_in,
                remembered=remembered,
                target=self.target,
                by=self.by,
                known=self.known,
                epochs=epochs or {},
            )
            for group in self.groups
        )

    def mark_again(
        self,
        claim: Claim,
        remembered: Remember,
        partitions: Iterable[TopicPartition],
        known: Mapping[str, int],
    ) -> None:
        """Commit positions again, with this run's mark: this fences the run that had the ids."""
        groups = replace(self, known=known)
        groups._commit_again(GroupLedger.marked_again, claim, remembered, partitions)

    def retarget(self, claim: Claim, remembered: Remember) -> None:
        """Make it the ledger of this topic, which what came before is not in. One that was left
        half of one topic and half of another is of neither, and is refused again. A batch that some
        lanes have is in the old topic: it is given up in all of them."""
        lanes = self.positions()
        ends = _offsets(_merged(lanes, max))
        self._commit_again(
            lambda ledger, at: ledger.retargeted(at, ends), claim, remembered, _merged(lanes, min)
        )

    def cut_off(self, claim: Claim, remembered: Remember, change: CutOff) -> None:
        """Keep what the source has lost of what is here."""
        change.applied(self.state() or LedgerState())  # raises if the ledger is elsewhere
        ranges = {each.topic_partition: each for each in change.ranges}

        def past(ledger: GroupLedger, at: Positions) -> list[Offset]:
            return ledger.cut_off(at, [ranges[partition] for partition in at])

        self._commit_again(past, claim, remembered, ranges)

    def _commit_again(
        self,
        chosen: Callable[[GroupLedger, Positions], list[Offset]],
        claim: Claim,
        remembered: Remember,
        partitions: Iterable[TopicPartition],
    ) -> None:
        def commit(part: _Part) -> None:
            ledger = part.ledger
            self._commit(part, lambda at: chosen(ledger, at), "committing the ledger again")

        with ThreadPoolExecutor(OPENED_AT_ONCE) as pool:
            list(pool.map(commit, self._parts(claim, remembered, partitions)))

    def lose(self, claim: Claim, remembered: Remember, change: Lose) -> None:
        """Go on after lost ranges. Each reaches to where the furthest lane is."""
        held = self.state(settled=True) or LedgerState()
        held.moved(change.ranges)  # raises if the ledger is elsewhere
        ranges = {each.topic_partition: each for each in change.ranges}
        for part in self._parts(claim, remembered, ranges):

            def past(positions: Positions, part: _Part = part) -> list[Offset]:
                lost = [ranges[partition] for partition in part.partitions]
                return [
                    self._past(part.ledger, each, positions.get(each.topic_partition))
                    for each in lost
                ]

            self._commit(part, past, "moving past a lost range")

    def forget(self, claim: Claim, remembered: Remember, change: Forget) -> None:
        """Keep a topic's positions under another name, each in the transaction that takes its mark
        from where it was. What some ids have done when it is cut off stays forgotten."""
        partitions = [each.topic_partition for each in change.ranges]
        for part in self._parts(claim, remembered, partitions):
            own = tuple(each for each in change.ranges if each.topic_partition in part.partitions)
            chosen = partial(part.ledger.forgotten, replace(change, ranges=own))
            self._commit(part, chosen, "forgetting a topic")

    def _past(self, ledger: GroupLedger, lost: Range, position: Position | None) -> Offset:
        at = lost.start if position is None else position.offset
        # A lane may be beyond the start, by a batch that others do not have.
        if not lost.start <= at <= (lost.until if self.lanes else lost.start):
            raise MovedError(f"the ledger is at {at} and not at the start of {lost} any more.")
        mark = ledger.next_mark(lost, position)
        given_up = dict.fromkeys((*mark.lost, (lost.start, lost.until)))
        mark = replace(mark, lost=tuple(given_up)[-LOST_KEPT:])
        return ledger.offset(lost.topic_partition, lost.until, mark)

    def _parts(
        self, claim: Claim, remembered: Remember, partitions: Iterable[TopicPartition]
    ) -> list[_Part]:
        """The offsets of some partitions, by what fences them."""
        ledgers, every = self.ledgers(claim, remembered), tuple(sorted(partitions))
        if not every:
            return []
        if not self.lanes:
            return [_Part(ledgers[0], self.names.partition_id(each), (each,)) for each in every]
        return [
            _Part(ledger, self.names.lane_id(lane), every) for lane, ledger in enumerate(ledgers)
        ]

    def _commit(self, part: _Part, chosen: Callable[[Positions], list[Offset]], doing: str) -> None:
        with clients.explain_errors(self.connection, f"{doing}, as {part.transactional_id!r}"):
            commit_offsets(
                part.ledger,
                part.partitions,
                chosen,
                connection=self.connection,
                transactional_id=part.transactional_id,
            )


def state_of(lanes: Lanes) -> LedgerState | None:
    """What the groups are together."""
    behind, furthest = _merged(lanes, min), _merged(lanes, max)
    if not behind:
        return None
    ahead = _offsets(furthest)
    epochs = {at: position.mark.leader_epoch for at, position in furthest.items()}
    marks = {partition: position.mark for partition, position in behind.items()}
    positions, newest = _offsets(behind), newest_of(marks.values())
    # Of its marks, those of partitions that the run has found idle may be older.
    checkpoints = (mark.checkpoint_id for mark in marks.values() if mark.run == newest.run)
    return LedgerState(
        positions=positions,
        begun={at: mark.first for at, mark in marks.items() if mark.first is not None},
        run=newest.run,
        topic_ids={at[0]: mark.topic_id for at, mark in marks.items() if mark.topic_id},
        specs=specs_with((spec for mark in marks.values() for spec in mark.specs), None),
        leader_epochs={at: epoch for at, epoch in epochs.items() if epoch is not None},
        checkpoint_id=next((each for each in checkpoints if each is not None), None),
        lost=tuple(
            Lost(Range(*at, *each)) for at, mark in sorted(marks.items()) for each in mark.lost
        ),
        target=_target(each.mark for lane in lanes for each in lane.values()),
        furthest=None if ahead == positions else ahead,
        forgotten=_forgotten(lanes),
    )


def _target(marks: Iterable[Mark]) -> str | None:
    """The topic that the ledger is of; if its marks differ, a text that no topic has as its id."""
    return " and ".join(sorted({mark.target for mark in marks if mark.target})) or None


def _forgotten(lanes: Sequence[Positions]) -> tuple[TopicPartition, ...]:
    """What one of the groups had and has no more. A lane that lacks a partition in which another
    one has moved had it, too: partitions are begun in all lanes before they move in any."""
    gone = {partition for held in lanes for partition in forgotten_in(held)}
    for partition, position in _merged(lanes, max).items():
        begun = max([position.mark.first or 0, *(until for _, until in position.mark.lost)])
        if position.offset > begun and any(partition not in held for held in lanes):
            gone.add(partition)
    return tuple(sorted(gone))


def newest_of(marks: Iterable[Mark]) -> Mark:
    return max(marks, key=lambda mark: mark.run.epoch, default=Mark())


def _merged(groups: Lanes, chosen: Callable[..., Position]) -> dict[TopicPartition, Position]:
    """Of what several groups hold of each partition, the one that is furthest behind, or ahead."""
    found: dict[TopicPartition, Position] = {}
    for group in groups:
        for partition, position in group.items():
            other = found.get(partition, position)
            found[partition] = chosen(other, position, key=attrgetter("offset"))
    return found


def _offsets(positions: Positions) -> dict[TopicPartition, int]:
    return {partition: position.offset for partition, position in positions.items()}
