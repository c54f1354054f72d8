"""A topic as a target: its rows, and the groups of Kafka whose offsets are the ledger."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession

from tallygate.core.decoding import COORDINATES
from tallygate.core.ledger import (
    Claim,
    CutOff,
    Forget,
    LedgerChange,
    LedgerState,
    Lose,
    Remember,
    Retarget,
    Run,
)
from tallygate.core.letters import DeadLetter
from tallygate.core.offsets import Range, TopicPartition, is_topic
from tallygate.errors import LedgerError, TallygateError, TargetError, TopicError, UnreachableError
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.kafka.fetch import HEADERS
from tallygate.kafka.groups import topic_ids
from tallygate.kafka.topics import Topics
from tallygate.settings import Settings
from tallygate.spec import KafkaSink
from tallygate.targets.base import (
    RefusedRowsError,
    RowShape,
    Target,
    Traits,
    UnknownOutcomeError,
    WriteBatch,
    Written,
)
from tallygate.targets.kafka.groups import PipelineGroups, kept_lanes, newest_of
from tallygate.targets.kafka.lanes import LaneChoice, check_unchanged
from tallygate.targets.kafka.ledger import GroupLedger, Names, kept_as
from tallygate.targets.kafka.letters import LetterCount, LetterTopic, letters_in
from tallygate.targets.kafka.limits import Limits, largest_letter
from tallygate.targets.kafka.marks import count_known
from tallygate.targets.kafka.records import as_records, check_columns, key_column
from tallygate.targets.kafka.snapshot import snapshot_of
from tallygate.targets.kafka.stand_ins import has_stand_ins, make_stand_ins, make_topic
from tallygate.targets.kafka.write import BatchWriter
from tallygate.targets.local_run import LocalRun
from tallygate.targets.snapshot import Snapshot

RENEWED_EVERY = 3600.0


class KafkaTarget(Target):
    def __init__(
        self,
        spec: KafkaSink,
        *,
        pipeline: str,
        delivery: str,
        source: Connection | None,
        target: Connection,
        topics: tuple[str, ...],
        lanes: int,
        settings: Settings,
        runs: Path | None = None,
    ) -> None:
        """`topics` are those that are known to be read, and the names of the other sources; `lanes`
        how many there are if rows are shuffled; `runs` where its runs are noted, if they belong to
        a stack."""
        self.pipeline, self.delivery = pipeline, delivery
        self.local_run = LocalRun(runs or settings.runs_dir, pipeline)
        self._spec, self._settings = spec, settings
        self._source, self._connection = source, target
        self._names, self._lanes, self._read_topics = Names(pipeline), lanes, topics
        self._letters_topic = spec.dead_letters or f"{pipeline}.dead-letters"
        self._shape: RowShape | None = None
        self._choice: LaneChoice | None = None
        self._topic_id: str | None = None
        self._has_stand_ins: bool | None = None
        self._claimed = False
        self._done: dict[TopicPartition, int] = {}
        """Where the ledger was when the run took over."""
        self._held: frozenset[TopicPartition] = frozenset()
        """The partitions that the ledger had when it was asked last."""
        self._known: dict[str, int] = {}
        """How many of each topic all of its groups have."""
        self._largest_letter = sys.maxsize
        self.traits = self._traits(narrow=True)
        self._remembered = Remember(None, {})
        self._limits: Limits | None = None
        self._begun: set[TopicPartition] = set()
        self._counter: LetterCount | None = None
        self._seen: dict[TopicPartition, int] = {}
        self._renewed_at = time.monotonic()
        self._watcher: AdminClient | None = None
        """Asks for newer runs: to make a client for each heartbeat takes longer than to ask."""

    @property
    def name(self) -> str:
        return f"topic {self._spec.topic}"

    def _traits(self, *, narrow: bool) -> Traits:
        return Traits(
            is_topic=True,
            decodes=True,
            headers=True,
            partition_a_task=narrow,
            divisible=narrow,
        )

    def open(self, shape: RowShape) -> None:
        topics = Topics(self._connection, self._settings)
        names = set(topics.names())
        if self._spec.topic not in names:
            raise TargetError(
                f"there is no topic {self._spec.topic!r} to write to; make it with "
                f"`tallygate topic create {self._spec.topic} --partitions N`."
            )
        check_columns(self._spec, shape.schema)
        if self._letters_topic not in names:
            topics.create_for_letters(self._letters_topic)
        self._look_up_letters(topics)
        self._check_strategy(shape)
        key = key_column(self._spec, shape.schema)
        self._choice = None if shape.narrow else LaneChoice.of(shape, key)
        self._shape, self.traits = shape, self._traits(narrow=shape.narrow)
        self._topic_id = topic_ids([self._spec.topic], self._connection).get(self._spec.topic)
        if self._topic_id is None:
            raise UnreachableError(
                f"topic {self._spec.topic!r} is not known to every broker yet; start again in a "
                "moment."
            )

    def _look_up_letters(self, topics: Topics) -> bool:
        """What the topic of dead letters takes; the answer is whether that is news."""
        before = self._largest_letter
        self._largest_letter = largest_letter(topics, self._letters_topic, before)
        return self._largest_letter != before

    @property
    def _stand_in(self) -> bool:
        """Whether offsets are kept for stand-ins of the source's topics: asked when it is first
        needed, since clusters have to answer."""
        if self._has_stand_ins is None:
            self._has_stand_ins = has_stand_ins(self._names, self._source, self._connection)
        return self._has_stand_ins

    def identity(self) -> str | None:
        return self._topic_id

    def _check_strategy(self, shape: RowShape) -> None:
        """A pipeline that wrote by partition cannot go on in lanes, nor the other way round: the
        ledger of the one is not that of the other."""
        lanes = kept_lanes(self._names, self._connection, stand_in=self._stand_in)
        if lanes is None or bool(lanes) is not shape.narrow:
            return
        was, now = ("in lanes", "by partition") if shape.narrow else ("by partition", "in lanes")
        raise LedgerError(
            f"pipeline {self.pipeline!r} wrote {was} so far and would write {now} with this "
            "transform, so it cannot go on from its ledger. Set the transform back, or choose "
            "another name and another topic."
        )

    def ledger(self) -> LedgerState | None:
        """Once the run has taken over, this waits for commits that Kafka has answered and does not
        show yet. Before, a transaction that a dead run left open may hold offsets for minutes: what
        was committed until then counts, and taking over ends it."""
        state = self._groups().state(settled=self._claimed)
        self._held = frozenset() if state is None else frozenset(state.positions)
        return state

    def _groups(self) -> PipelineGroups:
        """Before the target is opened it is not known how rows will come: then those groups count
        that there are."""
        if self._shape is not None:
            lanes = 0 if self._shape.narrow else self._lanes
        else:
            lanes = kept_lanes(self._names, self._connection, stand_in=self._stand_in) or 0
        return PipelineGroups(
            connection=self._connection,
            names=self._names,
            lanes=lanes,
            stand_in=self._stand_in,
            target=self._topic_id,
            by=None if self._choice is None else self._choice.text(),
        )

    def take_over(self, shape: RowShape, checkpoint: str) -> Claim:
        """Fence the runs that had the ids, and write the new epoch beside every offset."""
        groups = self._groups()
        before = groups.behind()
        newest = newest_of(position.mark for position in before.values())
        if groups.lanes and newest.lanes not in (0, groups.lanes):
            raise LedgerError(
                f"pipeline {self.pipeline!r} was started with {newest.lanes} lanes and has "
                f"{groups.lanes} now (spark.sql.shuffle.partitions); rows would change lanes. Set "
                "it back."
            )
        state = groups.state()
        if groups.by is not None and state is not None and state.furthest is not None:
            check_unchanged(self.pipeline, newest.by, groups.by)
        claim = Claim(self.pipeline, Run.mine(newest.run.epoch + 1))
        self._make_stand_ins(before)
        self.local_run.begin(target=self.name, delivery=self.delivery, run=claim.run.epoch)
        if state is not None:
            self._remembered = Remember(state.checkpoint_id, state.topic_ids)
        self._known = count_known(groups.in_all())
        groups.mark_again(claim, self._remembered, before, self._known)
        self._claimed = True
        done = groups.behind(settled=True)  # what an older run committed just before may be new
        self._done = {at: position.offset for at, position in done.items()}
        self.letter_keeper(claim).withdraw()
        return claim

    def _make_stand_ins(self, before: Iterable[TopicPartition]) -> None:
        read = {topic for topic, _ in before} | set(self._read_topics)
        source = self._source if self._stand_in else None
        if self._stand_in or not all(map(is_topic, self._read_topics)):
            make_stand_ins(read, source, Topics(self._connection, self._settings), self._settings)

    def amend(self, claim: Claim, change: LedgerChange) -> None:
        """What is to be remembered goes with every later commit of this run; where the ledger knows
        partitions already, with their positions at once."""
        groups = self._groups()
        if isinstance(change, Lose):
            groups.lose(claim, self._remembered, change)
            return
        if isinstance(change, CutOff):
            groups.cut_off(claim, self._remembered, change)
            return
        if isinstance(change, Retarget):
            groups.retarget(claim, self._remembered)
            return
        if isinstance(change, Forget):
            self._forget(groups, claim, change)
            return
        ids = {**self._remembered.topic_ids, **change.topic_ids}
        self._remembered = Remember(change.checkpoint_id, ids, change.spec)
        state = groups.state()
        if state is not None and change.applied(state) != state:
            groups.mark_again(claim, self._remembered, state.positions, self._known)

    def _forget(self, groups: PipelineGroups, claim: Claim, change: Forget) -> None:
        """Its positions are kept for a topic that exists for this alone. Dead letters first: how
        far they came must not be taken for that of another topic of that name."""
        topics = Topics(self._connection, self._settings)
        wanted = max(each.partition for each in change.ranges) + 1
        name = kept_as(change.name, stand_in=self._stand_in)
        make_topic(topics, topics.partition_counts(), name, wanted)
        with clients.explain_errors(self._connection, f"forgetting topic {change.topic!r}"):
            self.letter_keeper(claim).forget(change)
        groups.forget(claim, self._remembered, change)

    def write(self, claim: Claim, batch: WriteBatch) -> Written:
        self._look_up_limits()
        known = count_known(self._held.union(each.topic_partition for each in batch.new))
        groups = replace(self._groups(), known=known)
        writer = self._writer(groups.ledgers(claim, self._remembered, batch.epochs), batch)
        try:
            written = self._written(writer, groups, batch)
        except RefusedRowsError as refusal:
            raise self._refused(refusal) from refusal
        self._known = known  # by now new ones are begun
        with contextlib.suppress(UnreachableError):  # the batch is written
            writer.check_topic()
        return written

    def _written(self, writer: BatchWriter, groups: PipelineGroups, batch: WriteBatch) -> Written:
        if self._opened().narrow:
            return writer.by_partition(batch)
        self._begin_lanes(writer, groups, batch)
        if not any(map(len, batch.left)) and not self._opened().stateful:
            return Written("lanes")
        return writer.by_lane(batch)

    def _writer(self, ledgers: tuple[GroupLedger, ...], batch: WriteBatch) -> BatchWriter:
        return BatchWriter(
            connection=self._connection.travelling(),
            topic=self._spec.topic,
            letters_topic=self._letters_topic,
            largest_letter=self._largest_letter,
            ledgers=ledgers,
            delivery=self.delivery,
            batch=batch.id,
            left=batch.left,
            letters=batch.letters,
            narrow=self._opened().narrow,
            coordinates=self._spec.coordinates,
            key=self._spec.key,
            limits=self._limits,
            topic_id=self._topic_id,
        )

    def _begin_lanes(self, writer: BatchWriter, groups: PipelineGroups, batch: WriteBatch) -> None:
        """Write down in every lane where its partitions begin, before any lane moves: otherwise
        a lane that has not written yet would be overlooked when the others are asked. A run that
        was killed while it did so has left some of them to this one."""
        new = {each.topic_partition: each for each in batch.left}
        if new.keys() <= self._begun:
            return
        lanes = groups.positions(settled=True)
        begun = {
            at: Range(*at, position.offset, position.offset)
            for held in lanes
            for at, position in held.items()
        }
        for lane, held in enumerate(lanes):
            starts = [each for at, each in {**begun, **new}.items() if at not in held]
            if starts:
                writer.begin(writer.ledgers[lane], self._names.lane_id(lane), starts)
        self._begun |= new.keys()

    def _look_up_limits(self) -> None:
        """Someone who saw dead letters may have changed the rules by now. At most once, what is
        refused is not tried again: its rules have to be known before."""
        if self._limits is not None or self.delivery == "at-most-once":
            with contextlib.suppress(TallygateError):
                self._limits = self._rules()

    def _rules(self) -> Limits:
        return Limits.of(Topics(self._connection, self._settings), self._spec.topic)

    def _refused(self, refusal: RefusedRowsError) -> Exception:
        """A topic that refuses a record is asked for its rules, and the batch is written again by
        them. If it refuses by them as well, to try again would never end. It may be the topic of
        dead letters, whose rules are others now than they were at the start."""
        limits = self._limits
        try:
            news = self._look_up_letters(Topics(self._connection, self._settings))
            with contextlib.suppress(TopicError):  # who may write may not be one who may ask
                limits = self._rules()
        except UnreachableError as error:
            return UnknownOutcomeError(str(error))
        except TallygateError:
            return refusal
        if limits == self._limits and not news:
            return refusal
        self._limits = limits
        # At most once, the offsets are saved by now: nothing would be written again.
        return refusal if self.delivery == "at-most-once" else UnknownOutcomeError(str(refusal))

    def letter_keeper(self, claim: Claim | None) -> LetterTopic:
        """Without a claim, nothing is asked of Kafka."""
        connection = self._connection.travelling()
        groups = None if claim is None else replace(self._groups(), connection=connection)
        ledger = GroupLedger(
            group=self._names.letters_group,
            claim=claim or Claim(self.pipeline, Run()),
            stand_in=groups is not None and groups.stand_in,
        )
        return LetterTopic(
            connection=connection,
            topic=self._letters_topic,
            largest=self._largest_letter,
            ledger=ledger,
            groups=groups,
            done=self._done,
        )

    def letter_count(self) -> int:
        """All dead letters that are there: counting goes on with every batch. Brokers that do not
        answer just then are asked again with the next one."""
        if self._counter is None:
            topics = Topics(self._connection, self._settings)
            self._counter = LetterCount(topics, self._letters_topic, self.pipeline)
            return self._counter.count()
        with contextlib.suppress(UnreachableError):
            return self._counter.count()
        return self._counter.counted

    def first_causes(self, ranges: Sequence[Range], most: int) -> list[str]:
        """Of those that were counted last, which are the newest batch's."""
        return [] if self._counter is None else self._counter.causes[:most]

    def letters(self) -> list[DeadLetter]:
        return letters_in(self._letters_topic, self.pipeline, self._connection)

    def snapshot(
        self, spark: SparkSession, shape: Callable[[], RowShape]
    ) -> contextlib.AbstractContextManager[Snapshot]:
        return snapshot_of(
            self._spec,
            self._names,
            letters_topic=self._letters_topic,
            stand_in=self._stand_in,
            topics=Topics(self._connection, self._settings),
            timeout=self._settings.timeout,
            spark=spark,
        )

    def prepared(self, frame: DataFrame) -> DataFrame:
        """Rows as key, value, coordinates and headers; raw records are made into that by tasks."""
        shape = self._opened()
        if shape.decoder is not None:
            return frame
        return as_records(
            frame,
            key=self._spec.key,
            format=self._spec.format,
            added=COORDINATES if shape.has_coordinates else (),
            has_coordinates=shape.has_coordinates,
            headers=self._spec.format == "value" and HEADERS.name in frame.columns,
            lane=None if self._choice is None else self._choice.value(),
        )

    def _opened(self) -> RowShape:
        if self._shape is None:
            raise LedgerError("the target was not opened")
        return self._shape

    def beat(self, claim: Claim, progress: Mapping[str, Any]) -> bool:
        """A newer run is found before anything is renewed, which would fence its producers."""
        asked = self.local_run.beat(progress)
        if self._watcher is None:
            self._watcher = clients.admin(self._connection)
        self._groups().check_newest(claim, self._watcher)
        self._renew(claim)
        return asked

    def _renew(self, claim: Claim) -> None:
        """Commit again what has not moved since the last look, lest Kafka forgets it. A batch that
        is just beginning there is fenced by this, or this by the batch: both are tried again."""
        if time.monotonic() < self._renewed_at + RENEWED_EVERY:
            return
        groups = self._groups()
        before = self._seen
        self._seen = {at: position.offset for at, position in groups.behind().items()}
        self._renewed_at = time.monotonic()
        still = {at for at, offset in self._seen.items() if before.get(at) == offset}
        if not groups.lanes or still == self._seen.keys():  # a lane commits all of them at a time
            groups.mark_again(claim, self._remembered, still, self._known)

    def end(self, claim: Claim, outcome: str) -> None:
        super().end(claim, outcome)
        if self._counter is not None:
            self._counter.close()
