"""Rows that do not carry coordinates: results by key, or how often each row is there.

Whole tables are compared, so all of the source must be there to be read again, and the watermark
must not have kept anything out (see `watermarks`); where it may have, differences are unknown.
"""

from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tallygate.audit.case import Case, Found
from tallygate.audit.comparable import comparable, only
from tallygate.audit.comparing import Compared, compared
from tallygate.audit.kafka import TopicEvidence
from tallygate.audit.recompute import latest_by_key
from tallygate.audit.watermarks import END, Watermarks, late_records, watermarks_at
from tallygate.quoting import backticked
from tallygate.records.decoding import COORDINATES
from tallygate.spark.plan import Plan

__all__ = ["by_content"]

_ANY = ("missing", "duplicate", "unexpected", "different")


def by_content(case: Case, plan: Plan, rows: DataFrame) -> Found:
    marks = watermarks_at(case.source.checkpoint, case.claims.ranges) if case.watermarked else None
    frame = whole = case.kept(plan)
    newest = plan.carries and case.mode == "upsert"
    if newest:
        frame = latest_by_key(frame, case.key)
    if marks is not None and case.mode == "append" and END in frame.columns:
        frame = marks.closed(frame)
        rows = marks.settled(rows) if END in rows.columns else rows
    done = _compared(case, case.evidence.shaped(frame, carries=plan.carries), rows)
    found = Found(done.rows, done.anomalies)
    if newest and any(each.kind == "different" for each in done.anomalies):
        found = _without_ties(case, found, whole, rows)
    if case.scope.unknown:
        found = found.but("results need all records, and some cannot be read again", *_ANY)
    if case.claims.moved:
        found = found.but("the pipeline was writing while its topic was read", *_ANY)
    return _lateness(case, found, plan, marks)


def _compared(case: Case, shaped: DataFrame, rows: DataFrame) -> Compared:
    if isinstance(case.evidence, TopicEvidence) and case.evidence.compacted:
        return _last_by_key(shaped, rows)
    schema = only(shaped.schema, rows.columns)
    expected, _ = comparable(shaped, schema)
    found, _ = comparable(rows, schema)
    names = [name for name in expected.columns if name not in COORDINATES]
    if isinstance(case.evidence, TopicEvidence) or not case.key:
        return compared(expected, found, names, [])
    if case.mode == "append":
        # The first row of a key stays; which one came first depends on the batches.
        return compared(expected.select(*case.key).distinct(), found, case.key, [])
    return compared(expected, found, case.key, [name for name in names if name not in case.key])


def _without_ties(case: Case, found: Found, whole: DataFrame, rows: DataFrame) -> Found:
    """Which of two records came last is known only if they are of one partition: of keys that are
    in several, differences are unknown."""
    names = list(map(backticked, case.key))
    partitions = f.count_distinct("_topic", "_partition")
    tied = whole.groupBy(*names).agg(partitions.alias("n")).where("n > 1").select(*names)
    untied = latest_by_key(whole.join(tied, list(case.key), "left_anti"), case.key)
    again = _compared(case, untied, rows.join(tied, list(case.key), "left_anti"))
    before, sure = (
        sum(each.count for each in anomalies if each.kind == "different")
        for anomalies in (found.anomalies, again.anomalies)
    )
    if before == sure:
        return found
    kept = [each for each in found.anomalies if each.kind != "different"]
    kept += [each for each in again.anomalies if each.kind == "different"]
    said = (
        f"{before - sure} different: records of their keys are in several partitions, and which "
        "came last is not known"
    )
    return replace(found, anomalies=tuple(kept), unknown=(*found.unknown, said))


def _last_by_key(shaped: DataFrame, rows: DataFrame) -> Compared:
    """A compacted topic keeps the last value of each key."""
    if set(COORDINATES) <= set(shaped.columns):
        shaped = latest_by_key(shaped, ["key"])
    last = latest_by_key(rows.withColumn("_offset", f.col("_at_offset")), ["key"])
    return compared(shaped.select("key", "value"), last, ["key"], ["value"])


def _doubt(case: Case, marks: Watermarks | None) -> str | None:
    """Why records may have been too late and nobody noted it, or None if none was."""
    if marks is None:
        return "records may have been too late, and Spark's log does not say"
    late = late_records(case.source, case.scope.ranges, case.noted.aside("late"), marks)
    if late is None:
        return "records may have been too late for the watermark"
    return f"{late} records may have been too late for the watermark" if late else None


def _lateness(case: Case, found: Found, plan: Plan, marks: Watermarks | None) -> Found:
    """Differences that a watermark may have made are unknown."""
    if not case.watermarked or not found.anomalies:
        return found
    said = _doubt(case, marks)
    if said is not None:
        return found.but(said, *_ANY)
    if case.mode == "append" and END not in plan.frame.columns:
        return found.but("rows may still be held back by the watermark", "missing")
    return found
