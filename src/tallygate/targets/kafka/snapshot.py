"""A topic's records, and what the groups of its pipeline say of them.

Rows and offsets are committed in one transaction, but Kafka does not show them at one moment: the
end of a transaction is written to each partition, and to the group's, one after the other. So
things are read in an order that makes up for it:

    1. the group's offsets, as far as they are committed: the **ledger**
    2. the ends of the topic's partitions and of its dead letters', open transactions included
    3. wait until no transaction is open before those ends
    4. the group's offsets again, when no transaction holds them any more: the **later** ledger

**All that the ledger is past is in what is read.** A transaction sends its rows before it commits
its offsets, so the rows and letters of the ledger lie before the ends of step 2; after step 3 none
of them is hidden.

**The later ledger is past all that is read.** A row before those ends that is visible after step 3
is of a transaction that was committed, and step 4 waits until its offsets count. So a row beyond
the later ledger was put there by another program.

Rows of records between the ledger and the later one may be there or not: the pipeline was writing
them. If rows carry the coordinates of their records, these are passed over; if not, the two must be
the same, and the reading is repeated until the pipeline pauses for that long, or given up.

After a shuffle there is a group for each lane. The ledger is what all lanes have done, the later
one what any of them has.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from confluent_kafka.admin import OffsetSpec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tallygate.core.decoding import COORDINATES
from tallygate.core.ledger import LedgerState
from tallygate.core.ledger_snapshot import LedgerSnapshot
from tallygate.core.letters import Coordinates
from tallygate.core.offsets import Range, TopicPartition
from tallygate.errors import LedgerError
from tallygate.kafka.connection import Connection
from tallygate.kafka.read import is_settled, list_offsets
from tallygate.kafka.topics import Topics
from tallygate.spark.records import records
from tallygate.spec import KafkaSink
from tallygate.targets.kafka.groups import Lanes, kept_lanes, state_of
from tallygate.targets.kafka.ledger import Names, committed_in
from tallygate.targets.kafka.letters import letters_in
from tallygate.targets.kafka.records import SOURCE, as_records
from tallygate.targets.snapshot import Readings, Snapshot, newest_by_key
from tallygate.waiting import wait_until

ATTEMPTS = 5
_PLACED = r"^(.*)/(\d+)@(\d+)$"


@dataclass(frozen=True, kw_only=True)
class KafkaSnapshot(Snapshot):
    refuses: bool = True
    is_text: bool = True
    spark: SparkSession
    connection: Connection
    sink: KafkaSink
    ranges: tuple[Range, ...]
    """Of the topic itself: from its first record to the ends of step 2."""
    keeps_coordinates: bool
    compacted: bool
    letters_topic: str
    pipeline: str

    def rows(self, within: Sequence[Range] | None = None) -> DataFrame:
        return self._rows(committed=True)

    def readings(self) -> Readings:
        return Readings(self._rows(committed=True), self._rows(committed=False))

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
        # A record of another program may have other headers, or any text in this one.
        given = f.expr(f"get(filter(headers, each -> each.key = '{SOURCE}'), 0).value")
        parts = [f.nullif(f.regexp_extract("_from", _PLACED, n), f.lit("")) for n in (1, 2, 3)]
        kinds = ("string", "int", "long")
        placed = [
            part.try_cast(kind).alias(name)
            for part, kind, name in zip(parts, kinds, COORDINATES, strict=True)
        ]
        placed_rows = found.withColumn("_from", given.cast("string"))
        return placed_rows.select("key", "value", *placed, *own)

    def shaped(self, frame: DataFrame, *, has_coordinates: bool, passed: bool) -> DataFrame:
        """With coordinates where the topic's records have them too, and where they must tell which
        value of a key is the last one."""
        kept = has_coordinates and (self.keeps_coordinates or self.compacted)
        if passed:
            return frame if kept else frame.drop(*COORDINATES)
        added = COORDINATES if has_coordinates else ()
        return as_records(
            frame,
            key=self.sink.key,
            format=self.sink.format,
            added=added,
            has_coordinates=kept,
        )

    def that_count(self, rows: DataFrame) -> DataFrame:
        """A compacted topic keeps the last value of each key."""
        if not self.compacted:
            return rows
        placed = rows.select("key", "value", f.col("_at_offset").alias("_offset"))
        return newest_by_key(placed, ["key"]).drop("_offset")

    def still_due(self, expected: DataFrame, rows: DataFrame) -> DataFrame:
        """A key without a value marks its removal, and after a while is removed itself."""
        if not self.compacted:
            return expected
        marks = expected.where("value IS NULL").select("key").distinct()
        return expected.join(marks.join(rows, "key", "left_anti"), "key", "left_anti")

    def letter(self, at: Coordinates) -> str | None:
        if at not in self.ledger.letters:
            return None
        found = letters_in(self.letters_topic, self.pipeline, self.connection)
        return next((letter.cause for letter in found if letter.at == at), None)


@contextmanager
def snapshot_of(
    sink: KafkaSink,
    names: Names,
    *,
    letters_topic: str,
    stand_in: bool,
    topics: Topics,
    timeout: float,
    spark: SparkSession,
) -> Iterator[KafkaSnapshot]:
    connection, pipeline = topics.connection, names.pipeline
    lanes = kept_lanes(names, connection, stand_in=stand_in)
    if lanes is None:
        raise LedgerError(f"pipeline {pipeline!r} has never written to this cluster.")
    counts = topics.partition_counts()
    if sink.topic not in counts:
        raise LedgerError(f"there is no topic {sink.topic!r} any more.")
    own, others = (
        [(topic, number) for number in range(counts.get(topic, 0))]
        for topic in (sink.topic, letters_topic)
    )
    keeps_coordinates = not lanes and sink.coordinates
    for _ in range(ATTEMPTS):
        first, later, ends = _moment(
            names.groups(lanes), [*own, *others], connection, stand_in=stand_in, timeout=timeout
        )
        if keeps_coordinates or _is_still(first, later):
            break
    earliest = list_offsets([*own, *others], OffsetSpec.earliest(), connection)  # type: ignore[no-untyped-call]
    ranges = tuple(Range(*each, min(earliest[each], ends[each]), ends[each]) for each in own)
    letters = letters_in(letters_topic, pipeline, connection) if others else []
    forgotten = sum(earliest[each] for each in others)
    policy = topics.effective_configs(sink.topic)
    kept = all(policy.get(f"retention.{unit}", "-1") == "-1" for unit in ("ms", "bytes"))
    compacted = "compact" in policy.get("cleanup.policy", "")
    yield KafkaSnapshot(
        name=f"topic {sink.topic}",
        ledger=ledger_of(first, later, (each.at for each in letters), forgotten=forgotten),
        key=("key",) if compacted else (),
        keeps_newest=compacted and not lanes,  # in lanes rows come in the order of a shuffle
        removed=0 if kept else sum(each.start for each in ranges),
        lists_letters=f"see `tallygate dead-letters list {letters_topic}`",
        spark=spark,
        connection=connection,
        sink=sink,
        ranges=ranges,
        keeps_coordinates=keeps_coordinates,
        compacted=compacted,
        letters_topic=letters_topic,
        pipeline=pipeline,
    )


def _moment(
    groups: Sequence[str],
    partitions: list[TopicPartition],
    connection: Connection,
    *,
    stand_in: bool,
    timeout: float,
) -> tuple[Lanes, Lanes, Mapping[TopicPartition, int]]:
    """The four steps."""
    topics = " or ".join(dict.fromkeys(topic for topic, _ in partitions))
    first = committed_in(groups, connection, stand_in=stand_in)
    ends = list_offsets(partitions, OffsetSpec.latest(), connection)  # type: ignore[no-untyped-call]
    wait_until(
        lambda: is_settled(ends, connection),
        timeout,
        f"a transaction has been open in topic {topics} for longer than {timeout:g} s, so "
        "what is committed beyond it cannot be seen; try again when it has ended.",
        error=LedgerError,
    )
    later = committed_in(groups, connection, stand_in=stand_in, settled=True)
    return first, later, ends


def _is_still(first: Lanes, later: Lanes) -> bool:
    """Whether the pipeline wrote nothing meanwhile, and all lanes are as far as each other."""
    return _furthest(state_of(later)) == _done(first)


def _done(lanes: Lanes) -> dict[TopicPartition, int]:
    """What all lanes have done: one that lacks a partition has done nothing of it."""
    return {
        partition: min(held[partition].offset if partition in held else 0 for held in lanes)
        for partition in {partition for held in lanes for partition in held}
    }


def _furthest(state: LedgerState | None) -> Mapping[TopicPartition, int]:
    return {} if state is None else state.furthest or state.positions


def ledger_of(
    first: Lanes, later: Lanes, letters: Iterable[Coordinates], *, forgotten: int = 0
) -> LedgerSnapshot:
    """The ledger of step 1 with what the marks of step 4 say, and where it was then."""
    state, done = state_of(later) or LedgerState(), _done(first)
    furthest = _furthest(state)
    begun = {partition: state.begun.get(partition, 0) for partition in furthest}
    at = {partition: max(start, done.get(partition, 0)) for partition, start in begun.items()}
    return LedgerSnapshot.of(
        replace(state, begun=begun, positions=at),
        letters,
        later=furthest,
        unknown=tuple(
            f"where the pipeline began in {topic}/{number} is not in its ledger; 0 was taken for it"
            for topic, number in sorted(furthest.keys() - state.begun.keys())
        ),
        forgotten=forgotten,
    )
