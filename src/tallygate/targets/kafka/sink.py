"""Writing a batch to Kafka: a transaction for each task, which holds rows and offsets.

  narrow     each Spark partition holds one Kafka partition: its transaction commits that offset.
  shuffled   a fixed number of lanes, rows sent to them by their key: each lane's transaction
             commits all source offsets in a group of the lane's own.

A lane may be ahead of another by one batch after a crash. Spark repeats that batch with the same
rows, and each lane skips it or writes it by its own offsets.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from confluent_kafka import KafkaException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tallygate.core.decoding import COORDINATES
from tallygate.core.offsets import MovedError, Place, Range, remaining
from tallygate.errors import (
    LedgerError,
    TallygateError,
    TargetError,
    TopicError,
    UnreachableError,
)
from tallygate.failpoints import reach
from tallygate.kafka.connection import Connection
from tallygate.kafka.fetch import HEADERS
from tallygate.kafka.topics import Topics
from tallygate.quoting import backticked
from tallygate.targets.batch_input import FetchedRows, FrameRows, Rows
from tallygate.targets.kafka.ledger import GroupClaim, committed
from tallygate.targets.kafka.limits import Limits
from tallygate.targets.kafka.writer import KafkaWriter
from tallygate.targets.sink import Batch, Retry, Written
from tallygate.targets.task_report import Report, run_tasks, slowest, unmoved

__all__ = ["KafkaTopicSink", "as_records"]

_COMPRESSION = {"compression.type", "compression.codec"}


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
    source: Connection | None = None
    """Given if raw records are read where they are written, from these brokers."""
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
        self._ask_again()
        try:
            return self._narrow(frame, batch) if self.writer.carries else self._lanes(frame, batch)
        except TargetError as refusal:
            raise self._refused(refusal) from refusal
        except (MovedError, TopicError, UnreachableError, KafkaException) as error:
            raise Retry(str(error)) from error

    def _refused(self, refusal: TargetError) -> Exception:
        """A topic that refuses a record is asked for its rules, and the batch is written again by
        them. If it refuses by them as well, to try again would never end."""
        try:
            limits = self.rules()
        except UnreachableError as error:
            return Retry(str(error))
        except TallygateError:
            return refusal  # who may write may not be one who may ask
        if limits == self.writer.limits:
            return refusal
        self.writer = replace(self.writer, limits=limits)
        # At most once, the offsets are saved by now: nothing would be written again.
        return refusal if self.writer.delivery == "at-most-once" else Retry(str(refusal))

    def rules(self) -> Limits:
        """What the topic takes. How large a record is when it is compressed is not known."""
        configs = Topics(self.connection).effective_configs(self.writer.topic)
        compressed = _COMPRESSION & self.connection.librdkafka().keys()
        return Limits.of(configs, sized=not compressed)

    def _ask_again(self) -> None:
        """Whoever saw dead letters may have changed the rules by now."""
        if self.writer.limits is not None:
            with contextlib.suppress(TallygateError):
                self.writer = replace(self.writer, limits=self.rules())

    def _narrow(self, frame: DataFrame, batch: Batch) -> Written:
        positions = self.positions()
        left = remaining(batch.ranges, positions, divisible=True)
        reach("batch-planned", batch.id)
        if not left:
            return Written("skipped")
        rows = self._rows(frame, left)
        if not rows.keeps_whole(len(batch.whole)):
            raise LedgerError(
                f"the batch has not one Spark partition for each of the {len(batch.whole)} of "
                "Kafka; remove the source's option minPartitions or maxRecordsPerPartition."
            )
        writer = self._writer(batch, left, trim=not rows.exact and batch.is_in_part(left))
        # Where partitions begin is written down before any of them moves: one that is not known
        # when others of its topic are is one that was added, and begins at 0.
        new = [each for each in left if each.place not in positions and each.start]
        if new:
            writer.begin(self._claims[0], writer.names.place_id(min(new).place), new)
        reports = rows.run(writer.write)
        writer.move(unmoved(left, reports))
        return _written("narrow", reports)

    def _rows(self, frame: DataFrame, left: tuple[Range, ...]) -> Rows:
        """Each source partition in a task of its own: a transaction is for one of them."""
        if self.source is not None:
            return FetchedRows(frame.sparkSession, self.source, left, apart=True, headers=True)
        return FrameRows(self._prepared(frame))

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
        for lane, claim in enumerate(self._claims if new else ()):
            held = committed(self.connection, claim.group, claim.stand_in)
            starts = (each for each in ranges if each.place in new and each.place not in held)
            self.writer.begin(claim, self.writer.names.lane_id(lane), starts)
        self._begun |= new

    def _writer(self, batch: Batch, left: tuple[Range, ...], *, trim: bool) -> KafkaWriter:
        return replace(
            self.writer, batch=batch.id, ranges={each.place: each for each in left}, trim=trim
        )

    def _prepared(self, frame: DataFrame) -> DataFrame:
        if self.writer.decoder is not None:
            return frame
        carries = self.writer.carries
        headers = self.format == "value" and HEADERS.name in frame.columns
        return as_records(
            frame, self.key, self.format, self.added, carries=carries, headers=headers
        )


def as_records(
    frame: DataFrame,
    key: str | None,
    format: str,
    added: Sequence[str],
    *,
    carries: bool,
    headers: bool = False,
) -> DataFrame:
    """The frame as key, value, coordinates and headers, made by the JVM; `added` are columns that
    are not the user's."""
    own = [name for name in frame.columns if name not in added]
    value = f.to_json(f.struct(*map(backticked, own))) if format == "json" else f.col("value")
    chosen: Any = f.lit(None) if key is None else f.col(backticked(key))
    if format == "value" and key is None and "key" in own:
        chosen = f.col("key")
    coordinates = [f.col(name) for name in COORDINATES] if carries else []
    return frame.select(
        value.cast("binary").alias("value"),
        chosen.cast("string").cast("binary").alias("key"),
        *coordinates,
        *([f.col(HEADERS.name)] if headers else []),
    )


def _written(way: str, reports: list[Report]) -> Written:
    return Written(way, sum(report.rows for report in reports), slowest(reports))
