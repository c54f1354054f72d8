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

If the target is on another cluster than the source, its Kafka does not know the source's topic and
refuses offsets of it: they are committed for a stand-in topic of that cluster.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    Producer,
)
from confluent_kafka import TopicPartition as Offset
from confluent_kafka.admin import AdminClient

from tallygate.core.ledger import Claim, Remember, Run, check_end
from tallygate.core.offsets import OTHER_SOURCE, MovedError, Range, TopicPartition, is_topic
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.kafka.producer import ANSWER_TIMEOUT, Failures, open_transactions
from tallygate.targets.kafka.sending import transaction

TRANSACTION_TIMEOUT_MS = 300_000
LONGEST = "transaction.timeout.ms"
LOST_KEPT = 20
STAND_IN = "tallygate.offsets."
OTHER_STAND_IN = "tallygate.positions."


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

    def partition_id(self, partition: TopicPartition) -> str:
        return f"{self._base}/{partition[0]}/{partition[1]}"

    def letters_id(self, partition: TopicPartition) -> str:
        return f"{self.letters_group}/{partition[0]}/{partition[1]}"

    def lane_id(self, lane: int) -> str:
        return self.lane_group(lane)


def kept_as(topic: str, *, stand_in: bool) -> str:
    """The topic whose offsets stand for a source's: its own, or one that exists for this alone."""
    if not is_topic(topic):
        return OTHER_STAND_IN + topic.removeprefix(OTHER_SOURCE)
    return STAND_IN + topic if stand_in else topic


def _source_of(kept: str, *, stand_in: bool) -> str:
    if kept.startswith(OTHER_STAND_IN):
        return OTHER_SOURCE + kept.removeprefix(OTHER_STAND_IN)
    return kept.removeprefix(STAND_IN) if stand_in else kept


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
            return cls(run=Run(**run), **{**own, "lost": lost})
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
            leader_epoch=old.leader_epoch,
        )


_RUN = [each.name for each in fields(Run)]
_OWN = [each.name for each in fields(Mark) if each.name != "run"]


class Position(NamedTuple):
    """A committed offset, and what is kept with it."""

    offset: int
    mark: Mark


Positions = Mapping[TopicPartition, Position]


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
) -> None:
    """Commit what is `chosen` by where the group is, fenced by the id, and `rows` with it."""
    failures = Failures()
    consumer = clients.consumer(connection, group_id=ledger.group)
    try:
        producer = open_producer(connection, transactional_id, failures)
        positions = ledger.positions(consumer, partitions)
        offsets = chosen(positions)
        if offsets:
            with transaction(producer, failures):
                rows(producer, positions)
                group = consumer.consumer_group_metadata()
                producer.send_offsets_to_transaction(offsets, group, ANSWER_TIMEOUT)
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
    admin: AdminClient | None = None,
) -> list[dict[TopicPartition, Position]]:
    """All offsets of groups that are a ledger's, with their marks.

    A transaction that is open may still move some of them. So this is for planning; a task that
    writes opens its producer first, and then asks again (`GroupLedger.positions`). `settled` waits
    until no transaction holds offsets any more."""
    admin = admin or clients.shared_admin(connection)
    futures: dict[Any, Any] = {}
    for group in groups:  # of which Kafka is asked for one at a time
        futures |= admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group)],
            request_timeout=ANSWER_TIMEOUT,
            require_stable=settled,
        )
    answers = clients.answer(futures, connection, f"asking for the offsets of group {groups[0]!r}")
    return [_marked(answers[group].topic_partitions or (), stand_in=stand_in) for group in groups]


def _marked(offsets: Iterable[Offset], *, stand_in: bool) -> dict[TopicPartition, Position]:
    found = {}
    for each in offsets:
        mark = Mark.read(each.metadata)
        if each.offset >= 0 and mark.run.epoch:
            topic = _source_of(each.topic, stand_in=stand_in)
            found[topic, each.partition] = Position(each.offset, mark)
    return found
