"""Kafka as the store of a pipeline: the target topic and the groups whose offsets are the
ledger."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tallygate.errors import LedgerError, TargetError
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.kafka.topics import Topics
from tallygate.ledger.group import (
    ANSWER_TIMEOUT,
    GroupClaim,
    Held,
    Mark,
    Names,
    committed,
    kept_as,
    open_producer,
)
from tallygate.ledger.letters import Letter
from tallygate.ledger.ranges import Known, Place, Range, is_topic
from tallygate.records.decoding import COORDINATES
from tallygate.settings import Settings
from tallygate.sinks.kafka.sink import KafkaTopicSink
from tallygate.sinks.kafka.writer import KafkaWriter, send_letters
from tallygate.sinks.local_run import LocalRun
from tallygate.sinks.store import Keeper, Shape
from tallygate.spec import KafkaSink

__all__ = ["KafkaStore"]

OPENED_AT_ONCE = 8


@dataclass(frozen=True)
class _LetterTopic:
    """Keeps unfit records in a topic, each once: a transaction of the record's own partition holds
    the letters and how far they go, and letters that are there already are left out."""

    connection: Connection
    topic: str
    claim: GroupClaim
    names: Names

    def keep(self, letters: list[Letter]) -> None:
        places = sorted({(each.topic, each.partition) for each in letters})
        for place in places:
            own = [each for each in letters if (each.topic, each.partition) == place]
            producer = open_producer(self.connection, self.names.letters_id(place))
            consumer = clients.consumer(self.connection, group_id=self.claim.group)
            try:
                held = self.claim.at(consumer, [place])
                at = held[place][0] if place in held else 0
                new = [each for each in own if each.offset >= at]
                if not new:
                    continue
                end = Range(*place, at, max(each.offset for each in new) + 1)
                producer.begin_transaction()
                send_letters(producer, self.topic, new)
                producer.send_offsets_to_transaction(
                    self.claim.offsets([end], held),
                    consumer.consumer_group_metadata(),
                    ANSWER_TIMEOUT,
                )
                producer.commit_transaction(ANSWER_TIMEOUT)
            finally:
                consumer.close()


class KafkaStore:
    def __init__(
        self,
        spec: KafkaSink,
        pipeline: str,
        delivery: str,
        source: Connection | None,
        target: Connection,
        topics: tuple[str, ...],
        lanes: int,
        settings: Settings,
    ) -> None:
        self._spec, self._pipeline, self._delivery = spec, pipeline, delivery
        self._connection = target
        self._stand_in = source is None or source.bootstrap_servers != target.bootstrap_servers
        self._topics = Topics(target, settings)
        self._source_topics = None if source is None else Topics(source, settings)
        self._names = Names(pipeline)
        self._lanes, self._read_topics = lanes, topics
        self._mark = Mark()
        self._marks: dict[str, Mark] = {}
        self._narrow = True
        self._letters_topic = spec.dead_letters or f"{pipeline}.dead-letters"
        self._counter: Consumer | None = None
        self._counted = 0
        self._run = LocalRun(settings.runs_dir, pipeline)

    @property
    def target(self) -> str:
        return f"topic {self._spec.topic}"

    @property
    def mirrors(self) -> bool:
        """Whether the source cluster's group is free for others: it may be the ledger itself."""
        return self._stand_in or not self._narrow

    def prepare(self, shape: Shape) -> None:
        names = {topic.name for topic in self._topics.all()}
        if self._spec.topic not in names:
            raise TargetError(
                f"there is no topic {self._spec.topic!r} to write to; make it with "
                f"`tallygate topic create {self._spec.topic} --partitions N`."
            )
        columns = set(shape.schema.fieldNames())
        if self._spec.key is not None and self._spec.key not in columns:
            raise TargetError(
                f"the key {self._spec.key!r} is no column of what the pipeline gives."
            )
        if self._spec.format == "value" and "value" not in columns:
            raise TargetError("format value needs a column `value`, which the pipeline lacks.")
        if self._letters_topic not in names:
            self._topics.create(self._letters_topic)
        self._narrow = shape.narrow
        self._check_way()

    def known(self) -> Known | None:
        found = self._all()
        if not found:
            return None
        marks = [mark for _, mark in found.values()]
        ids = {topic: mark.topic_id for (topic, _), (_, mark) in found.items() if mark.topic_id}
        newest = max(marks, key=lambda mark: mark.epoch)
        return Known({place: at for place, (at, _) in found.items()}, ids, newest.checkpoint_id)

    def _groups(self) -> list[str]:
        if self._narrow:
            return [self._names.group]
        return [self._names.lane_group(lane) for lane in range(self._lanes)]

    def _all(self) -> dict[Place, tuple[int, Mark]]:
        """The ledger: of several lanes the one that is furthest behind counts."""
        lowest: dict[Place, tuple[int, Mark]] = {}
        for group in self._groups():
            for place, held in self._held(group).items():
                if place not in lowest or held[0] < lowest[place][0]:
                    lowest[place] = held
        return lowest

    def _held(self, group: str) -> dict[Place, Held]:
        return committed(self._connection, group, self._stand_in)

    def _check_way(self) -> None:
        """A pipeline that wrote by partition cannot go on in lanes, nor the other way round: the
        ledger of the one is not that of the other."""
        lanes = self._names.lane_group(0)
        other = lanes if self._narrow else self._names.group
        if self._held(other):
            was, now = ("lanes", "by partition") if self._narrow else ("by partition", "lanes")
            raise LedgerError(
                f"pipeline {self._pipeline!r} was written {was} so far and would be {now} with "
                "this transform: its ledger cannot be taken over. Set the transform back, or "
                "choose another name and another topic."
            )

    def keeper(self) -> Keeper:
        group = self._names.letters_group
        claim = GroupClaim(self._pipeline, group, self._mark, self._stand_in)
        return _LetterTopic(self._connection, self._letters_topic, claim, self._names)

    def begin(self, shape: Shape, checkpoint: str) -> None:
        """Fence whoever had the ids, then write the new epoch beside every offset."""
        before = self._all()
        newest = max((mark for _, mark in before.values()), key=lambda m: m.epoch, default=Mark())
        if not self._narrow and newest.lanes not in (0, self._lanes):
            raise LedgerError(
                f"pipeline {self._pipeline!r} was started with {newest.lanes} lanes and has "
                f"{self._lanes} now (spark.sql.shuffle.partitions); rows would change lanes. Set "
                "it back."
            )
        self._mark = Mark.mine(newest.epoch + 1, 0 if self._narrow else self._lanes)
        self._make_stand_ins(before)
        self._run.begin(target=self.target, delivery=self._delivery, run=self._mark.epoch)
        if self._delivery != "exactly-once":
            return
        with ThreadPoolExecutor(OPENED_AT_ONCE) as pool:
            if self._narrow:
                list(pool.map(self._take_place, sorted(before)))
            else:
                list(pool.map(self._take_lane, range(self._lanes)))

    def _take_place(self, place: Place) -> None:
        self._take(self._names.group, self._names.place_id(place), [place])

    def _take_lane(self, lane: int) -> None:
        self._take(self._names.lane_group(lane), self._names.lane_id(lane), None)

    def _take(self, group: str, transactional_id: str, places: list[Place] | None) -> None:
        producer = open_producer(self._connection, transactional_id)
        held = committed(self._connection, group, self._stand_in)
        mine = [place for place in held if places is None or place in places]
        if not mine:
            return
        consumer = clients.consumer(self._connection, group_id=group)
        try:
            offsets = [
                TopicPartition(
                    kept_as(place[0], self._stand_in),
                    place[1],
                    held[place][0],
                    self._marked(held[place][1]).text(),
                )
                for place in mine
            ]
            with clients.explained(self._connection, f"taking over {transactional_id!r}"):
                producer.begin_transaction()
                producer.send_offsets_to_transaction(
                    offsets, consumer.consumer_group_metadata(), ANSWER_TIMEOUT
                )
                producer.commit_transaction(ANSWER_TIMEOUT)
        finally:
            consumer.close()

    def _marked(self, old: Mark) -> Mark:
        return replace(
            self._mark,
            topic_id=old.topic_id,
            checkpoint_id=old.checkpoint_id,
            first=old.first,
            lost=old.lost,
        )

    def _make_stand_ins(self, before: Mapping[Place, Any]) -> None:
        if not (self._stand_in or any(not is_topic(name) for name in self._read_topics)):
            return
        there = {topic.name: len(topic.partitions) for topic in self._topics.all()}
        read = {topic for topic, _ in before} | set(self._read_topics)
        sizes = {name: 1 for name in read if not is_topic(name)}
        if self._source_topics is not None:
            known = self._source_topics.all()
            sizes |= {t.name: len(t.partitions) for t in known if t.name in read and self._stand_in}
        for topic, wanted in sizes.items():
            name = kept_as(topic, self._stand_in)
            if name not in there:
                self._topics.create(name, partitions=wanted)
            elif there[name] < wanted:
                self._topics.alter(name, partitions=wanted)

    def lose(self, lost: Iterable[Range], reason: str) -> None:
        ranges = list(lost)
        for group in self._groups():
            held = self._held(group)
            consumer = clients.consumer(self._connection, group_id=group)
            try:
                for each in ranges:
                    self._move_past(each, held.get(each.place, (0, self._mark))[1], consumer)
            finally:
                consumer.close()

    def _move_past(self, lost: Range, old: Mark, consumer: Consumer) -> None:
        mark = replace(self._marked(old), lost=(*old.lost, (lost.start, lost.until))[-20:])
        name = kept_as(lost.topic, self._stand_in)
        with clients.explained(self._connection, "moving past a lost range"):
            consumer.commit(
                offsets=[TopicPartition(name, lost.partition, lost.until, mark.text())],
                asynchronous=False,
            )

    def sink(self, shape: Shape) -> KafkaTopicSink:
        claims = tuple(
            GroupClaim(self._pipeline, group, self._mark, self._stand_in, self._marks)
            for group in self._groups()
        )
        writer = KafkaWriter(
            self._connection,
            self._spec.topic,
            self._letters_topic,
            claims,
            self._names,
            self._delivery,
            0,
            {},
            False,
            self._narrow,
            self._spec.coordinates,
            shape.decoder,
            self._spec.key,
        )
        return KafkaTopicSink(
            self._connection,
            writer,
            self._spec.key,
            self._spec.format,
            shape.stateful,
            COORDINATES if shape.carries else (),
        )

    def remember(self, checkpoint_id: str | None, topic_ids: Mapping[str, str]) -> None:
        """Kept with the offsets of every batch from here on."""
        for topic, topic_id in topic_ids.items():
            self._marks[topic] = replace(self._mark, topic_id=topic_id, checkpoint_id=checkpoint_id)
        for name in self._read_topics:
            if not is_topic(name):
                self._marks[name] = replace(self._mark, checkpoint_id=checkpoint_id)

    def letters(self) -> int:
        """The letters read so far: counting goes on with every batch."""
        if self._counter is None:
            self._counter = clients.consumer(
                self._connection, group_id=f"{self._names.group}/count"
            )
            self._counter.assign([TopicPartition(self._letters_topic, 0, 0)])
        for message in self._counter.consume(10_000, 0.02):
            error = message.error()
            if error is None:
                self._counted += 1
            elif error.code() != KafkaError._PARTITION_EOF and error.fatal():
                break
        return self._counted

    def beat(self, progress: Mapping[str, Any]) -> bool:
        """A newer run is found out by the next commit."""
        return self._run.beat(progress)

    def end(self, outcome: str) -> None:
        self._run.end(outcome)
        if self._counter is not None:
            self._counter.close()
