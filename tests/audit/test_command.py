"""What the command prints, and how it ends."""

import pytest
from pyspark.sql import SparkSession

from tallygate.auditing.verdict import Report
from tallygate.cli.audit import CrashedError, _crashes_told, _show
from tallygate.errors import LedgerError


def test_columns_that_were_not_compared_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("p", "t", 1, 1, 0, 0, not_compared=("tags", "place"))
    assert report.verdict.exit_code == 0
    assert report.as_dict()["not_compared"] == ("tags", "place")
    _show(report)
    assert "  not compared: tags, place\n" in capsys.readouterr().out


def test_a_check_that_crashed_has_neither_passed_nor_failed(spark: SparkSession) -> None:
    said = "the audit could not be finished.*a broker died"
    with pytest.raises(CrashedError, match=said) as told, _crashes_told("audit"):
        spark.sql("SELECT raise_error('a broker died')").collect()
    assert told.value.exit_code == 2
    assert told.value.__cause__ is not None, "--debug shows it"


def test_an_error_of_ours_says_what_it_is() -> None:
    with pytest.raises(LedgerError), _crashes_told("audit"):
        raise LedgerError("has never run")
