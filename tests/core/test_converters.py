"""What is a number and what is a time: less than all that Python takes for one."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tallygate.core.decoding import Decoder

DECIMAL, DOUBLE = pa.decimal128(12, 2), pa.float64()
TIME, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")


def _of(type_: pa.DataType, text: str, format: str) -> Any:
    """The one field `f` of a record that holds the text, or the cause why it is unfit."""
    value = text if format == "csv" else f'{{"f":"{text}"}}'
    raw = pa.RecordBatch.from_pydict({"value": pa.array([value.encode()], pa.binary())})
    rows, unfit = Decoder(format, pa.schema([("f", type_)]), ()).decode(raw)
    return unfit[0].cause if unfit else rows.column("f")[0].as_py()


ODD = ["1_000", " 7", "7 ", "\u0661\u0662", "\uff17", "0x1f", "1e", "e5", ".", "+", "--1", "1,5"]
WORDS = ["nan", "NaN", "inf", "-Infinity", "sNaN", "nan123"]


@pytest.mark.parametrize("text", [*ODD, *WORDS])
@pytest.mark.parametrize("format", ["csv", "json"])
def test_what_only_python_takes_for_a_number_is_no_decimal(text: str, format: str) -> None:
    found = _of(DECIMAL, f'"{text}"' if "," in text and format == "csv" else text, format)
    assert found == f"f: {text!r} is not a decimal"


@pytest.mark.parametrize("text", [*ODD, *WORDS])
def test_what_only_python_takes_for_a_number_is_no_double(text: str) -> None:
    found = _of(DOUBLE, f'"{text}"' if "," in text else text, "csv")
    assert found == f"f: {text!r} is not a number"


@pytest.mark.parametrize("text", ["7", "-7", "+7", "7.", ".5", "-0.50", "1e3", "1E+3", "12.5e-1"])
def test_numbers_are_taken_however_they_are_written(text: str) -> None:
    for format in ("csv", "json"):
        assert _of(DECIMAL, text, format) == Decimal(text)
    assert _of(DOUBLE, text, "csv") == float(text)


@pytest.mark.parametrize("between", ["x", "_", "-", "1", "\N{NO-BREAK SPACE}", "\u0661", "::"])
@pytest.mark.parametrize("day", ["2024-01-01", "20240101", "2024-W01-1", "2024W011"])
@pytest.mark.parametrize("type_", [TIME, LOCAL])
def test_between_a_date_and_a_time_is_a_t_or_a_space(
    type_: pa.DataType, day: str, between: str
) -> None:
    text = f"{day}{between}10:00"
    cause = f"f: {text!r} is not a time as in 2026-01-31T12:00:00Z"
    assert {_of(type_, text, format) for format in ("csv", "json")} == {cause}


@pytest.mark.parametrize("between", ["T", "t", " "])
@pytest.mark.parametrize("day", ["2024-01-01", "20240101", "2024-W01-1", "2024-W01", "2024W011"])
def test_times_are_taken_in_each_form_of_the_standard(day: str, between: str) -> None:
    for format in ("csv", "json"):
        for clock in ("10:00", "1000", "10", "10:00:00.000000"):
            text = f"{day}{between}{clock}"
            assert _of(LOCAL, text, format) == datetime(2024, 1, 1, 10)
            assert _of(TIME, text + "+01:00", format) == datetime(2024, 1, 1, 9, tzinfo=UTC)
        assert _of(LOCAL, day, format) == datetime(2024, 1, 1)
