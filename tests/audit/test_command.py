"""How a check ends that could not be finished."""

import pytest
from pyspark.sql import SparkSession

from tallygate.cli.audit import CrashedError, _crashes_told
from tallygate.errors import LedgerError


def test_a_check_that_crashed_has_neither_passed_nor_failed(spark: SparkSession) -> None:
    said = "the audit could not be finished.*a broker died"
    with pytest.raises(CrashedError, match=said) as told, _crashes_told("audit"):
        spark.sql("SELECT raise_error('a broker died')").collect()
    assert told.value.exit_code == 2
    assert told.value.__cause__ is not None, "--debug shows it"


def test_an_error_of_ours_says_what_it_is() -> None:
    with pytest.raises(LedgerError), _crashes_told("audit"):
        raise LedgerError("has never run")
