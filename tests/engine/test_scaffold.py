"""The schema that `init` guesses from a sample: each record of the sample fits it."""

import json
from typing import Any

import pytest
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from tallygate.core.converters import members_of
from tallygate.engine.scaffold import infer_schema, parsed
from tallygate.errors import InputError


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        ([1, 2.5, None], "double"),
        ([None], "string"),
        (["a", None], "string"),
        (["2026-01-31"], "date"),
        (["2026-01-31T12:00:00Z", "2026-01-31T12:00:00.123456+02:00"], "timestamp"),
        (["2026-01-31 12:00:00", "2026-01-31T12:00"], "timestamp"),
        (["2026-01-31", "2026-01-31T12:00:00Z"], "timestamp"),
        (["2026-01-31T12:00:00Z", "soon"], "string"),
        (["soon", "2026-01-31"], "string"),
        (["2026-02-31"], "string"),
        (["2026-01-31T12:00:00.123456789Z"], "string"),  # Spark would lose the last digits
        (["0001-01-01T00:00:00+14:00"], "string"),
        (["20260131"], "string"),
        (["12:00:00"], "string"),
        ([["2026-01-31"], [], ["x"]], "array<string>"),
        ([{"at": "2026-01-31"}, {"at": "x", "n": 1}, {"n": 2.5}], "struct<at: string, n: double>"),
        ([[{"at": "2026-01-31"}]], "array<struct<at: date>>"),
    ],
)
def test_a_type_that_holds_all_values(values: list[Any], type_: str) -> None:
    assert infer_schema([{"x": value} for value in values]) == f"x {type_}"


@pytest.mark.parametrize("values", [[1, "2026-01-31"], [True, 1], ["x", {}], [[1], 1]])
def test_values_that_no_type_holds_are_refused(values: list[Any]) -> None:
    with pytest.raises(InputError, match="x is .* in one record and .* in another"):
        infer_schema([{"x": value} for value in values])


TIMES = ["2026-01-31", "2026-01-31T12:00", "2026-01-31 12:00:00.5+0200", "9999-12-31T23:59:59Z"]


@pytest.mark.parametrize("value", TIMES)
def test_what_is_guessed_to_be_a_time_can_be_decoded_as_one(value: str) -> None:
    type_ = {"date": t.DateType(), "timestamp": t.TimestampType()}[
        infer_schema([{"x": value}]).split()[1]
    ]
    (member,) = members_of(to_arrow_schema(t.StructType([t.StructField("x", type_)])))
    assert member.of(json.loads(json.dumps({"x": value}))) is not None


@pytest.mark.parametrize("value", [b"[" * 100_000, b"{", b"\xff"])
def test_a_record_of_a_sample_that_is_not_json_is_refused(value: bytes) -> None:
    with pytest.raises(InputError, match="is not JSON"):
        parsed(value)
