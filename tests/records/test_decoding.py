"""Decoding: what is fit, what is unfit and why; and that both ways of decoding agree."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tallygate.records.avro import arrow_schema, encoder
from tallygate.records.decoding import Decoder

PLAIN = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int32()),
        ("amount", pa.float64()),
        ("name", pa.string()),
        ("ok", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)


def _raw(*values: bytes | None) -> pa.RecordBatch:
    count = len(values)
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([b"k"] * count, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "topic": pa.array(["t"] * count),
            "partition": pa.array([1] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "timestamp": pa.array([datetime(2026, 1, 1)] * count, pa.timestamp("us", "UTC")),
        }
    )


def _one(type_: pa.DataType, text: str) -> Any:
    """The one field `f` of a JSON record, or the cause why it is unfit."""
    decoder = Decoder("json", pa.schema([("f", type_)]))
    rows, unfit = decoder.decode(_raw(f'{{"f": {text}}}'.encode()))
    return unfit[0].cause if unfit else rows.column("f")[0].as_py()


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (pa.int64(), "12", 12),
        (pa.int16(), "-3", -3),
        (pa.float64(), "1", 1.0),
        (pa.float32(), "0.5", 0.5),
        (pa.string(), '"a\\u0000b"', "a\0b"),
        (pa.bool_(), "true", True),
        (pa.bool_(), "null", None),
        (pa.decimal128(20, 2), "123456789012345678.10", Decimal("123456789012345678.10")),
        (pa.decimal128(6, 2), '"-1.5"', Decimal("-1.50")),
        (pa.date32(), '"2026-02-28"', date(2026, 2, 28)),
        (
            pa.timestamp("us", "UTC"),
            '"2026-01-01T02:00:00+02:00"',
            datetime(2026, 1, 1, tzinfo=UTC),
        ),
        (pa.timestamp("us", "UTC"), '"2026-01-01 00:00:00"', datetime(2026, 1, 1, tzinfo=UTC)),
        (pa.timestamp("us"), '"2026-01-01T12:00:00"', datetime(2026, 1, 1, 12)),
        (pa.binary(), '"aGk="', b"hi"),
        (pa.list_(pa.int64()), "[1, null]", [1, None]),
        (pa.struct([("a", pa.int64())]), '{"a": 1, "b": 2}', {"a": 1}),
        (pa.map_(pa.string(), pa.int64()), '{"x": 1}', [("x", 1)]),
    ],
)
def test_values_that_fit(type_: pa.DataType, text: str, value: Any) -> None:
    assert _one(type_, text) == value


@pytest.mark.parametrize(
    ("type_", "text", "cause"),
    [
        (pa.int64(), "1.0", "f: 1.0 is not an integer"),
        (pa.int64(), '"1"', "f: '1' is not an integer"),
        (pa.int64(), "true", "f: True is not an integer"),
        (pa.int64(), "9223372036854775808", "is beyond 64 bits"),
        (pa.int8(), "128", "is beyond 8 bits"),
        (pa.float64(), "NaN", ""),
        (pa.float64(), '"1"', "is not a number"),
        (pa.string(), "1", "f: 1 is not a string"),
        (pa.bool_(), "1", "is not true or false"),
        (pa.decimal128(5, 2), "1.005", "does not fit decimal(5, 2) exactly"),
        (pa.decimal128(5, 2), "12345", "decimal(5, 2)"),
        (pa.date32(), '"2026-02-30"', "f: "),
        (pa.timestamp("us", "UTC"), '"noon"', "f: "),
        (pa.timestamp("us"), '"2026-01-01T12:00:00Z"', "has a zone"),
        (pa.list_(pa.int64()), "1", "is not a list"),
        (pa.struct([("a", pa.int64())]), '{"a": "x"}', "f: a: 'x' is not an integer"),
    ],
)
def test_values_that_do_not_fit(type_: pa.DataType, text: str, cause: str) -> None:
    found = _one(type_, text)
    assert isinstance(found, str)
    assert cause in found


@pytest.mark.parametrize(
    "value", [b"", b"[1]", b"1", b"nonsense", b'{"id": 1', b'{"id":1}{"id":2}', b"\xff", None]
)
def test_records_that_are_no_objects_are_unfit_and_the_others_are_not(value: bytes | None) -> None:
    rows, unfit = Decoder("json", PLAIN).decode(_raw(b'{"id":1}', value, b'{"id":3}'))
    assert [each.index for each in unfit] == [1]
    assert rows.column("id").to_pylist() == [1, 3]
    assert rows.column("_offset").to_pylist() == [0, 2]


def test_two_bad_records_cannot_make_a_good_one() -> None:
    """Halves that would parse together, and a record with two objects to make up the count."""
    pieces = [b'{"id":1}', b'{"name":', b'{"id":2}}', b'{"id":3}{"id":4}']
    rows, unfit = Decoder("json", PLAIN).decode(_raw(*pieces))
    assert rows.column("id").to_pylist() == [1]
    assert [each.index for each in unfit] == [1, 2, 3]


def _json() -> st.SearchStrategy[Any]:
    leaf = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.text(max_size=8),
        st.just("2026-01-01T00:00:00Z"),
        st.just("2026-01-01T00:00:00.123456+01:00"),
    )
    return st.one_of(leaf, st.lists(leaf, max_size=2), st.dictionaries(st.text(), leaf, max_size=2))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.one_of(
            st.dictionaries(st.sampled_from([*PLAIN.names, "other"]), _json(), max_size=6).map(
                lambda row: json.dumps(row).encode()
            ),
            st.binary(max_size=12),
            st.sampled_from([b'{"id":1}\n', b' {"id":1}', b'{"id":1,"id":2}', b"{}", b'{"id":-0}']),
        ),
        max_size=6,
    )
)
def test_the_fast_way_agrees_with_the_careful_one(values: list[bytes]) -> None:
    decoder = Decoder("json", PLAIN)
    column = pa.array(values, pa.binary())
    try:
        fast = decoder._json(column)
    except pa.ArrowInvalid:
        fast = None
    if fast is None:
        return
    careful, unfit = decoder._careful(column)
    assert not unfit
    assert [c.to_pylist() for c in fast] == [c.to_pylist() for c in careful]


def test_the_fast_way_is_taken_for_plain_records() -> None:
    values = [
        b'{"id":1,"name":"a","at":"2026-01-01T00:00:00Z"}',
        b'{"id":2,"amount":1.5,"ok":true}',
    ]
    assert Decoder("json", PLAIN)._json(pa.array(values, pa.binary())) is not None


def test_csv() -> None:
    decoder = Decoder("csv", PLAIN)
    rows, unfit = decoder.decode(
        _raw(b'1,2,1.5,"a,b",TRUE,2026-01-01', b"x,2,1.5,a,true,", b"1,2", b",,,,,\n")
    )
    assert [each.index for each in unfit] == [1, 2]
    assert unfit[1].cause == "2 cells for 6 fields"
    assert rows.column("name").to_pylist() == ["a,b", None]
    assert rows.column("at").to_pylist() == [datetime(2026, 1, 1, tzinfo=UTC), None]


def test_text_and_bytes() -> None:
    text = Decoder("text", pa.schema([("value", pa.string())]))
    rows, unfit = text.decode(_raw("é".encode(), b"\xff", None))
    assert rows.column("value").to_pylist() == ["é", None]
    assert [each.index for each in unfit] == [1]
    raw = Decoder("bytes", pa.schema([("value", pa.binary())]))
    rows, unfit = raw.decode(_raw(b"\xff", None))
    assert (rows.column("value").to_pylist(), unfit) == ([b"\xff", None], [])


def test_avro(tmp_path: Path) -> None:
    path = tmp_path / "payment.avsc"
    schema = {
        "type": "record",
        "name": "payment",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"]},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {
                "name": "price",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            },
        ],
    }
    path.write_text(json.dumps(schema))
    row = {
        "id": 7,
        "note": None,
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "price": Decimal("12.50"),
    }
    decoder = Decoder("avro", arrow_schema(str(path)), avro_schema=str(path))
    rows, unfit = decoder.decode(_raw(encoder(str(path))(row), b"\x01\x02"))
    assert [each.index for each in unfit] == [1]
    assert rows.select(decoder.fields.names).to_pylist() == [row]
