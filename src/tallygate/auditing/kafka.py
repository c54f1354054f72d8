"""A topic's records, and what the groups of its pipeline claim of them (see `groups`)."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from confluent_kafka.admin import OffsetSpec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tallygate.auditing.groups import claims_of, groups_of, is_still, moment
from tallygate.auditing.ledger_snapshot import Claims
from tallygate.auditing.records import records
from tallygate.auditing.topic_checks import aborted_twins, disordered, two_readings
from tallygate.auditing.verdict import Anomaly
from tallygate.consumer.dead_letters import DeadLetter, list_dead_letters
from tallygate.consumer.retry import origin
from tallygate.core.decoding import COORDINATES
from tallygate.core.letters import Coordinates
from tallygate.core.offsets import Range
from tallygate.errors import LedgerError
from tallygate.kafka.connection import Connection
from tallygate.kafka.read import list_offsets
from tallygate.kafka.topics import Topics
from tallygate.settings import Settings
from tallygate.spec import KafkaSink
from tallygate.targets.batch_input import within
from tallygate.targets.kafka.groups import has_stand_ins
from tallygate.targets.kafka.ledger import Names
from tallygate.targets.kafka.records import SOURCE, as_records

ATTEMPTS = 5
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
    pipeline: str
    refuses = True

    @property
    def target(self) -> str:
        return f"topic {self.sink.topic}"

    @property
    def keeps_coordinates(self) -> bool:
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
            self.spark,
            self.connection,
            self.ranges,
            headers=self.keeps_coordinates,
            committed=committed,
        )
        own = [f.col("partition").alias("_at_partition"), f.col("offset").alias("_at_offset")]
        if not self.keeps_coordinates:
            return found.select("key", "value", *own)
        # Somebody else's record may have other headers, or any text in this one.
        given = f.expr(f"get(filter(headers, each -> each.key = '{SOURCE}'), 0).value")
        parts = [f.nullif(f.regexp_extract("_from", _PLACED, n), f.lit("")) for n in (1, 2, 3)]
        kinds = ("string", "int", "long")
        placed = [
            part.try_cast(kind).alias(name)
            for part, kind, name in zip(parts, kinds, COORDINATES, strict=True)
        ]
        placed_rows = found.withColumn("_from", given.cast("string"))
        return placed_rows.select("key", "value", *placed, *own)

    def shaped(self, frame: DataFrame, *, has_coordinates: bool) -> DataFrame:
        """With coordinates where the topic's records have them too, and where they must tell which
        value of a key is the last one."""
        kept = has_coordinates and (self.keeps_coordinates or self.compacted)
        if self.passes:
            return frame if kept else frame.drop(*COORDINATES)
        added = COORDINATES if has_coordinates else ()
        return as_records(
            frame,
            key=self.sink.key,
            format=self.sink.format,
            added=added,
            has_coordinates=kept,
        )

    def letter(self, at: Coordinates) -> str | None:
        if at not in self.claims.letters:
            return None
        found = _letters(self.letters_topic, self.pipeline, self.connection)
        return next((letter.cause for letter in found if origin(letter.record) == at), None)

    def own(self, expected: DataFrame, checked: Sequence[Range]) -> list[Anomaly]:
        """What Jepsen's workload looks for and rows alone do not tell."""
        seen = self._rows(committed=True)
        everything = self._rows(committed=False)
        found = two_readings(seen, everything)
        if self.keeps_coordinates:
            found += disordered(seen)
            claimed = within(self.claims.reached.values())
            known = seen.where(within(checked) | ~f.coalesce(claimed, f.lit(False)))
            return found + aborted_twins(
                known, seen, everything, expected, ["key", "value", *COORDINATES]
            )
        if set(checked) == set(filter(len, self.claims.reached.values())):
            found += aborted_twins(seen, seen, everything, expected, ["key", "value"])
        return found


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
    stand_in = has_stand_ins(Names(pipeline), source, target)
    groups = groups_of(Names(pipeline), target, stand_in=stand_in)
    narrow = groups == [Names(pipeline).group]
    topics = Topics(target, settings)
    numbers = topics.partition_counts()
    if sink.topic not in numbers:
        raise LedgerError(f"there is no topic {sink.topic!r} any more.")
    letters = sink.dead_letters or f"{pipeline}.dead-letters"
    read = (sink.topic, letters)
    partitions = [(topic, number) for topic in read for number in range(numbers.get(topic, 0))]
    for _ in range(ATTEMPTS):
        first, later, ends = moment(
            groups, partitions, target, stand_in=stand_in, timeout=settings.timeout
        )
        if (narrow and sink.coordinates) or is_still(first, later):
            break
    own = [partition for partition in partitions if partition[0] == sink.topic]
    earliest = list_offsets(partitions, OffsetSpec.earliest(), target)  # type: ignore[no-untyped-call]
    ranges = tuple(
        Range(*partition, min(earliest[partition], ends[partition]), ends[partition])
        for partition in own
    )
    kept = _letters(letters, pipeline, target) if letters in numbers else []
    claims = replace(
        claims_of(first, later, [origin(letter.record) for letter in kept]),
        forgotten=sum(earliest[partition] for partition in partitions if partition not in own),
    )
    policy = topics.effective_configs(sink.topic)
    yield TopicEvidence(
        spark, target, sink, ranges, claims, narrow, passes, policy, letters, pipeline
    )


def _letters(topic: str, pipeline: str, connection: Connection) -> list[DeadLetter]:
    """The pipeline's dead letters in a topic, which may hold those of other pipelines too."""
    found, name = list_dead_letters(topic, connection), pipeline.encode()
    return [letter for letter in found if letter.record.header("tallygate.pipeline") == name]
