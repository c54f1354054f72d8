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
from datetime import UTC, datetime, timedelta

from pyspark.sql import SparkSession

from tallygate.auditing.checking import check
from tallygate.auditing.contents import CONTENT
from tallygate.auditing.context import Case, Found, snapshot_of
from tallygate.auditing.history import wrong_moves
from tallygate.auditing.recompute import Noted, Source
from tallygate.auditing.scope import (
    Sample,
    scope_of,
    since_time,
    sureness,
    unchecked,
)
from tallygate.auditing.verdict import AuditResult
from tallygate.core.offsets import count, lies_in
from tallygate.engine.opening import Opened, PipelineOrPath, open_pipeline
from tallygate.engine.start import look
from tallygate.settings import Settings
from tallygate.spark.odd_times import is_beyond_spark
from tallygate.targets.snapshot import Snapshot


def audit(
    pipeline: PipelineOrPath,
    *,
    since: str | datetime | timedelta | None = None,
    sample: str | int | Sample | None = None,
    settings: Settings | None = None,
    spark: SparkSession | None = None,
) -> AuditResult:
    """Check a pipeline, which may be running meanwhile. The result is true only if the verdict is
    valid, and says as text what is wrong. `since` leaves out records that are older (a time, or how
    long ago: `2h`), `sample` looks at some records only, chosen by lot (`1%`, or a number).

    The session is the one that is given, else the active one, else a new one, which is left
    running. An audit that cannot be finished raises."""
    begin = None if since is None else since_time(since)
    chosen = None if sample is None else Sample.parse(sample)
    at = open_pipeline(pipeline, "audit", settings, spark)
    started = time.monotonic()
    try:
        result = _checked(at, begin, chosen)
    except Exception as error:
        if not is_beyond_spark(error):
            raise
        result = _checked(at, begin, chosen, beyond_spark=True)
    return replace(result, seconds=round(time.monotonic() - started, 2))


def _checked(
    at: Opened, since: datetime | None, sample: Sample | None, *, beyond_spark: bool = False
) -> AuditResult:
    pipeline, source = at.pipeline, replace(Source.of(at), beyond_spark=beyond_spark)
    request = pipeline.request(at.spark, at.settings, {})
    with snapshot_of(request, at.spark) as snapshot, _notes() as noted:
        whole = scope_of(snapshot.ledger, source.connection)
        scope = whole if since is None else whole.since(since, source.connection)
        asked = scope
        if sample is not None:
            scope = scope.sampled(sample)
        if pipeline.dead_letters.late or pipeline.on_error == "dead-letter":
            source = replace(source, apart=snapshot.ledger.letters)
        stream, _ = look(request)
        case = Case(
            source=source,
            snapshot=snapshot,
            scope=scope,
            noted=noted,
            stream=stream,
            within=None if sample is None else scope.ranges,
        )
        found = _judged(case, check(case, partial=scope is not whole), request.fingerprint)
        result = _result(case, found, partial=scope is not whole)
    if sample is not None:
        said = sureness(result.records, len(scope.ranges), sum(map(len, asked.ranges)))
        return replace(result, scope=said)
    if since is not None:
        return replace(result, scope=f"records since {since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC")
    return result


def _judged(case: Case, found: Found, made_by: str | None) -> Found:
    """What differs from rows that are computed in another way says nothing of rows that were made
    before."""
    if made_by is None or not set(case.ledger.specs) - {made_by}:
        return found
    return found.but(
        "rows were written with another transform, schema or time zone than the present one; a "
        "rebuild makes all of them by this one",
        *CONTENT,
    )


@contextmanager
def _notes() -> Iterator[Noted]:
    with tempfile.TemporaryDirectory(prefix="tallygate-audit-") as folder:
        yield Noted(folder)


def _result(case: Case, found: Found, *, partial: bool) -> AuditResult:
    scope, ledger = case.scope, case.ledger
    checked: dict[str, list[list[int]]] = {}
    for each in scope.ranges:
        checked.setdefault(f"{each.topic}/{each.partition}", []).append([each.start, each.until])
    anomalies = [*found.anomalies, *scope.anomalies, *wrong_moves(ledger)]
    letters = sum(lies_in(scope.ranges, *at) for at in ledger.letters)
    records = case.noted.records()
    return AuditResult(
        pipeline=case.source.pipeline.name,
        target=case.snapshot.name,
        records=records,
        rows=found.rows,
        letters=len(ledger.letters),
        lost=count(ledger.lost),
        anomalies=tuple(anomalies),
        unknown=(*scope.unknown, *unchecked(scope, ledger, partial=partial), *found.unknown),
        checked=checked,
        not_compared=found.left_out,
        filtered=None if found.kept is None else records - found.kept - letters,
        notes=(
            *found.notes,
            *(() if found.rows else _without_rows(case.snapshot, records, letters)),
        ),
    )


def _without_rows(snapshot: Snapshot, records: int, letters: int) -> Iterator[str]:
    """What to say of a target that holds no row of what was checked."""
    if not count(snapshot.ledger.ranges.values()):
        yield f"the ledger claims no offset, and {snapshot.name} holds no row"
    if letters:
        how_many = f"all {records:,}" if letters == records else f"{letters:,} of {records:,}"
        yield f"{how_many} records are dead letters, and none has a row; {snapshot.lists_letters}"
