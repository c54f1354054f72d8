"""A verdict is three-valued, and the worst wins."""

from typing import Any

import pytest

from tallygate.auditing.verdict import Anomaly, AuditResult, Verdict, worst

MISSING = Anomaly("missing", 2, ("payments/0@17", "payments/1@4"))


def _result(**fields: Any) -> AuditResult:
    return AuditResult(pipeline="p", target="t", records=1, rows=1, **fields)


def test_the_worst_wins_and_nothing_checked_is_unknown() -> None:
    assert worst([]) is Verdict.UNKNOWN
    assert worst([Verdict.VALID, Verdict.UNKNOWN]) is Verdict.UNKNOWN
    assert worst([Verdict.INVALID, Verdict.UNKNOWN, Verdict.VALID]) is Verdict.INVALID


def test_a_result_is_valid_only_if_all_was_seen_and_nothing_is_wrong() -> None:
    assert _result().verdict.exit_code == 0
    assert _result(anomalies=(MISSING,)).verdict.exit_code == 1
    assert _result(unknown=("retention",)).verdict.exit_code == 2
    both = _result(anomalies=(MISSING,), unknown=("retention",))
    assert both.verdict is Verdict.INVALID
    assert both.as_dict()["counts"]["missing"] == 2
    assert both.as_dict()["counts"]["duplicate"] == 0


def test_only_a_valid_result_is_true() -> None:
    assert _result()
    assert not _result(anomalies=(MISSING,))
    assert not _result(unknown=("retention",))


def test_a_failed_assertion_shows_why() -> None:
    """pytest shows what was asserted, cut to 240 characters; elsewhere the message is given."""
    wrong = _result(anomalies=(MISSING,), unknown=("topic t was removed",))
    with pytest.raises(AssertionError) as told:
        assert wrong
    said = "<AuditResult p: invalid; 2 missing (payments/0@17); unknown: topic t was removed>"
    assert said in str(told.value)
    assert repr(_result()) == "<AuditResult p: valid; 1 records, 1 rows>"


def test_the_text_of_a_result_has_everything() -> None:
    result = _result(
        anomalies=(MISSING,),
        unknown=("topic t was removed",),
        letters=3,
        filtered=1,
        scope="records since then",
        not_compared=("tags", "place"),
        notes=("there is no row",),
        seconds=1.25,
    )
    assert str(result).splitlines() == [
        "p: invalid",
        "  1 records, 1 rows, 1 filtered, 3 dead letters, 0 lost; 1.2 s",
        "  only records since then",
        "  missing: 2",
        "    payments/0@17",
        "    payments/1@4",
        "  not compared: tags, place",
        "  unknown: topic t was removed",
        "  note: there is no row",
    ]
    assert result.as_dict()["notes"] == ("there is no row",)


def test_a_note_changes_no_verdict() -> None:
    assert _result(notes=("there is no row",)).verdict is Verdict.VALID
