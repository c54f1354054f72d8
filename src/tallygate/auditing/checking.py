"""The comparison itself: what the transform gives again, against what the sink holds."""

from dataclasses import replace

from pyspark.sql import DataFrame

from tallygate.auditing.contents import CONTENT, by_content
from tallygate.auditing.context import Case, Found, sums_doubles
from tallygate.auditing.coordinates import by_coordinates
from tallygate.auditing.topic_checks import read_twice
from tallygate.auditing.verdict import Anomaly
from tallygate.core.decoding import COORDINATES
from tallygate.errors import ConfigError
from tallygate.spark.plan import read_plan
from tallygate.spark.unsteady import unsteady_in


def check(case: Case, *, partial: bool) -> Found:
    """`partial` says that not all records are to be checked."""
    plan = read_plan(case.source.recomputed(case.scope.ranges, case.noted))
    rows = case.snapshot.rows(case.within)
    matchable = (
        plan.has_coordinates
        and case.mode == "append"
        and not case.key
        and set(COORDINATES) <= set(rows.columns)
    )
    if partial and not matchable:
        raise ConfigError(
            "only rows that carry the coordinates of their records can be checked in part; these "
            "are aggregates, joins or upserts, or were written without coordinates. Leave out "
            "--since and --sample."
        )
    found = by_coordinates(case, plan, rows) if matchable else by_content(case, plan, rows)
    expected = case.shaped(plan, case.kept(plan))
    twice = [] if partial else read_twice(case.snapshot, expected, case.scope.ranges)
    found = replace(found, anomalies=(*found.anomalies, *twice, *_undead(case)))
    if sums_doubles(plan):
        found = found.but("sums of doubles depend on their order", "aborted")
    found = _with_other_values(case, found, expected)
    return _without_letters(case, _excused(case, _with_sides(case, found)))


def _undead(case: Case) -> list[Anomaly]:
    """Records that cannot be decoded, and were not kept as dead letters."""
    gone = sorted(case.noted.unfit() - case.ledger.letters)
    if not gone:
        return []
    examples = tuple(f"{topic}/{partition}@{offset}" for topic, partition, offset in gone[:5])
    return [Anomaly("undead", len(gone), examples)]


def _with_other_values(case: Case, found: Found, expected: DataFrame) -> Found:
    """What the clock and chance gave the stream, they do not give again."""
    unsteady = unsteady_in(expected)
    said = tuple(
        f"column {name} was not compared: {text} gives another value each time"
        for name, text in unsteady.columns.items()
    )
    found = replace(found, unknown=(*found.unknown, *said))
    keys = [text for name, text in unsteady.columns.items() if name in case.key]
    decides = unsteady.rows or next(iter(keys), None)
    if decides is not None:
        reason = f"{decides} gives another value each time, and which rows there are depends on it"
        return found.but(reason, *CONTENT, "aborted")
    return found.but(said[0], "aborted") if said else found


def _with_sides(case: Case, found: Found) -> Found:
    changes = case.source.statics.changes(case.source.checkpoint)
    if not changes:
        return found
    said = (
        f"a static side has changed {changes} times, and all records were joined with its last "
        "state"
    )
    return replace(found, unknown=(*found.unknown, said))


def _excused(case: Case, found: Found) -> Found:
    """Rows that retention may have removed from a topic are not missing for sure."""
    removed = case.snapshot.removed
    if found.count("missing") > removed:
        return found
    reason = f"the topic begins at later offsets, {removed} were removed"
    return found.but(reason, "missing")


def _without_letters(case: Case, found: Found) -> Found:
    """Nor are records whose dead letters it may have removed."""
    forgotten = case.ledger.forgotten
    if found.count("undead", "missing") > forgotten:
        return found
    reason = f"the topic of dead letters begins at later offsets, {forgotten} were removed"
    return found.but(reason, "undead", "missing")
