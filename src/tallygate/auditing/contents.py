"""Rows that do not carry coordinates: results by key, or how often each row is there.

Whole tables are compared, so all of the source must be there to be read again, and the watermark
must not have kept anything out (see `watermarks`); where it may have, differences are unknown.
"""

from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tallygate.auditing.compaction import Compacted, cleanup_policy
from tallygate.auditing.comparable import Sides
from tallygate.auditing.comparing import Compared, compared, strangers
from tallygate.auditing.context import Case, Found, sums_doubles
from tallygate.auditing.watermarks import END, Watermarks, late_records, watermarks_at
from tallygate.core.offsets import count
from tallygate.quoting import backticked
from tallygate.spark.plan import Plan
from tallygate.targets.snapshot import newest_by_key

CONTENT = ("missing", "duplicate", "unexpected", "different")
"""Anomalies of what rows hold."""
_FRACTION = r"-?\d+\.\d+(E-?\d+)?(?![\dEZ+-])"
"""A number with a fraction, and not the seconds of a time."""


def by_content(case: Case, plan: Plan, rows: DataFrame) -> Found:
    marks = watermarks_at(case.source.checkpoint, case.ledger.ranges) if case.watermarked else None
    frame = case.kept(plan)
    if marks is not None and case.mode == "append" and END in frame.columns:
        frame = marks.closed(frame)
        rows = marks.settled(rows) if END in rows.columns else rows
    rows = case.snapshot.that_count(rows)
    found = _found(case, plan, case.shaped(plan, frame), rows)
    if case.scope.unknown:
        found = found.but("results need all records, and some cannot be read again", *CONTENT)
    if case.snapshot.shared:
        found = found.but("others write to the table too", "unexpected")
    if case.ledger.moved:
        found = found.but("the pipeline was writing while its topic was read", *CONTENT)
    return _lateness(case, _compaction(case, found, plan), plan, marks)


def _compaction(case: Case, found: Found, plan: Plan) -> Found:
    """What a record gave that compaction has removed since is still there; and of results of
    several records any may lack what it added."""
    kinds = tuple(kind for kind in CONTENT if kind != "missing" or not plan.has_coordinates)
    if not found.count(*kinds):
        return found
    ranges = case.scope.ranges
    topics = {each.topic for each in ranges}
    compacted = Compacted.among(topics, cleanup_policy(case.source.connection))
    said = compacted.results(records=case.noted.records(), offsets=count(ranges))
    return found if said is None else found.but(said, *kinds)


def _found(case: Case, plan: Plan, shaped: DataFrame, rows: DataFrame) -> Found:
    sides = case.sides(plan, _kept(case, plan, shaped, rows), rows)
    unseen = sorted(set(case.key) - set(sides.expected.columns))
    if unseen:
        said = f"without the key {unseen[0]} rows cannot be told apart, so none was compared"
        return Found(rows=rows.count(), unknown=(*sides.unknown, said), left_out=sides.left_out)
    done = _compared(case, plan, sides)
    unknown = list(sides.unknown)
    if done.unsure:
        unknown.append(f"{done.unsure} rows may differ: sums of doubles depend on their order")
    found = Found(
        rows=done.rows,
        anomalies=done.anomalies,
        unknown=tuple(unknown),
        left_out=sides.left_out,
    )
    if case.keeps_newest(plan) and any(each.kind == "different" for each in done.anomalies):
        return _without_ties(case, plan, found, shaped, rows)
    return found


def _kept(case: Case, plan: Plan, shaped: DataFrame, rows: DataFrame) -> DataFrame:
    """Of what the transform gives, the rows that the sink keeps, if that is known."""
    kept = newest_by_key(shaped, case.key) if case.keeps_newest(plan) else shaped
    return case.snapshot.still_due(kept, rows)


def _compared(case: Case, plan: Plan, sides: Sides) -> Compared:
    if case.snapshot.is_text and sums_doubles(plan):
        return _compared_as_texts(case, plan, sides)
    return _judged(case, plan, sides)


def _judged(case: Case, plan: Plan, sides: Sides) -> Compared:
    if not case.key:
        return compared(sides.expected, sides.found, sides.content, [], sides.close)
    content = [name for name in sides.content if name not in case.key]
    close = [name for name in sides.close if name not in case.key]
    if case.mode == "append" and not case.keeps_newest(plan):
        return _any_of_each_key(case.key, sides, content, close)
    return compared(sides.expected, sides.found, case.key, content, close)


def _any_of_each_key(
    key: tuple[str, ...], sides: Sides, content: list[str], close: list[str]
) -> Compared:
    """One row of each key is kept, and which one depends on the batches: the first that came to a
    table, the last that came to a compacted topic. It must be one that the transform gives."""
    keys = sides.expected.select(*map(backticked, key)).distinct()
    done = compared(keys, sides.found, key, [])
    other = strangers(sides.expected, sides.found, key, content, close)
    return replace(done, anomalies=(*done.anomalies, *other))


def _compared_as_texts(case: Case, plan: Plan, sides: Sides) -> Compared:
    """In a topic sums are digits of a text. What is the same but for these may be right."""
    done = _judged(case, plan, sides)
    if not done.anomalies:
        return done
    masked = (
        side.withColumn("value", f.regexp_replace(f.col("value").cast("string"), _FRACTION, "~"))
        for side in (sides.expected, sides.found)
    )
    rest = _judged(case, plan, replace(sides, expected=next(masked), found=next(masked)))
    all_of, sure = (sum(e.count for e in each.anomalies) for each in (done, rest))
    return replace(rest, unsure=max(0, all_of - sure))


def _without_ties(
    case: Case, plan: Plan, found: Found, shaped: DataFrame, rows: DataFrame
) -> Found:
    """Which of two records came last is known only if they are of one partition: of keys that are
    in several, differences are unknown."""
    names = list(map(backticked, case.key))
    partitions = f.count_distinct("_topic", "_partition")
    tied = shaped.groupBy(*names).agg(partitions.alias("n")).where("n > 1").select(*names)
    untied, others = (each.join(tied, list(case.key), "left_anti") for each in (shaped, rows))
    again = _compared(case, plan, case.sides(plan, _kept(case, plan, untied, others), others))
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


def _doubt(case: Case, marks: Watermarks | None) -> str | None:
    """Why records may have been too late and were not noted, or None if none was."""
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
        return found.but(said, *CONTENT)
    if case.mode == "append" and END not in plan.frame.columns:
        return found.but("rows may still be held back by the watermark", "missing")
    return found
