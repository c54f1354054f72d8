"""The ledger in Kafka: the offsets of a consumer group, committed inside the rows' transaction.

Kafka keeps them, fences zombies by the transactional id, and every Kafka tool can show the lag.
What a later start must know travels as the offsets' metadata: the run that wrote them, the topic's
id, the checkpoint's id, where the partition was begun, the ranges that were given up as lost. Kafka
keeps only the last of these texts, so each is made from the one before.

**One writer.** A transactional id belongs to one source partition (or one lane after a shuffle).
Opening a producer of that id ends the transaction that an older one left open, and fences it; only
then is the group asked where it is. So what is read is final, and the run that opened the id last
is the one that can commit. Every offset names its run, and a run that finds a newer one, or another
of its own epoch, stops.

**Kafka forgets.** An offset of a group without members is dropped `offsets.retention.minutes` after
it was last committed, and a partition whose offset is gone would be taken for a new one. So each
start commits all of them again, and a run those that have not moved for an hour (`KafkaTarget`).
Every text says how many partitions of the topic the ledger has: as long as one of them is left, one
that is gone is not taken for one that was added.

If the target is on another cluster than the source, its Kafka does not know the source's topic and
refuses offsets of it: they are committed for a stand-in topic of that cluster.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
)
from confluent_kafka import TopicPartition as Offset
from confluent_kafka.admin import AdminClient

from tallygate.core.ledger import Claim, Forget, Remember, check_end, specs_with
from tallygate.core.offsets import (
    FORGOTTEN,
    OTHER_SOURCE,
    MovedError,
    Range,
    TopicPartition,
    is_forgotten,
    is_topic,
)
from tallygate.errors import TopicError, UnreachableError
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.kafka.producer import ANSWER_TIMEOUT, Failures, open_transactions
from tallygate.targets.kafka.marks import Mark, Position, Positions
from tallygate.targets.kafka.sending import transaction
from tallygate.waiting import wait_until

TRANSACTION_TIMEOUT_MS = 300_000
LONGEST = "transaction.timeout.ms"
SETTLES_IN = 10.0
"""How long offsets are waited for that a transaction holds. One that is committed lets go of them
within a second; if its producer is dead, the next one of its id ends it."""
LOST_KEPT = 20
STAND_IN = "tallygate.offsets."
OTHER_STAND_IN = "tallygate.positions."
FORGOTTEN_STAND_IN = "tallygate.forgotten."
NO_MARK = "forgotten"
"""Beside an offset that is no ledger's any more: Kafka's clients cannot drop a single one."""


@dataclass(frozen=True)
class Names:
    """What Kafka knows a pipeline by. Neither pipelines nor topics may have a slash in their names,
    so that those of two pipelines can never be the same."""

    pipeline: str

    @property
    def _base(self) -> str:
        """The group that shows a pipeline's lag, whatever its target; no ledger."""
        return f"tallygate.{self.pipeline}"

    @property
    def group(self) -> str:
        return f"{self._base}/ledger"

    @property
    def letters_group(self) -> str:
        return f"{self._base}/letters"

    def lane_group(self, lane: int) -> str:
        return f"{self._base}/lane-{lane}"

    def groups(self, lanes: int) -> list[str]:
        """Those that are the ledger: one, or one for each lane."""
        return [self.lane_group(lane) for lane in range(lanes)] if lanes else [self.group]

    def partition_id(self, partition: TopicPartition) -> str:
        return f"{self._base}/{partition[0]}/{partition[1]}"

    def letters_id(self, partition: TopicPartition) -> str:
        return f"{self.letters_group}/{partition[0]}/{partition[1]}"

    def lane_id(self, lane: int) -> str:
        return self.lane_group(lane)


def kept_as(topic: str, *, stand_in: bool) -> str:
    """The topic whose offsets stand for a source's: its own, or one that exists for this alone."""
    if is_forgotten(topic):
        return FORGOTTEN_STAND_IN + topic.removeprefix(FORGOTTEN).replace(":", ".", 1)
    if not is_topic(topic):
        return OTHER_STAND_IN + topic.removeprefix(OTHER_SOURCE)
    return STAND_IN + topic if stand_in else topic


def _source_of(kept: str, *, stand_in: bool) -> str:
    if kept.startswith(FORGOTTEN_STAND_IN):
        return FORGOTTEN + kept.removeprefix(FORGOTTEN_STAND_IN).replace(".", ":", 1)
    if kept.startswith(OTHER_STAND_IN):
        return OTHER_SOURCE + kept.removeprefix(OTHER_STAND_IN)
    return kept.removeprefix(STAND_IN) if stand_in else kept


@dataclass(frozen=True, kw_only=True)
class GroupLedger:
    """One group of offsets, with a run's right to move it. It travels to the tasks."""

    group: str
    claim: Claim
    stand_in: bool
    lanes: int = 0
    """How many groups there are, one a lane; 0 if this one holds all."""
    remembered: Remember = field(default_factory=lambda: Remember(None, {}))
    target: str | None = None
    """The id of the topic that rows are written to."""
    by: str | None = None
    """What chooses the lanes of rows."""
    known: Mapping[str, int] = field(default_factory=dict)
    """How many partitions of each topic the group has."""
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Of the leaders that had the ends of the batch's ranges."""

    def positions(
        self, consumer: Consumer, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Position]:
        """Where the group is; raise if a newer run has been there. The producer must be open.

        Offsets without a mark are not a ledger's."""
        asked = {(kept_as(each[0], stand_in=self.stand_in), each[1]): each for each in partitions}
        if not asked:
            return {}
        found = consumer.committed([Offset(*kept) for kept in asked], timeout=ANSWER_TIMEOUT)
        for each in found:
            if each.error is not None:  # which does not say that there is none
                raise KafkaException(each.error)
        read = {
            asked[each.topic, each.partition]: Position(each.offset, Mark.read(each.metadata))
            for each in found
            if each.offset >= 0
        }
        marked = {at: position for at, position in read.items() if position.mark.run.epoch}
        for position in marked.values():
            self.claim.check_newest(position.mark.run)
        return marked

    def is_due(self, ranges: Iterable[Range], positions: Positions) -> bool:
        """Whether all is still to be written; False if all is there, an error if neither."""
        wanted = list(ranges)
        at = {partition: position.offset for partition, position in positions.items()}
        if all(at.get(each.topic_partition, -1) >= each.until for each in wanted):
            return False
        if all(at.get(each.topic_partition, each.start) == each.start for each in wanted):
            return True
        raise MovedError(
            f"group {self.group!r} is not at the start of {', '.join(map(str, wanted))} any more."
        )

    def ends(self, ranges: Iterable[Range], positions: Positions) -> list[Offset]:
        """The ends of the ranges, to be committed with this run's mark, and with what is to be
        remembered of the partition from where the group is."""
        return [
            self.offset(
                each.topic_partition,
                each.until,
                self.next_mark(each, positions.get(each.topic_partition)),
            )
            for each in ranges
        ]

    def marked_again(self, positions: Positions) -> list[Offset]:
        """The same positions, with this run's mark."""
        return [
            self.offset(partition, position.offset, self._mark(partition[0]).after(position.mark))
            for partition, position in positions.items()
        ]

    def retargeted(self, positions: Positions, ends: Mapping[TopicPartition, int]) -> list[Offset]:
        """The `ends` of what is in another topic, where this one goes on."""
        found = []
        for partition, position in positions.items():
            mark = self._mark(partition[0]).after(position.mark)
            first, until = mark.first or 0, ends[partition]
            lost = tuple(each for each in mark.lost if each[0] != first)
            lost = (*lost, (first, until)) if first < until else mark.lost
            epoch = mark.leader_epoch if until == position.offset else None
            kept = lost[-LOST_KEPT:]
            mark = replace(mark, target=self.target, lost=kept, leader_epoch=epoch)
            found.append(self.offset(partition, until, mark))
        return found

    def forgotten(self, change: Forget, positions: Positions) -> list[Offset]:
        """The positions of a topic under the name that it has from here on, and no mark where they
        are now."""
        change.check({at: position.offset for at, position in positions.items()})
        found = []
        for each in change.ranges:
            position = positions.get(each.topic_partition)
            mark = self.next_mark(each, position)
            found.append(self.offset((change.name, each.partition), each.until, mark))
            if position is not None:
                found.append(self.unmarked(each.topic_partition, position.offset))
        return found

    def unmarked(self, partition: TopicPartition, at: int) -> Offset:
        return Offset(kept_as(partition[0], stand_in=self.stand_in), partition[1], at, NO_MARK)

    def cut_off(self, positions: Positions, cut: Iterable[Range]) -> list[Offset]:
        """The same positions, and what is lost before them."""
        found = []
        for each in cut:
            position = positions.get(each.topic_partition)
            check_end(each, None if position is None else position.offset)
            assert position is not None
            mark = self._mark(each.topic).after(position.mark)
            lost = tuple(dict.fromkeys((*mark.lost, (each.start, each.until))))[-LOST_KEPT:]
            mark = replace(mark, lost=lost, leader_epoch=None)
            found.append(self.offset(each.topic_partition, each.until, mark))
        return found

    def next_mark(self, done: Range, position: Position | None) -> Mark:
        mark, epoch = self._mark(done.topic), self.epochs.get(done.topic_partition)
        if position is None:
            return replace(mark, first=done.start, leader_epoch=epoch)
        return replace(mark.after(position.mark), leader_epoch=epoch)

    def _mark(self, topic: str) -> Mark:
        return Mark(
            run=self.claim.run,
            lanes=self.lanes,
            topic_id=self.remembered.topic_ids.get(topic),
            checkpoint_id=self.remembered.checkpoint_id,
            target=self.target,
            by=self.by,
            known=self.known.get(topic, 0),
            specs=specs_with((), self.remembered.spec),
        )

    def offset(self, partition: TopicPartition, at: int, mark: Mark) -> Offset:
        topic, number = partition
        return Offset(kept_as(topic, stand_in=self.stand_in), number, at, mark.text())


def longest_transaction(connection: Connection) -> float:
    """After how many seconds Kafka aborts a transaction."""
    return float(connection.librdkafka().get(LONGEST, TRANSACTION_TIMEOUT_MS)) / 1000


def open_producer(
    connection: Connection,
    transactional_id: str,
    failures: Failures | None = None,
    **properties: Any,
) -> Producer:
    """One whose transactions may take as long as a batch does, or as its user says."""
    given = {"transaction_timeout_ms": int(1000 * longest_transaction(connection)), **properties}
    producer: Producer = open_transactions(connection, transactional_id, failures, **given)
    return producer


def commit_offsets(
    ledger: GroupLedger,
    partitions: Sequence[TopicPartition],
    chosen: Callable[[Positions], list[Offset]],
    *,
    connection: Connection,
    transactional_id: str,
    rows: Callable[[Producer, Positions], None] = lambda *_: None,
    check: Callable[[], None] = lambda: None,
    **properties: Any,
) -> None:
    """Commit what is `chosen` by where the group is, fenced by the id, and `rows` with it, unless
    the last `check` raises."""
    failures = Failures()
    consumer = clients.consumer(connection, group_id=ledger.group)
    try:
        producer = open_producer(connection, transactional_id, failures, **properties)
        positions = ledger.positions(consumer, partitions)
        offsets = chosen(positions)
        if offsets:
            with transaction(producer, failures):
                rows(producer, positions)
                group = consumer.consumer_group_metadata()
                producer.send_offsets_to_transaction(offsets, group, ANSWER_TIMEOUT)
                check()
    finally:
        consumer.close()


def committed(
    connection: Connection, group: str, *, stand_in: bool
) -> dict[TopicPartition, Position]:
    """All offsets of a group that are a ledger's, with their marks (see `committed_in`)."""
    (found,) = committed_in([group], connection, stand_in=stand_in)
    return found


def committed_in(
    groups: Sequence[str],
    connection: Connection,
    *,
    stand_in: bool,
    settled: bool = False,
    only: Sequence[TopicPartition] | None = None,
    admin: AdminClient | None = None,
) -> list[dict[TopicPartition, Position]]:
    """All offsets of groups that are a ledger's, with their marks; or those of some partitions.

    A transaction that is open may still move some of them, and Kafka answers a commit before it
    shows the offsets. So this is for planning; a task that writes opens its producer first, and
    then asks again (`GroupLedger.positions`). `settled` waits until no transaction holds any."""
    wanted = None
    if only is not None:
        wanted = [Offset(kept_as(topic, stand_in=stand_in), number) for topic, number in only]

    def answered() -> list[dict[TopicPartition, Position]] | None:
        found = _offsets(groups, connection, wanted, stable=settled, admin=admin)
        if any(map(_is_held, (each for held in found for each in held))):
            return None
        return [_marked(held, stand_in=stand_in) for held in found]

    found = wait_until(
        answered,
        SETTLES_IN,
        f"a transaction holds offsets of group {groups[0]!r}.",
        error=UnreachableError,
        every=0.02,
    )
    assert found is not None
    return found


def held_in(
    group: str, connection: Connection, partitions: Sequence[TopicPartition], *, stand_in: bool
) -> set[TopicPartition]:
    """Those of the partitions whose offsets a transaction holds now."""
    if not partitions:
        return set()
    asked = {(kept_as(each[0], stand_in=stand_in), each[1]): each for each in partitions}
    (found,) = _offsets([group], connection, [Offset(*each) for each in asked], stable=True)
    return {asked[each.topic, each.partition] for each in found if _is_held(each)}


def _offsets(
    groups: Sequence[str],
    connection: Connection,
    partitions: list[Offset] | None,
    *,
    stable: bool,
    admin: AdminClient | None = None,
) -> list[list[Offset]]:
    admin = admin or clients.shared_admin(connection)
    doing = f"asking for the offsets of group {groups[0]!r}"
    futures: dict[Any, Any] = {}
    for group in groups:  # of which Kafka is asked for one at a time
        futures |= admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, partitions)],
            request_timeout=ANSWER_TIMEOUT,
            require_stable=stable,
        )
    answers = clients.answer(futures, connection, doing)
    return [answers[group].topic_partitions or [] for group in groups]


def _is_held(offset: Offset) -> bool:
    """Whether a transaction may still move it: Kafka then gives none, which is not to be taken for
    one that is not there."""
    if offset.error is not None and offset.error.code() != KafkaError.UNSTABLE_OFFSET_COMMIT:
        raise TopicError(
            f"Kafka does not give the offset of {offset.topic}/{offset.partition}: "
            f"{offset.error.str().rstrip('.')}."
        )
    return offset.error is not None


def _marked(offsets: Iterable[Offset], *, stand_in: bool) -> dict[TopicPartition, Position]:
    found = {}
    for each in offsets:
        mark = Mark.read(each.metadata)
        if each.offset >= 0 and mark.run.epoch:
            topic = _source_of(each.topic, stand_in=stand_in)
            found[topic, each.partition] = Position(each.offset, mark)
    return found
