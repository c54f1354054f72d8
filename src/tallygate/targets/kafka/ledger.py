"""The ledger in Kafka: the offsets of a consumer group, committed inside the rows' transaction.

Kafka keeps them, fences zombies by the transactional id, and every Kafka tool can show the lag.
What a later start must know travels as the offsets' metadata: the epoch and whose it is, the
topic's id, the checkpoint's id, where the partition was begun, the ranges that were given up as
lost. Kafka keeps only the last of these texts, so each is made from the one before.

**One writer.** A transactional id belongs to one source partition (or one lane after a shuffle).
Opening a producer of that id ends the transaction that an older one left open, and fences it; only
then is the group asked where it is. So what is read is final, and whoever opened the id last is the
one who can commit.

**Kafka forgets.** An offset of a group without members is dropped `offsets.retention.minutes` after
it was last committed, and a partition whose offset is gone would be taken for a new one. So each
start commits all of them anew, and a run those that have not moved for an hour (`KafkaStore`).

If the sink is on another cluster than the source, its Kafka does not know the source's topic and
refuses offsets of it: they are committed for a stand-in topic of that cluster.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    Producer,
    TopicPartition,
)

from tallygate.core.offsets import OTHER_SOURCE, MovedError, Place, Range, is_topic
from tallygate.core.runs import Run, fenced
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.kafka.producer import ANSWER_TIMEOUT, Failures, abort, open_transactions

__all__ = [
    "GroupClaim",
    "Held",
    "Mark",
    "Names",
    "commit_offsets",
    "committed",
    "kept_as",
    "open_producer",
]

TRANSACTION_TIMEOUT_MS = 300_000
STAND_IN = "tallygate.offsets."
OTHER_STAND_IN = "tallygate.positions."


@dataclass(frozen=True)
class Names:
    """What Kafka knows a pipeline by. Neither pipelines nor topics may have a slash in their names,
    so that those of two pipelines can never be the same."""

    pipeline: str

    @property
    def group(self) -> str:
        return f"tallygate.{self.pipeline}"

    @property
    def letters_group(self) -> str:
        return f"{self.group}/letters"

    def lane_group(self, lane: int) -> str:
        return f"{self.group}/lane-{lane}"

    def place_id(self, place: Place) -> str:
        return f"{self.group}/{place[0]}/{place[1]}"

    def letters_id(self, place: Place) -> str:
        return f"{self.letters_group}/{place[0]}/{place[1]}"

    def lane_id(self, lane: int) -> str:
        return self.lane_group(lane)


def kept_as(topic: str, stand_in: bool) -> str:
    """The topic whose offsets stand for a source's: its own, or one that exists for this alone."""
    if not is_topic(topic):
        return OTHER_STAND_IN + topic.removeprefix(OTHER_SOURCE)
    return STAND_IN + topic if stand_in else topic


def _source_of(kept: str, stand_in: bool) -> str:
    if kept.startswith(OTHER_STAND_IN):
        return OTHER_SOURCE + kept.removeprefix(OTHER_STAND_IN)
    return kept.removeprefix(STAND_IN) if stand_in else kept


@dataclass(frozen=True)
class Mark:
    """What is kept with an offset."""

    epoch: int = 0
    host: str = ""
    pid: int = 0
    started: str = ""
    lanes: int = 0
    topic_id: str | None = None
    checkpoint_id: str | None = None
    first: int | None = None
    """Where the pipeline began in the partition."""
    lost: tuple[tuple[int, int], ...] = ()

    @classmethod
    def mine(cls, epoch: int, lanes: int) -> "Mark":
        return cls(**asdict(Run.mine(epoch)), lanes=lanes)

    @property
    def run(self) -> Run:
        return Run(self.epoch, self.host, self.pid, self.started)

    @classmethod
    def read(cls, text: str | None) -> "Mark":
        try:
            found: dict[str, Any] = json.loads(text or "{}")
            return cls(**{**found, "lost": tuple(tuple(each) for each in found.get("lost", ()))})
        except (ValueError, TypeError):
            return cls()

    def after(self, old: "Mark") -> "Mark":
        """This run's mark where another one is: what that remembers is kept."""
        return replace(
            self,
            topic_id=self.topic_id or old.topic_id,
            checkpoint_id=self.checkpoint_id or old.checkpoint_id,
            first=old.first,
            lost=old.lost,
        )

    def text(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))


Held = tuple[int, Mark]
"""A committed offset, and what is kept with it."""


@dataclass(frozen=True)
class GroupClaim:
    """A run's right to write, for one group of offsets. It travels to the tasks."""

    pipeline: str
    group: str
    mark: Mark
    stand_in: bool
    marks: Mapping[str, Mark] = field(default_factory=dict)
    """Marks of topics whose ids are known, which are kept as they are."""

    def topic(self, topic: str) -> str:
        return kept_as(topic, self.stand_in)

    def at(self, consumer: Consumer, places: Iterable[Place]) -> dict[Place, Held]:
        """Where the group is; raise if a newer run has been there. The producer must be open.

        Offsets without a mark are no ledger's, but a courtesy for lag tools: a pipeline of this
        name into a table may have left them."""
        asked = {self.topic(topic): topic for topic, _ in places}
        found = consumer.committed(
            [TopicPartition(self.topic(topic), number) for topic, number in places],
            timeout=ANSWER_TIMEOUT,
        )
        held = {
            (asked[each.topic], each.partition): (each.offset, Mark.read(each.metadata))
            for each in found
            if each.offset >= 0 and Mark.read(each.metadata).epoch
        }
        for _, other in held.values():
            # Two starts at the same moment may have taken the same number: the second to write
            # anything finds the other's.
            twin = other.epoch == self.mark.epoch and other.run != self.mark.run
            if twin or other.epoch > self.mark.epoch:
                raise fenced(self.pipeline, self.mark.epoch, other.run)
        return held

    def offsets(self, ranges: Iterable[Range], held: Mapping[Place, Held]) -> list[TopicPartition]:
        """The ends of the ranges, to be committed with this run's mark, and with what is to be
        remembered of the partition from what is held."""
        return [
            TopicPartition(
                self.topic(each.topic),
                each.partition,
                each.until,
                self._next_mark(each, held.get(each.place)).text(),
            )
            for each in ranges
        ]

    def _next_mark(self, done: Range, held: Held | None) -> Mark:
        mark = self.marks.get(done.topic, self.mark)
        if held is None:
            return replace(mark, first=done.start)
        return mark.after(held[1])

    def check(self, ranges: Iterable[Range], held: Mapping[Place, Held]) -> bool:
        """Whether all is still to be written; False if all is there, an error if neither."""
        wanted = list(ranges)
        at = {place: offset for place, (offset, _) in held.items()}
        if all(at.get(each.place, -1) >= each.until for each in wanted):
            return False
        if all(at.get(each.place, each.start) == each.start for each in wanted):
            return True
        raise MovedError(
            f"group {self.group!r} is not at the start of {', '.join(map(str, wanted))} any more."
        )


def open_producer(
    connection: Connection,
    transactional_id: str,
    failures: Failures | None = None,
    **properties: Any,
) -> Producer:
    """One whose transactions may take as long as a batch does."""
    given = {"transaction_timeout_ms": TRANSACTION_TIMEOUT_MS, **properties}
    producer: Producer = open_transactions(connection, transactional_id, failures, **given)
    return producer


def commit_offsets(
    connection: Connection,
    claim: GroupClaim,
    transactional_id: str | None,
    places: Sequence[Place],
    chosen: Callable[[Mapping[Place, Held]], list[TopicPartition]],
    rows: Callable[[Producer, Mapping[Place, Held]], None] = lambda *_: None,
) -> None:
    """Commit what is `chosen` from what is held, fenced by the id, and `rows` with it if given.
    Without an id nobody is fenced."""
    consumer = clients.consumer(connection, group_id=claim.group)
    try:
        producer = open_producer(connection, transactional_id) if transactional_id else None
        held = claim.at(consumer, places) if places else {}
        offsets = chosen(held)
        if offsets and producer is None:
            consumer.commit(offsets=offsets, asynchronous=False)
        elif offsets and producer is not None:
            _transact(producer, consumer, offsets, lambda: rows(producer, held))
    finally:
        consumer.close()


def _transact(
    producer: Producer,
    consumer: Consumer,
    offsets: list[TopicPartition],
    rows: Callable[[], None],
) -> None:
    try:
        producer.begin_transaction()
        rows()
        group = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction(offsets, group, ANSWER_TIMEOUT)
        producer.commit_transaction(ANSWER_TIMEOUT)
    except BaseException:
        abort(producer)
        raise


def committed(
    connection: Connection, group: str, stand_in: bool, *, settled: bool = False
) -> dict[Place, Held]:
    """All offsets of a group that are a ledger's, with their marks.

    Those without a mark are a courtesy for lag tools, left by a pipeline of this name into a table.

    A transaction that is open may still move some of them. So this is for planning; whoever writes
    opens the producer first, and then asks again (`GroupClaim.at`). `settled` waits until no
    transaction holds offsets any more."""
    admin = clients.admin(connection)
    futures = admin.list_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(group)],
        request_timeout=ANSWER_TIMEOUT,
        require_stable=settled,
    )
    answers = clients.answer(futures, connection, f"asking for the offsets of group {group!r}")
    found = {}
    for each in answers[group].topic_partitions or ():
        topic = _source_of(each.topic, stand_in)
        mark = Mark.read(each.metadata)
        if each.offset >= 0 and mark.epoch:
            found[topic, each.partition] = each.offset, mark
    return found
