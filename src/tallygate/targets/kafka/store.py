"""Kafka as the store of a pipeline: the target topic and the groups whose offsets are the
ledger."""

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from operator import itemgetter
from typing import Any, NamedTuple

from confluent_kafka import TopicPartition

from tallygate.core.decoding import COORDINATES
from tallygate.core.offsets import Known, Place, Range, is_topic
from tallygate.errors import LedgerError, TallygateError, TargetError, UnreachableError
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.kafka.fetch import HEADERS, HEADERS_DDL
from tallygate.kafka.topics import Topics
from tallygate.settings import Settings
from tallygate.spec import KafkaSink
from tallygate.targets.kafka.ledger import (
    GroupClaim,
    Held,
    Mark,
    Names,
    commit_offsets,
    committed,
    kept_as,
)
from tallygate.targets.kafka.letters import LetterCount, LetterTopic
from tallygate.targets.kafka.sink import KafkaTopicSink
from tallygate.targets.kafka.writer import KafkaWriter
from tallygate.targets.local_run import LocalRun
from tallygate.targets.store import Keeper, Shape

__all__ = ["KafkaStore"]

OPENED_AT_ONCE = 8
RENEWED_EVERY = 3600.0
LOST_KEPT = 20


class _Part(NamedTuple):
    """Offsets that one transactional id fences."""

    group: str
    transactional_id: str
    places: tuple[Place, ...]


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
        self._counter: LetterCount | None = None
        self._run = LocalRun(settings.runs_dir, pipeline)
        self._seen: dict[Place, int] = {}
        self._renewed_at = time.monotonic()

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
        if self._spec.format == "value" and HEADERS.name in columns:
            given = shape.schema[HEADERS.name].dataType.simpleString()
            if given != HEADERS_DDL:
                raise TargetError(
                    f"the column `headers`, which becomes the headers of records, is {given} and "
                    f"should be {HEADERS_DDL}; name it otherwise if it is something else."
                )
        if self._letters_topic not in names:
            self._topics.create_for_letters(self._letters_topic)
        self._narrow = shape.narrow
        self._check_way()

    def known(self) -> Known | None:
        groups = [self._held(group) for group in self._groups()]
        found = _merged(groups, min)
        if not found:
            return None
        marks = [mark for _, mark in found.values()]
        ids = {topic: mark.topic_id for (topic, _), (_, mark) in found.items() if mark.topic_id}
        newest = max(marks, key=lambda mark: mark.epoch)
        lowest = {place: at for place, (at, _) in found.items()}
        furthest = {place: at for place, (at, _) in _merged(groups, max).items()}
        halfway = None if furthest == lowest else furthest
        return Known(lowest, ids, newest.checkpoint_id, halfway)

    def _groups(self) -> list[str]:
        if self._narrow:
            return [self._names.group]
        return [self._names.lane_group(lane) for lane in range(self._lanes)]

    def _all(self) -> dict[Place, Held]:
        """The ledger: of several lanes the one that is furthest behind counts."""
        return _merged([self._held(group) for group in self._groups()], min)

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
        connection, claim = self._connection.travelling(), self._claim(group)
        return LetterTopic(connection, self._letters_topic, claim, self._names)

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
        with ThreadPoolExecutor(OPENED_AT_ONCE) as pool:
            list(pool.map(self._take, self._parts(before)))

    def _parts(self, places: Iterable[Place]) -> list[_Part]:
        """The offsets of some partitions, by what fences them."""
        names, every = self._names, tuple(sorted(places))
        if self._narrow:
            return [_Part(names.group, names.place_id(place), (place,)) for place in every]
        lanes = range(self._lanes)
        return [_Part(names.lane_group(lane), names.lane_id(lane), every) for lane in lanes]

    def _take(self, part: _Part) -> None:
        """Commit them anew, with this run's mark: whoever had the id is fenced."""

        def marked(held: Mapping[Place, Held]) -> list[TopicPartition]:
            return [
                TopicPartition(
                    kept_as(topic, self._stand_in), number, at, self._mark.after(mark).text()
                )
                for (topic, number), (at, mark) in held.items()
            ]

        self._commit(part, marked, f"taking over {part.transactional_id!r}")

    def _commit(
        self,
        part: _Part,
        chosen: Callable[[Mapping[Place, Held]], list[TopicPartition]],
        doing: str,
    ) -> None:
        claim = self._claim(part.group)
        name = part.transactional_id if self._delivery == "exactly-once" else None
        with clients.explained(self._connection, doing):
            commit_offsets(self._connection, claim, name, part.places, chosen)

    def _claim(self, group: str) -> GroupClaim:
        return GroupClaim(self._pipeline, group, self._mark, self._stand_in, self._marks)

    def _renew(self) -> None:
        """Commit anew what has not moved since the last look, lest Kafka forgets it. A batch that
        is just beginning there is fenced by this, or this by the batch: both are tried again.
        Without a fence it would be repeated, which at most once must not be."""
        if self._delivery == "at-most-once" or time.monotonic() < self._renewed_at + RENEWED_EVERY:
            return
        before, self._seen = self._seen, {place: at for place, (at, _) in self._all().items()}
        self._renewed_at = time.monotonic()
        still = {place for place, at in self._seen.items() if before.get(place) == at}
        if self._narrow or still == self._seen.keys():  # a lane commits all of them at a time
            for part in self._parts(still):
                self._take(part)

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
        """Go on after lost ranges. Each reaches to where the furthest lane is."""
        ranges = {each.place: each for each in lost}

        def moved(held: Mapping[Place, Held]) -> list[TopicPartition]:
            return [self._past(ranges[place], *held[place]) for place in held]

        for part in self._parts(ranges):
            self._commit(part, moved, "moving past a lost range")

    def _past(self, lost: Range, at: int, old: Mark) -> TopicPartition:
        if not lost.start <= at <= lost.until:
            raise LedgerError(f"the ledger moved while {lost} was given up; start again.")
        given_up = (*old.lost, (lost.start, lost.until))[-LOST_KEPT:]
        mark = replace(self._mark.after(old), lost=given_up)
        name = kept_as(lost.topic, self._stand_in)
        return TopicPartition(name, lost.partition, lost.until, mark.text())

    def sink(self, shape: Shape) -> KafkaTopicSink:
        claims = tuple(map(self._claim, self._groups()))
        writer = KafkaWriter(
            self._connection.travelling(),
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
        sink = KafkaTopicSink(
            self._connection,
            writer,
            self._spec.key,
            self._spec.format,
            shape.stateful,
            COORDINATES if shape.carries else (),
            shape.source,
        )
        if self._delivery == "at-most-once":
            # What is refused is not tried again: it has to be known before.
            with contextlib.suppress(TallygateError):
                sink.writer = replace(writer, limits=sink.rules())
        return sink

    def remember(self, checkpoint_id: str | None, topic_ids: Mapping[str, str]) -> None:
        """Kept with the offsets of every batch from here on."""
        for topic, topic_id in topic_ids.items():
            self._marks[topic] = replace(self._mark, topic_id=topic_id, checkpoint_id=checkpoint_id)
        for name in self._read_topics:
            if not is_topic(name):
                self._marks[name] = replace(self._mark, checkpoint_id=checkpoint_id)

    def letters(self) -> int:
        """All letters that are there: counting goes on with every batch. Brokers that do not
        answer just then are asked again with the next one."""
        if self._counter is None:
            self._counter = LetterCount(self._topics, self._letters_topic, self._names.pipeline)
            return self._counter.count()
        with contextlib.suppress(UnreachableError):
            return self._counter.count()
        return self._counter.counted

    def beat(self, progress: Mapping[str, Any]) -> bool:
        """A newer run is found out by the next commit."""
        self._renew()
        return self._run.beat(progress)

    def end(self, outcome: str) -> None:
        self._run.end(outcome)
        if self._counter is not None:
            self._counter.close()


def _merged(
    groups: Iterable[Mapping[Place, Held]], chosen: Callable[..., Held]
) -> dict[Place, Held]:
    """Of what several groups hold of each partition, the one that is furthest behind, or ahead."""
    found: dict[Place, Held] = {}
    for group in groups:
        for place, held in group.items():
            found[place] = chosen(found.get(place, held), held, key=itemgetter(0))
    return found
