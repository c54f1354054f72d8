"""Rows that carry the coordinates of their records, compared one by one."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from tallygate.auditing.compaction import Compacted, cleanup_policy
from tallygate.auditing.comparable import Sides
from tallygate.auditing.comparing import EXAMPLES, Compared, compared
from tallygate.auditing.context import Case, Found, gives_one_each
from tallygate.auditing.digests import Stretch, contradict, differing, digests, parts_of, stretch
from tallygate.auditing.verdict import Anomaly
from tallygate.auditing.worker_digests import Quick
from tallygate.core.decoding import COORDINATES
from tallygate.core.offsets import Range
from tallygate.spark.plan import Plan, read_plan
from tallygate.spark.records import records
from tallygate.targets.batch_input import within


def by_coordinates(case: Case, plan: Plan, rows: DataFrame) -> Found:
    """First by digests; what differs by rows."""
    sides = _sides(case, plan, rows)
    ranges = case.scope.ranges
    claimed = list(case.ledger.reached.values())
    size = stretch(ranges)
    quick = Quick.of(case, sides, rows, size, claimed)
    unsure: set[Stretch] = set()
    with ThreadPoolExecutor(2) as pool:  # while one side waits, the other works
        if quick is not None:
            there = pool.submit(quick.found)
            mine, unsure = quick.expected()
        else:
            there = pool.submit(digests, sides.found, sides.content, size, ranges, claimed)
            mine = digests(sides.expected, sides.content, size, ranges, claimed)
    theirs = there.result()
    wrong = parts_of(differing(mine, theirs) | unsure, size, ranges)
    inside, gone = _row_by_row(case, wrong, rows) if wrong else ((), [])
    outside, others = _outside(case, sides.found, claimed) if theirs.outside else ((), 0)
    unknown = [*sides.unknown, *gone]
    unknown += [f"two readings of {each} do not agree" for each in parts_of(unsure, size, ranges)]
    vanished = not (inside or gone) and contradict(mine, theirs)
    if vanished or others + sum(each.count for each in outside) != theirs.outside:
        unknown.append(f"two readings of {case.snapshot.name} do not agree")
    kept = mine.rows if gives_one_each(plan.frame) else None
    return Found(
        rows=theirs.rows,
        anomalies=(*inside, *outside),
        unknown=tuple(unknown),
        kept=kept,
        left_out=sides.left_out,
        notes=(f"{others:,} rows of others were not looked at",) if others else (),
    )


def _own(claimed: Sequence[Range]) -> Column:
    """Whether a row names a record of the topics that the pipeline reads."""
    topics = sorted({each.topic for each in claimed})
    return f.coalesce(f.col("_topic").isin(*topics), f.lit(False))


def _sides(case: Case, plan: Plan, rows: DataFrame) -> Sides:
    return case.sides(plan, case.shaped(plan, case.kept(plan)), case.seen(plan, rows))


def _row_by_row(
    case: Case, wrong: Sequence[Range], rows: DataFrame
) -> tuple[tuple[Anomaly, ...], list[str]]:
    """Only the parts whose digests differ; what is noted there has been noted already. With the
    anomalies comes what cannot be known of these rows."""
    plan = read_plan(case.source.recomputed(wrong, case.noted.aside("again")))
    sides = _sides(case, plan, rows)
    # The parts may hold more than what is to be checked.
    expected, found = (each.where(_to_check(case, wrong)) for each in (sides.expected, sides.found))
    done = compared(expected, found, COORDINATES, sides.content)
    return _explained(case, done, expected, found, wrong)


def _to_check(case: Case, wrong: Sequence[Range]) -> Column:
    return within(wrong) & within(case.scope.ranges)


def _explained(
    case: Case, done: Compared, expected: DataFrame, found: DataFrame, wrong: Sequence[Range]
) -> tuple[tuple[Anomaly, ...], list[str]]:
    """Of the unexpected rows, those whose record is there for a reader who also sees what was
    aborted, are called so; and those whose record is not there at all are unknown where compaction
    may have removed it."""
    unexpected = [each for each in done.anomalies if each.kind == "unexpected"]
    if not unexpected:
        return done.anomalies, []
    names = {"topic": "_topic", "partition": "_partition", "offset": "_offset"}
    everything, sent = (
        records(case.source.spark, case.source.connection, wrong, committed=committed)
        .select(*names)
        .withColumnsRenamed(names)
        for committed in (False, True)
    )
    extra = found.join(expected, list(COORDINATES), "left_anti")
    lacking = extra.join(everything, list(COORDINATES), "left_anti")
    counts = {row["_topic"]: row["count"] for row in lacking.groupBy("_topic").count().collect()}
    compacted = Compacted.among(counts, cleanup_policy(case.source.connection))
    gone = {topic: counts[topic] for topic in compacted.topics}
    never = extra.join(everything, list(COORDINATES), "left_semi").join(
        sent, list(COORDINATES), "left_anti"
    )
    aborted = never.count()
    others = [each for each in done.anomalies if each.kind != "unexpected"]
    rest = unexpected[0].count - aborted - sum(gone.values())
    if rest:
        wrong_rows = extra.join(never, list(COORDINATES), "left_anti")
        if gone:
            excused = lacking.where(f.col("_topic").isin(*gone))
            wrong_rows = wrong_rows.join(excused, list(COORDINATES), "left_anti")
        others.append(Anomaly("unexpected", rest, _places(wrong_rows)))
    if aborted:
        others.append(Anomaly("aborted", aborted, _places(never)))
    return tuple(others), compacted.rows(gone)


def _outside(
    case: Case, found: DataFrame, claimed: Sequence[Range]
) -> tuple[tuple[Anomaly, ...], int]:
    """Rows of records that are not claimed, and rows that name no record, or not all of it. Of a
    table that is shared, rows that name no topic of this pipeline are others' and only counted."""
    anomalies, others = [], 0
    if case.snapshot.shared:
        others = found.where(~_own(claimed)).count()
        found = found.where(_own(claimed))
    nameless = reduce(Column.__or__, (f.col(name).isNull() for name in COORDINATES))
    elsewhere = ~nameless & ~f.coalesce(within(claimed), f.lit(False))
    for kind, which in (("misplaced", elsewhere), ("unexpected", nameless)):
        rows = found.where(which)
        count = rows.count()
        if count:
            anomalies.append(Anomaly(kind, count, _places(rows)))
    return tuple(anomalies), others


def _places(rows: DataFrame) -> tuple[str, ...]:
    return tuple(sorted(rows.select(*COORDINATES).limit(EXAMPLES).toJSON().collect()))
