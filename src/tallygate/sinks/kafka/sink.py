"""Writing a batch to Kafka: a transaction for each task, which holds rows and offsets.

  narrow     each Spark partition holds one Kafka partition: its transaction commits that offset.
  shuffled   a fixed number of lanes, rows sent to them by their key: each lane's transaction
  commits
             all source offsets in a group of the lane's own.

A lane may be ahead of another by one batch after a crash. Spark repeats that batch with the same
rows, and each lane skips it or writes it by its own offsets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from confluent_kafka import KafkaException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tallygate.errors import LedgerError, TopicError, UnreachableError
from tallygate.failpoints import reach
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.ledger.group import GroupClaim, committed
from tallygate.ledger.ranges import MovedError, Place, Range, remaining
from tallygate.records.decoding import COORDINATES
from tallygate.sinks.kafka.writer import KafkaWriter
from tallygate.sinks.sink import Batch, Retry, Written
from tallygate.sinks.tasks import Report, run_tasks, slowest

__all__ = ["KafkaTopicSink", "as_records"]


@dataclass
class KafkaTopicSink:
    connection: Connection
    writer: KafkaWriter
    """What every batch's tasks have in common."""
    key: str | None
    format: str
    stateful: bool
    added: tuple[str, ...]
    """Columns that are not the user's."""
    _begun: set[Place] = field(default_factory=set, init=False)

    @property
    def _claims(self) -> tuple[GroupClaim, ...]:
        return self.writer.claims

    def positions(self) -> Mapping[Place, int]:
        """Up to where every lane is."""
        lowest: dict[Place, int] = {}
        for claim in self._claims:
            for place, (at, _) in committed(self.connection, claim.group, claim.stand_in).items():
                lowest[place] = min(at, lowest.get(place, at))
        return lowest

    def write(self, frame: DataFrame, batch: Batch) -> Written:
        try:
            return self._narrow(frame, batch) if self.writer.carries else self._lanes(frame, batch)
        except (MovedError, TopicError, UnreachableError, KafkaException) as error:
            raise Retry(str(error)) from error

    def _narrow(self, frame: DataFrame, batch: Batch) -> Written:
        left = remaining(batch.ranges, self.positions(), divisible=True)
        reach("batch-planned", batch.id)
        if not left:
            return Written("skipped")
        partitions = frame._jdf.queryExecution().toRdd().getNumPartitions()
        if partitions != len(batch.whole):
            raise LedgerError(
                f"the batch has {partitions} Spark partitions for {len(batch.whole)} of Kafka; "
                "remove the source's option minPartitions or maxRecordsPerPartition."
            )
        writer = self._writer(batch, left, trim=batch.is_in_part(left))
        reports = run_tasks(self._prepared(frame), writer.write)
        done = {(report.topic, report.partition) for report in reports}
        writer.move(each for each in left if each.place not in done)
        return _written("narrow", reports)

    def _lanes(self, frame: DataFrame, batch: Batch) -> Written:
        reach("batch-planned", batch.id)
        self._begin_lanes(batch.ranges)
        if not batch.whole and not self.stateful:
            return Written("skipped")
        writer = self._writer(batch, batch.ranges, trim=False)
        prepared = self._prepared(frame)
        keyed = prepared.repartition(len(self._claims), f.coalesce("key", "value"))
        return _written("shuffled", run_tasks(keyed, writer.write_lane))

    def _begin_lanes(self, ranges: tuple[Range, ...]) -> None:
        """Write down in every lane where its partitions begin, before any lane moves: otherwise
        a lane that has not written yet would be overlooked when the others are asked."""
        new = {each.place for each in ranges} - self._begun
        for claim in self._claims if new else ():
            held = committed(self.connection, claim.group, claim.stand_in)
            starts = [
                replace(each, until=each.start)
                for each in ranges
                if each.place in new and each.place not in held
            ]
            if not starts:
                continue
            consumer = clients.consumer(self.connection, group_id=claim.group)
            try:
                with clients.explained(self.connection, f"beginning group {claim.group!r}"):
                    consumer.commit(offsets=claim.offsets(starts, {}), asynchronous=False)
            finally:
                consumer.close()
        self._begun |= new

    def _writer(self, batch: Batch, left: tuple[Range, ...], *, trim: bool) -> KafkaWriter:
        return replace(
            self.writer, batch=batch.id, ranges={each.place: each for each in left}, trim=trim
        )

    def _prepared(self, frame: DataFrame) -> DataFrame:
        if self.writer.decoder is not None:
            return frame
        return as_records(frame, self.key, self.format, self.added, carries=self.writer.carries)


def as_records(
    frame: DataFrame, key: str | None, format: str, added: Sequence[str], *, carries: bool
) -> DataFrame:
    """The frame as key, value and coordinates, made by the JVM; `added` are columns that are not
    the user's."""
    own = [name for name in frame.columns if name not in added]
    value = f.to_json(f.struct(*own)) if format == "json" else f.col("value")
    chosen: Any = f.lit(None) if key is None else f.col(key)
    if format == "value" and key is None and "key" in own:
        chosen = f.col("key")
    coordinates = [f.col(name) for name in COORDINATES] if carries else []
    return frame.select(
        value.cast("binary").alias("value"),
        chosen.cast("string").cast("binary").alias("key"),
        *coordinates,
    )


def _written(way: str, reports: list[Report]) -> Written:
    return Written(way, sum(report.rows for report in reports), slowest(reports))
