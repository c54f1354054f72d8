"""A verdict is three-valued, and the worst wins."""

from tallygate.auditing.verdict import Anomaly, Report, Verdict, worst


def _report(**fields: object) -> Report:
    return Report("p", "t", 1, 1, 0, 0, **fields)  # type: ignore[arg-type]


def test_the_worst_wins_and_nothing_checked_is_unknown() -> None:
    assert worst([]) is Verdict.UNKNOWN
    assert worst([Verdict.VALID, Verdict.UNKNOWN]) is Verdict.UNKNOWN
    assert worst([Verdict.INVALID, Verdict.UNKNOWN, Verdict.VALID]) is Verdict.INVALID


def test_a_report_is_valid_only_if_all_was_seen_and_nothing_is_wrong() -> None:
    missing = Anomaly("missing", 2, ("here",))
    assert _report().verdict.exit_code == 0
    assert _report(anomalies=(missing,)).verdict.exit_code == 1
    assert _report(unknown=("retention",)).verdict.exit_code == 2
    both = _report(anomalies=(missing,), unknown=("retention",))
    assert both.verdict is Verdict.INVALID
    assert both.as_dict()["counts"]["missing"] == 2
    assert both.as_dict()["counts"]["duplicate"] == 0
