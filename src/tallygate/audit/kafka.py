"""What a pipeline's groups claim of a topic, and the topic's records.

Rows and offsets are committed in one transaction, but Kafka does not show them at one moment: the
end of a transaction is written to each partition, and to the group's, one after the other. So
things are read in an order that makes up for it:

    1. the group's offsets, as far as they are committed: the **claim**
    2. the ends of the topic's partitions, open transactions included
    3. wait until no transaction is open before those ends
    4. the group's offsets again, when no transaction holds them any more: the **later** claim

**All that is claimed is in what is read.** A transaction sends its rows before it commits its
offsets, so the rows of the claim lie before the ends of step 2; after step 3 none of them is
hidden.

**All that is read is claimed later.** A row before those ends that is visible after step 3 is of
a transaction that was committed, and step 4 waits until its offsets count. So a row beyond the
later claim was put there by somebody else.

Rows of records between the claim and the later claim may be there or not: the pipeline was writing
them. If rows carry the coordinates of their records, these are passed over; if not, the two claims
must be the same, and the reading is repeated until the pipeline pauses for that long, or given up.

After a shuffle there is a group for each lane. The claim is what all lanes have done, the later
claim what any of them has.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from confluent_kafka import IsolationLevel
from confluent_kafka.admin import OffsetSpec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tallygate.audit.claims import Claims, Coordinates
from tallygate.audit.letters import read_topic_letters
from tallygate.audit.readings import aborted_twins, disordered, two_readings
from tallygate.audit.records import records
from tallygate.audit.verdict import Anomaly
from tallygate.errors import LedgerError
from tallygate.kafka.connection import Connection
from tallygate.kafka.reader import list_offsets
from tallygate.kafka.topics import Topics
from tallygate.ledger.group import Held, Names, committed
from tallygate.ledger.ranges import Place, Range
from tallygate.records.decoding import COORDINATES
from tallygate.settings import Settings
from tallygate.sinks.kafka.sink import as_records
from tallygate.spec import KafkaSink

__all__ = ["TopicEvidence", "topic_evidence"]

ATTEMPTS = 5
HEADER = "tallygate.source"
_PLACED = r"^(.*)/(\d+)@(\d+)$"


@dataclass(frozen=True)
class TopicEvidence:
    spark: SparkSession
    connection: Connection
    sink: KafkaSink
    ranges: tuple[Range, ...]
    """Of the topic itself: from its first record to the ends of step 2."""
    claims: Claims
    narrow: bool
    passes: bool
    """Whether records go to the topic as they are."""
    policy: Mapping[str, str]
    """What the topic's settings say of records that are removed."""
    letters_topic: str
    refuses = False

    @property
    def target(self) -> str:
        return f"topic {self.sink.topic}"

    @property
    def located(self) -> bool:
        return self.narrow and self.sink.coordinates

    @property
    def compacted(self) -> bool:
        return "compact" in self.policy.get("cleanup.policy", "")

    @property
    def removed(self) -> int:
        """How many offsets of the topic retention may have removed."""
        kept = all(self.policy.get(f"retention.{unit}", "-1") == "-1" for unit in ("ms", "bytes"))
        return 0 if kept else sum(each.start for each in self.ranges)

    def rows(self, within: Sequence[Range] | None = None) -> DataFrame:
        return self._rows(committed=True)

    def _rows(self, *, committed: bool) -> DataFrame:
        """Key, value, where the record came from, and where it is."""
        found = records(
            self.spark, self.connection, self.ranges, headers=self.located, committed=committed
        )
        own = [f.col("partition").alias("_at_partition"), f.col("offset").alias("_at_offset")]
        if not self.located:
            return found.select("key", "value", *own)
        given = f.expr(f"filter(headers, each -> each.key = '{HEADER}')[0].value").cast("string")
        parts = [f.nullif(f.regexp_extract("_from", _PLACED, n), f.lit("")) for n in (1, 2, 3)]
        kinds = ("string", "int", "long")
        placed = [
            part.cast(kind).alias(name)
            for part, kind, name in zip(parts, kinds, COORDINATES, strict=True)
        ]
        return found.withColumn("_from", given).select("key", "value", *placed, *own)

    def shaped(self, frame: DataFrame, *, carries: bool) -> DataFrame:
        if self.passes:
            return frame if self.located else frame.drop(*COORDINATES)
        added = COORDINATES if carries else ()
        return as_records(frame, self.sink.key, self.sink.format, added, carries=self.located)

    def letter(self, at: Coordinates) -> str | None:
        if at not in self.claims.letters:
            return None
        found = read_topic_letters(self.letters_topic, self.connection)
        return next((letter.cause for letter in found if letter.at == at), None)

    def own(self, expected: DataFrame) -> list[Anomaly]:
        """What Jepsen's workload looks for and rows alone do not tell."""
        seen = self._rows(committed=True)
        everything = self._rows(committed=False)
        found = two_readings(seen, everything)
        if self.located:
            found += disordered(seen)
        by = ["key", "value", *(COORDINATES if self.located else ())]
        return found + aborted_twins(seen, everything, expected, by)


@contextmanager
def topic_evidence(
    sink: KafkaSink,
    pipeline: str,
    source: Connection,
    target: Connection,
    spark: SparkSession,
    settings: Settings,
    *,
    passes: bool,
) -> Iterator[TopicEvidence]:
    stand_in = source.bootstrap_servers != target.bootstrap_servers
    groups = _groups(Names(pipeline), target, stand_in)
    narrow = groups == [Names(pipeline).group]
    topics = Topics(target, settings)
    numbers = topics.partition_counts()
    if sink.topic not in numbers:
        raise LedgerError(f"there is no topic {sink.topic!r} any more.")
    places = [(sink.topic, number) for number in range(numbers[sink.topic])]
    for _ in range(ATTEMPTS):
        first, later, ends = _moment(groups, places, target, stand_in, settings.timeout)
        if (narrow and sink.coordinates) or _furthest(later) == _claimed(first):
            break
    earliest = list_offsets(places, OffsetSpec.earliest(), target)  # type: ignore[no-untyped-call]
    ranges = tuple(Range(*place, min(earliest[place], ends[place]), ends[place]) for place in ends)
    letters = sink.dead_letters or f"{pipeline}.dead-letters"
    claims = _claims(first, later, _letters(letters, target) if letters in numbers else ())
    policy = topics.effective_configs(sink.topic)
    yield TopicEvidence(spark, target, sink, ranges, claims, narrow, passes, policy, letters)


def _letters(topic: str, connection: Connection) -> list[Coordinates]:
    return [letter.at for letter in read_topic_letters(topic, connection)]


def _groups(names: Names, connection: Connection, stand_in: bool) -> list[str]:
    """The groups that are the ledger: one, or one a lane."""
    if any(mark.epoch for _, mark in committed(connection, names.group, stand_in).values()):
        return [names.group]
    marks = [mark for _, mark in committed(connection, names.lane_group(0), stand_in).values()]
    lanes = max((mark.lanes for mark in marks), default=0)
    if not lanes:
        raise LedgerError(f"pipeline {names.pipeline!r} has never written to this cluster.")
    return [names.lane_group(lane) for lane in range(lanes)]


Lanes = Sequence[Mapping[Place, Held]]


def _moment(
    groups: Sequence[str],
    places: list[Place],
    connection: Connection,
    stand_in: bool,
    timeout: float,
) -> tuple[Lanes, Lanes, dict[Place, int]]:
    """The four steps."""
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    first = [committed(connection, group, stand_in) for group in groups]
    ends = list_offsets(places, latest, connection)
    give_up = time.monotonic() + timeout
    while True:
        settled = list_offsets(places, latest, connection, IsolationLevel.READ_COMMITTED)
        open_ones = [place for place in places if settled[place] < ends[place]]
        if not open_ones:
            break
        if time.monotonic() > give_up:
            raise LedgerError(
                f"a transaction has been open in {open_ones[0][0]}/{open_ones[0][1]} from offset "
                f"{settled[open_ones[0]]} on for longer than {timeout:g} s, so what is committed "
                "beyond cannot be seen; try again when it has ended."
            )
        time.sleep(0.05)
    later = [committed(connection, group, stand_in, settled=True) for group in groups]
    return first, later, ends


def _claimed(lanes: Lanes) -> dict[Place, int]:
    """What all lanes have done."""
    return {
        place: min(held[place][0] if place in held else 0 for held in lanes)
        for place in {place for held in lanes for place in held}
    }


def _furthest(lanes: Lanes) -> dict[Place, int]:
    return {
        place: max(held[place][0] for held in lanes if place in held)
        for place in {place for held in lanes for place in held}
    }


def _claims(first: Lanes, later: Lanes, letters: Sequence[tuple[str, int, int]]) -> Claims:
    marks = {place: mark for held in later for place, (_, mark) in held.items()}
    claimed, furthest = _claimed(first), _furthest(later)
    begun = {place: mark.first for place, mark in marks.items()}
    ranges = {
        place: Range(*place, begun[place] or 0, claimed.get(place, begun[place] or 0))
        for place in furthest
    }
    unsaid = [f"{topic}/{number}" for (topic, number), at in sorted(begun.items()) if at is None]
    return Claims(
        ranges,
        tuple(Range(*place, *each) for place, mark in sorted(marks.items()) for each in mark.lost),
        frozenset(each for each in letters if each[2] < claimed.get((each[0], each[1]), 0)),
        {topic: mark.topic_id for (topic, _), mark in marks.items() if mark.topic_id},
        later=furthest,
        unknown=tuple(
            f"where the pipeline began in {place} is not in its ledger; 0 was taken for it"
            for place in unsaid
        ),
    )
