"""`audit`: recompute from the source, compare with the sink.

The ledger says which records the sink stands for. They are read again, taken through the transform
in batch mode, and compared with what is there: by coordinates where rows carry them, by key where
they have one, and otherwise by how often each row is there. What retention has removed since cannot
be read again; the rest is checked, and that part is unknown.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from pyspark.sql import SparkSession

from tallygate.auditing.checking import check
from tallygate.auditing.context import Case, Found
from tallygate.auditing.evidence import evidence_of, kafka_source
from tallygate.auditing.history import wrong_moves
from tallygate.auditing.ledger_snapshot import Evidence
from tallygate.auditing.recompute import Noted, Source
from tallygate.auditing.scope import Sample, Scope, scope_of, sureness
from tallygate.auditing.verdict import Report
from tallygate.core.offsets import Range
from tallygate.engine.pipeline import Pipeline
from tallygate.engine.start import look
from tallygate.settings import Settings
from tallygate.spark.checkpoint import Checkpoint

__all__ = ["audit"]


def audit(
    pipeline: Pipeline,
    *,
    settings: Settings,
    spark: SparkSession,
    since_ms: int | None = None,
    sample: Sample | None = None,
) -> Report:
    """Check a pipeline; it may be running meanwhile. `since_ms` leaves out records that are older
    than that time, `sample` all but some."""
    connection = kafka_source(pipeline, settings)
    started = time.monotonic()
    with evidence_of(pipeline, connection, spark, settings) as evidence, _notes() as noted:
        whole = scope_of(evidence.claims, connection)
        scope = whole if since_ms is None else whole.since(since_ms, connection)
        asked = scope
        if sample is not None:
            scope = scope.sampled(sample)
        statics = pipeline.statics(spark, settings)
        checkpoint = Checkpoint(spark, pipeline.checkpoint_path(settings))
        late = evidence.claims.letters if pipeline.dead_letters.late else frozenset()
        source = Source(pipeline, spark, connection, statics, checkpoint, late)
        stream, _ = look(pipeline.job(spark, settings, {}))
        within = None if sample is None else scope.ranges
        case = Case(source, evidence, scope, noted, stream, within)
        found = check(case, partial=scope is not whole)
        report = _report(pipeline, evidence, scope, noted, found)
    if sample is not None:
        said = sureness(report.records, len(scope.ranges), sum(map(len, asked.ranges)))
        report = replace(report, scope=said)
    elif since_ms is not None:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(since_ms / 1000))
        report = replace(report, scope=f"records since {at} UTC")
    return replace(report, seconds=round(time.monotonic() - started, 2))


@contextmanager
def _notes() -> Iterator[Noted]:
    with tempfile.TemporaryDirectory(prefix="tallygate-audit-") as folder:
        yield Noted(folder)


def _report(
    pipeline: Pipeline, evidence: Evidence, scope: Scope, noted: Noted, found: Found
) -> Report:
    claims = evidence.claims
    checked: dict[str, list[list[int]]] = {}
    for each in scope.ranges:
        checked.setdefault(f"{each.topic}/{each.partition}", []).append([each.start, each.until])
    anomalies = [*found.anomalies, *scope.anomalies, *wrong_moves(claims)]
    letters = sum(_within(scope, *at) for at in claims.letters)
    records = noted.records()
    return Report(
        pipeline.name,
        evidence.target,
        records,
        found.rows,
        len(claims.letters),
        sum(map(len, claims.lost)),
        tuple(anomalies),
        (*scope.unknown, *found.unknown),
        checked=checked,
        not_compared=found.left_out,
        filtered=None if found.kept is None else records - found.kept - letters,
    )


def _within(scope: Scope, topic: str, partition: int, offset: int) -> bool:
    def lies(each: Range) -> bool:
        return each.place == (topic, partition) and each.start <= offset < each.until

    return any(map(lies, scope.ranges))
