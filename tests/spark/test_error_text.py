"""What Spark said, in one line."""

from tallygate.spark.error_text import reason

PYTHON = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "job.py", line 3, in run
ZeroDivisionError: division by zero
"""


def test_codes_are_left_out() -> None:
    said = "[TABLE_OR_VIEW_NOT_FOUND] The view `x` is not there. SQLSTATE: 42P01;\nmore"
    assert reason(Exception(said)) == "The view `x` is not there"


def test_a_class_is_left_out_where_a_code_says_more() -> None:
    said = "org.apache.spark.SparkRuntimeException: [MALFORMED_CSV_RECORD] Malformed CSV record: 2"
    assert reason(Exception(said)) == "Malformed CSV record: 2"
    alone = 'java.lang.NumberFormatException: For input string: "x"'
    assert reason(Exception(alone)) == alone


def test_of_a_traceback_the_last_line_tells() -> None:
    assert reason(Exception(PYTHON)) == "ZeroDivisionError: division by zero"


def test_an_error_without_words_has_its_name() -> None:
    assert reason(ValueError()) == "ValueError"
