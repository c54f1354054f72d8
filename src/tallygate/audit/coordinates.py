"""Rows that carry the coordinates of their records, compared one by one."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tallygate.audit.case import Case, Found, gives_one_each
from tallygate.audit.comparable import comparable, only
from tallygate.audit.comparing import EXAMPLES, Compared, compared, differing, digests, stretch
from tallygate.audit.records import records
from tallygate.audit.verdict import Anomaly
from tallygate.ledger.ranges import Range
from tallygate.records.decoding import COORDINATES
from tallygate.sinks.tasks import within
from tallygate.spark.plan import Plan, read_plan

__all__ = ["by_coordinates"]


def by_coordinates(case: Case, plan: Plan, rows: DataFrame) -> Found:
    """First by digests; what differs by rows."""
    expected, found, content = _sides(case, plan, rows)
    ranges = case.scope.ranges
    claimed = list(case.claims.reached.values())
    size = stretch(ranges)
    with ThreadPoolExecutor(2) as pool:  # while one side waits, the other works
        first = pool.submit(digests, expected, content, size, ranges, claimed)
        second = pool.submit(digests, found, content, size, ranges, claimed)
    mine, theirs = first.result(), second.result()
    wrong = differing(mine, theirs, size, ranges)
    anomalies = list(_row_by_row(case, wrong, rows)) if wrong else []
    if theirs.outside:
        anomalies += _outside(found, claimed)
    kept = mine.rows if gives_one_each(plan.frame) else None
    return Found(theirs.rows, tuple(anomalies), kept=kept)


def _sides(case: Case, plan: Plan, rows: DataFrame) -> tuple[DataFrame, DataFrame, list[str]]:
    """Both sides with the columns that can be compared, and those that are content."""
    shaped = case.evidence.shaped(case.kept(plan), carries=plan.carries)
    schema = only(shaped.schema, rows.columns)
    expected, left_out = comparable(shaped, schema)
    found, _ = comparable(case.seen(plan, rows), schema)
    return expected, found, [n for n in expected.columns if n not in (*COORDINATES, *left_out)]


def _row_by_row(case: Case, wrong: Sequence[Range], rows: DataFrame) -> tuple[Anomaly, ...]:
    """Only the parts whose digests differ; what is noted there has been noted already."""
    plan = read_plan(case.source.recomputed(wrong, case.noted.aside("again")))
    expected, found, content = _sides(case, plan, rows)
    inside = found.where(within(wrong))
    done = compared(expected, inside, COORDINATES, content)
    return _never_sent(case, done, expected, inside, wrong)


def _never_sent(
    case: Case, done: Compared, expected: DataFrame, found: DataFrame, wrong: Sequence[Range]
) -> tuple[Anomaly, ...]:
    """Of the unexpected rows, those whose record is there for a reader who also sees what was
    aborted, are called so."""
    unexpected = [each for each in done.anomalies if each.kind == "unexpected"]
    if not unexpected:
        return done.anomalies
    names = {"topic": "_topic", "partition": "_partition", "offset": "_offset"}
    everything, sent = (
        records(case.source.spark, case.source.connection, wrong, committed=committed)
        .select(*names)
        .withColumnsRenamed(names)
        for committed in (False, True)
    )
    aborted = everything.join(sent, list(COORDINATES), "left_anti")
    rows = found.join(aborted, list(COORDINATES), "left_semi").join(
        expected, list(COORDINATES), "left_anti"
    )
    count = rows.count()
    if not count:
        return done.anomalies
    others = [each for each in done.anomalies if each.kind != "unexpected"]
    rest = unexpected[0].count - count
    if rest:
        others.append(replace(unexpected[0], count=rest))
    return (*others, Anomaly("aborted", count, _places(rows)))


def _outside(found: DataFrame, claimed: Sequence[Range]) -> list[Anomaly]:
    """Rows of records that are not claimed, and rows that name no record at all."""
    anomalies = []
    nameless = f.col("_offset").isNull()
    for kind, which in (("misplaced", ~within(claimed) & ~nameless), ("unexpected", nameless)):
        rows = found.where(which)
        count = rows.count()
        if count:
            anomalies.append(Anomaly(kind, count, _places(rows)))
    return anomalies


def _places(rows: DataFrame) -> tuple[str, ...]:
    return tuple(sorted(rows.select(*COORDINATES).limit(EXAMPLES).toJSON().collect()))
