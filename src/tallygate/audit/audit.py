"""`audit`: recompute from the source, compare with the sink.

The ledger says which records the sink stands for. They are read again, taken through the transform
in batch mode, and compared with what is there: by coordinates where rows carry them, by key where
they have one. What retention has removed since cannot be read again; the rest is checked, and
that part is unknown.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from confluent_kafka.admin import OffsetSpec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tallygate.audit.claims import Claims, claims_of
from tallygate.audit.comparing import Compared, compared
from tallygate.audit.recompute import Noted, latest_by_key, recomputed, source_records
from tallygate.audit.table import comparable, table_rows
from tallygate.audit.verdict import Anomaly, Report
from tallygate.errors import ConfigError
from tallygate.kafka.connection import Connection
from tallygate.kafka.reader import list_offsets
from tallygate.ledger.ranges import Place, Range, is_topic
from tallygate.pipeline.pipeline import Pipeline
from tallygate.pipeline.static import Statics
from tallygate.pipeline.stores import source_connection
from tallygate.postgres.connecting import connect
from tallygate.records.decoding import COORDINATES
from tallygate.settings import Settings
from tallygate.sinks.postgres.table import Target
from tallygate.sinks.tasks import within
from tallygate.spark.checkpoint import Checkpoint
from tallygate.spark.plan import Plan, read_plan
from tallygate.spec import Kafka, Postgres
from tallygate.stack import running_dsn

__all__ = ["audit"]


def audit(pipeline: Pipeline, *, settings: Settings, spark: SparkSession) -> Report:
    """Check a pipeline into PostgreSQL; it may be running meanwhile."""
    sink = pipeline.sink
    if not isinstance(sink, Postgres):
        raise ConfigError("only pipelines into PostgreSQL can be audited yet.")
    connection = source_connection(pipeline, settings)
    if connection is None or not all(isinstance(s, Kafka) for s in pipeline.streams.values()):
        raise ConfigError(
            "only pipelines that read Kafka can be audited: others cannot be read again."
        )
    started = time.monotonic()
    dsn = sink.dsn or running_dsn(settings)
    with claims_of(dsn, pipeline.name, settings.timeout) as claims, _notes() as noted:
        checkable, unknown = _checkable(claims, connection)
        again = _Again(pipeline, sink, dsn, spark, settings, connection, claims, checkable, noted)
        report = again.report(unknown)
    return replace(report, seconds=round(time.monotonic() - started, 2))


@contextmanager
def _notes() -> Iterator[Noted]:
    with tempfile.TemporaryDirectory(prefix="tallygate-audit-") as folder:
        yield Noted(folder)


def _checkable(claims: Claims, connection: Connection) -> tuple[dict[Place, Range], list[str]]:
    """The part of the claimed ranges that can be read again, and what cannot."""
    places = sorted(place for place in claims.ranges if is_topic(place[0]))
    earliest = list_offsets(places, OffsetSpec.earliest(), connection)  # type: ignore[no-untyped-call]
    found, unknown = {}, []
    for place in places:
        claimed = claims.ranges[place]
        start = max(
            claimed.start,
            *(lost.until for lost in claims.lost if lost.place == place),
            earliest[place],
        )
        if start > claimed.start:
            cut = Range(*place, claimed.start, min(start, claimed.until))
            unknown.append(f"{cut} cannot be read again: retention removed {len(cut)} records")
        if start < claimed.until:
            found[place] = replace(claimed, start=start)
    return found, unknown


class _Again:
    """One audit: everything that its steps need."""

    def __init__(
        self,
        pipeline: Pipeline,
        sink: Postgres,
        dsn: str,
        spark: SparkSession,
        settings: Settings,
        connection: Connection,
        claims: Claims,
        ranges: dict[Place, Range],
        noted: Noted,
    ) -> None:
        self._pipeline, self._sink, self._dsn, self._spark = pipeline, sink, dsn, spark
        self._connection, self._claims, self._ranges = connection, claims, ranges
        self._noted = noted
        self._statics = Statics(spark, pipeline.static, lambda: running_dsn(settings))
        self._checkpoint = Checkpoint(spark, pipeline.checkpoint_path(settings))
        self._timeout = settings.timeout

    def report(self, unknown: list[str]) -> Report:
        plan = read_plan(self._expected())
        changes = self._statics.changes(self._checkpoint)
        if changes:
            unknown.append(
                f"a static side has changed {changes} times, and all records were joined with its "
                "last state"
            )
        with connect(self._dsn, timeout=self._timeout, autocommit=True) as connection:
            target = Target.parse(self._sink.table, connection)
        rows = table_rows(self._spark, self._dsn, target, self._claims.snapshot)
        anomalies: list[Anomaly] = []
        if self._by_coordinates(plan, rows):
            done, misplaced = self._appended(plan, rows)
            anomalies += misplaced
        elif self._sink.key or self._sink.mode == "replace":
            done = self._keyed(plan, rows, unknown)
        else:
            done = self._bare(plan, rows, unknown)
        anomalies += done.anomalies
        anomalies += self._undead()
        lost = sum(len(each) for each in self._claims.lost)
        return Report(
            self._pipeline.name,
            str(target),
            self._count(),
            done.rows,
            len(self._claims.letters),
            lost,
            tuple(anomalies),
            tuple(unknown),
            checked={f"{r.topic}/{r.partition}": [r.start, r.until] for r in self._ranges.values()},
        )

    def _expected(self) -> DataFrame:
        return recomputed(
            self._pipeline,
            self._spark,
            self._connection,
            self._ranges,
            self._noted,
            self._statics,
            self._checkpoint,
        )

    def _by_coordinates(self, plan: Plan, rows: DataFrame) -> bool:
        return (
            plan.carries and self._sink.mode == "append" and set(COORDINATES) <= set(rows.columns)
        )

    def _appended(self, plan: Plan, rows: DataFrame) -> tuple[Compared, list[Anomaly]]:
        content = [name for name in plan.frame.columns if name not in COORDINATES]
        expected, _ = comparable(self._kept(plan), plan.frame.schema)
        found, left_out = comparable(rows, plan.frame.schema)
        compared_columns = [name for name in content if name not in left_out]
        claimed = [self._claims.ranges[place] for place in self._claims.ranges]
        outside = found.where(~within(claimed))
        count = outside.count()
        examples = outside.select(*COORDINATES).limit(5).toJSON().collect() if count else []
        misplaced = [Anomaly("misplaced", count, tuple(examples))] if count else []
        inside = found.where(within(self._ranges.values()))
        return compared(expected, inside, COORDINATES, compared_columns), misplaced

    def _keyed(self, plan: Plan, rows: DataFrame, unknown: list[str]) -> Compared:
        """Results by key: whole tables are compared, so all of the source must be there."""
        self._need_all(unknown)
        frame = self._kept(plan)
        key = self._sink.key or tuple(plan.frame.columns)
        if plan.carries and self._sink.key:
            frame = latest_by_key(frame, self._sink.key)
        schema = type(frame.schema)(
            [each for each in frame.schema.fields if each.name in rows.columns]
        )
        expected, left_out = comparable(frame, schema)
        found, _ = comparable(rows, schema)
        content = [n for n in expected.columns if n not in (*key, *left_out)]
        return compared(expected, found, list(key), content)

    def _bare(self, plan: Plan, rows: DataFrame, unknown: list[str]) -> Compared:
        """Appended rows without coordinates or key: how often each row is there. Windows that the
        watermark has not closed yet are in the recomputation and not in the table."""
        self._need_all(unknown)
        schema = type(plan.frame.schema)(
            [each for each in plan.frame.schema.fields if each.name in rows.columns]
        )
        expected, _ = comparable(plan.frame, schema)
        found, _ = comparable(rows, schema)
        done = compared(expected, found, expected.columns, [])
        open_ones = [each for each in done.anomalies if each.kind == "missing"]
        if plan.stateful and open_ones:
            unknown.append(
                f"{open_ones[0].count} rows may still be held back by the watermark, or were too "
                "late for it"
            )
            kept = tuple(each for each in done.anomalies if each.kind != "missing")
            return replace(done, anomalies=kept)
        return done

    def _need_all(self, unknown: list[str]) -> None:
        if unknown:
            unknown.append("results by key need all records, so differences may be due to those")

    def _kept(self, plan: Plan) -> DataFrame:
        """What should be in the sink: rows of records that are dead letters, because the target
        refused them, should not."""
        if not (plan.carries and self._claims.letters):
            return plan.frame
        letters = self._spark.createDataFrame(
            sorted(self._claims.letters), "_topic string, _partition int, _offset long"
        )
        return plan.frame.join(f.broadcast(letters), list(COORDINATES), "left_anti").select(
            plan.frame.columns
        )

    def _undead(self) -> list[Anomaly]:
        """Records that cannot be decoded, and that nobody kept."""
        gone = sorted(self._noted.found() - self._claims.letters)
        if not gone:
            return []
        examples = tuple(f"{topic}/{partition}@{offset}" for topic, partition, offset in gone[:5])
        return [Anomaly("undead", len(gone), examples)]

    def _count(self) -> int:
        ranges = list(self._ranges.values())
        return sum(
            source_records(self._spark, source, self._connection, ranges).count()
            for source in self._pipeline.streams.values()
            if isinstance(source, Kafka)
        )
