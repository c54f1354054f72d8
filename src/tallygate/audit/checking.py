"""The comparison itself: what the transform gives again, against what the sink holds."""

from dataclasses import replace

from tallygate.audit.case import Case, Found
from tallygate.audit.contents import by_content
from tallygate.audit.coordinates import by_coordinates
from tallygate.audit.kafka import TopicEvidence
from tallygate.errors import ConfigError
from tallygate.records.decoding import COORDINATES
from tallygate.spark.plan import read_plan

__all__ = ["check"]


def check(case: Case, *, partial: bool, sampled: bool) -> Found:
    """`partial` says that not all records are to be checked; `sampled` that only some rows of the
    sink are to be read."""
    plan = read_plan(case.source.recomputed(case.scope.ranges, case.noted))
    rows = case.evidence.rows(case.scope.ranges if sampled else None)
    located = plan.carries and _plain(case) and set(COORDINATES) <= set(rows.columns)
    if partial and not located:
        raise ConfigError(
            "only rows that carry the coordinates of their records can be checked in part; these "
            "are aggregates, joins or upserts, or were written without coordinates. Leave out "
            "--since and --sample."
        )
    found = by_coordinates(case, plan, rows) if located else by_content(case, plan, rows)
    if not partial:
        expected = case.evidence.shaped(case.kept(plan), carries=plan.carries)
        own = case.evidence.own(expected, case.scope.ranges)
        found = replace(found, anomalies=(*found.anomalies, *own))
    return _excused(case, _with_sides(case, found))


def _plain(case: Case) -> bool:
    """Whether every row of the transform is a row of the sink."""
    if isinstance(case.evidence, TopicEvidence):
        return not case.evidence.compacted
    return case.mode == "append" and not case.key


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
    if not isinstance(case.evidence, TopicEvidence) or not case.evidence.removed:
        return found
    removed = case.evidence.removed
    if sum(each.count for each in found.anomalies if each.kind == "missing") > removed:
        return found
    reason = f"the topic begins at later offsets, {removed} were removed"
    return found.but(reason, "missing")
