"""Decoding: what is fit, what is unfit and why; and that both ways of decoding agree."""

import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.blocks import raw_block
from tallygate.core.avro import arrow_schema, encoder
from tallygate.core.decoding import Decoder
from tallygate.errors import ConfigError

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


def _one(type_: pa.DataType, text: str) -> Any:
    """The one field `f` of a JSON record, or the cause why it is unfit."""
    decoder = Decoder("json", pa.schema([("f", type_)]))
    rows, unfit = decoder.decode(raw_block(f'{{"f": {text}}}'.encode()))
    return unfit[0].cause if unfit else rows.column("f")[0].as_py()


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (pa.int64(), "12", 12),
        (pa.int16(), "-3", -3),
        (pa.float64(), "1", 1.0),
        (pa.float64(), "-0", 0.0),
        (pa.float32(), "0.5", 0.5),
        (pa.float32(), "-3.4e38", -3.3999999521443642e38),
        (pa.string(), '"a\\u0000b"', "a\0b"),
        (pa.bool_(), "true", True),
        (pa.bool_(), "null", None),
        (pa.decimal128(20, 2), "123456789012345678.10", Decimal("123456789012345678.10")),
        (pa.decimal128(6, 2), '"-1.5"', Decimal("-1.50")),
        (pa.decimal128(38, 18), "10000000000", Decimal(10**10)),
        (pa.decimal128(38, 18), f'"{"9" * 20}.{"9" * 18}"', Decimal(f"{'9' * 20}.{'9' * 18}")),
        (pa.decimal128(38, 0), "-" + "9" * 38, Decimal(1 - 10**38)),
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
        (pa.float64(), "1e400", "f: 1E+400 is not a finite number"),
        (pa.float32(), "1e300", "f: 1e+300 is beyond 32 bits"),
        (pa.float32(), "-3.5e38", "is beyond 32 bits"),
        (pa.string(), "1", "f: 1 is not a string"),
        (pa.bool_(), "1", "is not true or false"),
        (pa.decimal128(5, 2), "1.005", "does not fit decimal(5, 2) exactly"),
        (pa.decimal128(5, 2), "12345", "decimal(5, 2)"),
        (pa.decimal128(38, 18), "1e20", "does not fit decimal(38, 18) exactly"),
        (pa.decimal128(38, 18), f"0.{'1' * 60}", "does not fit decimal(38, 18) exactly"),
        (pa.decimal128(38, 18), "1e400", "is not a decimal(38, 18)"),
        (pa.date32(), '"2026-02-30"', "f: "),
        (pa.timestamp("us", "UTC"), '"noon"', "f: "),
        (pa.timestamp("us", "UTC"), '"0000-01-01T00:00:00Z"', "f: year 0"),
        (pa.timestamp("us", "UTC"), '"0001-01-01T00:00:00+01:00"', "f: date value out of range"),
        (pa.timestamp("us", "UTC"), '"9999-12-31T23:59:59-01:00"', "f: date value out of range"),
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
    rows, unfit = Decoder("json", PLAIN).decode(raw_block(b'{"id":1}', value, b'{"id":3}'))
    assert [each.index for each in unfit] == [1]
    assert rows.column("id").to_pylist() == [1, 3]
    assert rows.column("_offset").to_pylist() == [0, 2]


def test_two_bad_records_cannot_make_a_good_one() -> None:
    """Halves that would parse together, and a record with two objects to make up the count."""
    pieces = [b'{"id":1}', b'{"name":', b'{"id":2}}', b'{"id":3}{"id":4}']
    rows, unfit = Decoder("json", PLAIN).decode(raw_block(*pieces))
    assert rows.column("id").to_pylist() == [1]
    assert [each.index for each in unfit] == [1, 2, 3]


def test_a_null_in_a_field_that_is_not_nullable_is_unfit() -> None:
    """Spark leaves checks for null out where a column is declared to have none."""
    long = pa.field("id", pa.int64(), nullable=False)
    block = raw_block(b'{"id":1}', b"{}", b'{"id":null}', b'{"id":4}')
    rows, unfit = Decoder("json", pa.schema([long])).decode(block)
    assert rows.column("id").to_pylist() == [1, 4]
    assert [each.index for each in unfit] == [1, 2]
    assert unfit[0].cause == "id: is missing or null, and declared NOT NULL"
    inner = Decoder("json", pa.schema([("s", pa.struct([long]))]))
    rows, unfit = inner.decode(raw_block(b'{"s":{"id":1}}', b'{"s":{}}', b"{}"))
    assert rows.column("s").to_pylist() == [{"id": 1}, None]
    assert unfit[0].cause == "s: id: is missing or null, and declared NOT NULL"
    cells = Decoder("csv", pa.schema([long, ("name", pa.string())]))
    assert [each.index for each in cells.decode(raw_block(b"1,", b",a"))[1]] == [1]


@pytest.mark.parametrize("other", [pa.int64(), pa.decimal128(5, 2)])
@pytest.mark.parametrize("escape", [rb"\ud800", rb"\udc00\ud800", rb"\ud800x"])
@pytest.mark.parametrize("before", [b"", b'"endless":1e400,'])
def test_half_a_character_is_unfit(other: pa.DataType, escape: bytes, before: bytes) -> None:
    """A lone surrogate: Python's own JSON reader takes it for text, which no column can hold."""
    decoder = Decoder("json", pa.schema([("name", pa.string()), ("other", other)]))
    bad = b"{" + before + b'"name":"' + escape + b'"}'
    rows, unfit = decoder.decode(raw_block(b'{"name":"a"}', bad, rb'{"name":"\ud83d\ude00"}'))
    assert rows.column("name").to_pylist() == ["a", "\N{GRINNING FACE}"]
    assert [each.index for each in unfit] == [1]
    assert unfit[0].cause.isascii()


@pytest.mark.parametrize("other", [pa.int64(), pa.decimal128(5, 2)])
@pytest.mark.parametrize("value", [rb'"\ud800"', b"NaN", b"-Infinity", b"[" * 1024 + b"]" * 1024])
def test_what_is_no_json_is_unfit_even_in_a_field_that_is_ignored(
    other: pa.DataType, value: bytes
) -> None:
    decoder = Decoder("json", pa.schema([("id", pa.int64()), ("other", other)]))
    _, unfit = decoder.decode(raw_block(b'{"id":1}', b'{"id":2,"ignored":' + value + b"}"))
    assert [each.index for each in unfit] == [1]


@pytest.mark.parametrize("other", [pa.int64(), pa.decimal128(5, 2)])
def test_a_number_without_end_is_for_its_field_to_refuse(other: pa.DataType) -> None:
    decoder = Decoder("json", pa.schema([("id", pa.int64()), ("other", other)]))
    values = [b'{"id":%d,"ignored":%s}' % (i, n) for i, n in enumerate(ENDLESS)]
    rows, unfit = decoder.decode(raw_block(b'{"id":"x"}', *values))
    assert [each.index for each in unfit] == [0]
    assert rows.column("id").to_pylist() == list(range(len(ENDLESS)))
    _, unfit = decoder.decode(raw_block(*(b'{"id":%s}' % number for number in ENDLESS)))
    assert len(unfit) == len(ENDLESS)


ENDLESS = (b"1e400", b"-17e308", b"1" * 400, b"1" * 5000)

WORD = st.sampled_from(["", "a", "NaN", "Infinity", ": NaN,", "-0,", "}\n{", "[{" * 300, "\0", "é"])
PLACES = {
    "id": st.integers(-(2**63), 2**63 - 1).map(str) | st.just("-0"),
    "small": st.integers(-(2**31), 2**31 - 1).map(str),
    "amount": st.floats().map(json.dumps)  # among them NaN, Infinity and -Infinity
    | st.integers(-(2**70), 2**70).map(str)
    | st.sampled_from(["-0", "-0.0", "-0 ", "-0e0", "0", "1e400", "1e308", "17e308", "1" * 400]),
    "name": (st.text(max_size=8) | WORD).map(json.dumps)  # among them lone surrogates
    | st.sampled_from([r'"\ud800"', r'"\udc00\ud800"', r'"\ud83d\ude00"']),
    "ok": st.sampled_from(["true", "false"]),
    "at": st.builds(
        '"{}-{}{}"'.format,
        st.sampled_from(["0000", "0001", "1969", "2026", "9999"]),
        st.sampled_from(["01-01", "12-31T23:59:59.999999", "02-29T00:00", "01-01 00:00:00.5"])
        | st.sampled_from([f"01-01{between}10:00:00" for between in "xt_-1\t"]),
        st.sampled_from(["", "Z", "+01:00", "-01:00"]),
    )
    | st.sampled_from(  # at the ends of time, where a zone leads beyond or back
        [
            '"0000-12-31T23:59:59-01:00"',
            '"0001-01-01T00:00:00+01:00"',
            '"9999-12-31T23:59:59-01:00"',
        ]
    ),
    "other": st.sampled_from(
        ["NaN", "Infinity", "-Infinity", "[NaN]", "[1, -Infinity ]", '{"a":NaN}', "-NaN", "Inf"]
        + ["1e400", "17e308", "1" * 400, "1" * 5000, "1" * 30, r'"\ud800"', '"NaN"', "[1,\n{}]"]
        + ["[" * depth + "]" * depth for depth in (3, 499, 700, 1023, 1024, 3000)]
        + ['{"a":' * depth + "1" + "}" * depth for depth in (3, 1023, 1024)]
    ),
}


def _anything() -> st.SearchStrategy[str]:
    leaf = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    parts = st.lists(leaf, max_size=2) | st.dictionaries(st.text(), leaf, max_size=2)
    return (leaf | parts).map(json.dumps)


@st.composite
def _record(draw: st.DrawFn) -> bytes:
    """Mostly a record that fits, so that the fast way comes to see what is odd about the others."""
    names = draw(st.lists(st.sampled_from(list(PLACES)), max_size=3, unique=draw(_mostly())))
    fields = [
        f'"{name}":{draw(PLACES[name] if draw(_mostly()) else _anything())}' for name in names
    ]
    text = f"{{{','.join(fields)}}}".encode()
    if draw(_mostly()):
        return text
    edges = st.sampled_from([b"", b" ", b"\n", b"\r", b"\xef\xbb\xbf", b"}", b"{}", b"\xff"])
    cut = draw(st.integers(0, len(text)))
    inserted = text[:cut] + draw(st.binary(max_size=2) | edges) + text[cut:]
    return draw(edges) + draw(st.sampled_from([text, inserted])) + draw(edges)


def _mostly() -> st.SearchStrategy[bool]:
    return st.integers(0, 9).map(bool)


def _bits(columns: list[pa.Array]) -> list[str]:
    """Told apart even where Python finds them equal, and where it has no such time."""
    return [
        repr((c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c).to_pylist())
        for c in columns
    ]


@settings(deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_record(), min_size=1, max_size=3))
def test_the_fast_way_agrees_with_the_careful_one(values: list[bytes]) -> None:
    decoder = Decoder("json", PLAIN)
    column = pa.array(values, pa.binary())
    fast = decoder._fast(column)
    careful, unfit = decoder._careful(column)
    if fast is not None:
        assert not unfit
        assert _bits(fast) == _bits(careful)


ODD = {
    "NaN": b'{"other":NaN}',
    "infinity": b'{"other":[1,{"a": -Infinity }]}',
    "what only pyarrow takes for infinity": b'{"other":Inf}',
    "deep": b'{"other":' + b"[" * 1024 + b"]" * 1024 + b"}",
    "deep in objects": b'{"other":' + b'{"a":' * 1024 + b"1" + b"}" * 1024 + b"}",
    "year 0": b'{"at":"0000-01-01T00:00:00Z"}',
    "year 0, but not in UTC": rb'{"at":"\u0030000-12-31T23:59:59-01:00"}',
    "year 0 in UTC": b'{"at":"0001-01-01T00:00:00+01:00"}',
    "year 10000 in UTC": b'{"at":"9999-12-31T23:59:59-01:00"}',
    "null": b'{"other":1}',
    "two objects": b'{"id":1}\n{"id":2}',
    "half a character": rb'{"name":"\ud800"}',
    "no double": b'{"amount":17e308}',
}


@pytest.mark.parametrize("odd", ODD)
def test_a_record_is_as_unfit_among_others_as_alone(odd: str) -> None:
    fields = [*PLAIN, pa.field("key", pa.int64(), nullable=False)]
    decoder = Decoder("json", pa.schema(fields))
    good, bad = b'{"key":1,"amount":1.5}', ODD[odd]
    if odd != "null":
        bad = b'{"key":1,' + bad[1:]
    assert [each.index for each in decoder.decode(raw_block(bad))[1]] == [0]
    assert [each.index for each in decoder.decode(raw_block(good, bad, good))[1]] == [1]
    assert [each.index for each in decoder.decode(raw_block(b"x", bad, good))[1]] == [0, 1]


def test_a_zero_has_the_same_sign_among_others_as_alone() -> None:
    decoder = Decoder("json", PLAIN)
    whole, broken = b'{"amount":-0}', b'{"amount":-0.0}'
    for block in ([whole, broken], [whole, broken, b"x"]):
        rows, _ = decoder.decode(raw_block(*block))
        assert repr(rows.column("amount").to_pylist()) == "[0.0, -0.0]"


def test_the_fast_way_is_taken_for_plain_records() -> None:
    values = [
        b'{"id":1,"name":"a","at":"2026-01-01T00:00:00Z"}',
        b'{"id":2,"amount":1.5,"ok":true}',
    ]
    assert Decoder("json", PLAIN)._json(pa.array(values, pa.binary())) is not None


@pytest.mark.parametrize(
    "value",
    [
        b"{}",  # a column of nulls alone
        b'{"name":"NaN","note":"Info, or NaN, or -0, or Inf]"}',
        b'{"amount":-0.0}',
        b'{\n  "id": 1\n}',
        b'{"name":"' + b"x" * 5000 + b'"}',
        b'{"at":"0001-01-01T00:00:00Z"}',
        b'{"at":"9999-12-31T23:59:59.999999Z"}',
    ],
)
def test_the_fast_way_is_not_left_for_what_only_looks_odd(value: bytes) -> None:
    assert Decoder("json", PLAIN)._json(pa.array([value, value], pa.binary())) is not None


def test_csv() -> None:
    decoder = Decoder("csv", PLAIN)
    rows, unfit = decoder.decode(
        raw_block(b'1,2,1.5,"a,b",TRUE,2026-01-01', b"x,2,1.5,a,true,", b"1,2", b",,,,,\n")
    )
    assert [each.index for each in unfit] == [1, 2]
    assert unfit[1].cause == "2 cells for 6 fields"
    assert rows.column("name").to_pylist() == ["a,b", None]
    assert rows.column("at").to_pylist() == [datetime(2026, 1, 1, tzinfo=UTC), None]


@pytest.mark.parametrize("value", [b'"a"b,c', b'"a,b', b"a\nb,c", b'a,"', b"\xff,a"])
def test_a_line_that_is_no_csv_is_unfit_and_the_others_are_not(value: bytes) -> None:
    decoder = Decoder("csv", pa.schema([("a", pa.string()), ("b", pa.string())]))
    rows, unfit = decoder.decode(raw_block(b"1,2", value, b'"3\n,""",4'))
    assert [each.index for each in unfit] == [1]
    assert unfit[0].cause
    assert rows.column("a").to_pylist() == ["1", '3\n,"']


def test_a_cell_of_csv_may_be_as_long_as_its_record() -> None:
    decoder = Decoder("csv", pa.schema([("a", pa.string()), ("b", pa.int64())]))
    rows, unfit = decoder.decode(raw_block(b"x" * 3_000_000 + b",1"))
    assert not unfit
    assert len(rows.column("a")[0].as_py()) == 3_000_000


def test_csv_holds_what_its_numbers_can() -> None:
    decoder = Decoder("csv", pa.schema([("d", pa.decimal128(38, 18)), ("f", pa.float32())]))
    rows, unfit = decoder.decode(raw_block(b"12345678901234567890.5,1.5", b"1,1e300"))
    assert rows.column("d").to_pylist() == [Decimal("12345678901234567890.5")]
    assert [each.cause for each in unfit] == ["f: 1e+300 is beyond 32 bits"]


def test_a_type_that_cannot_be_decoded_is_refused_before_any_record() -> None:
    with pytest.raises(ConfigError, match=r"field 'a' is of type duration\[us\], which cannot"):
        Decoder("json", pa.schema([("a", pa.duration("us"))]))
    inner = pa.struct([("b", pa.list_(pa.duration("us")))])
    with pytest.raises(ConfigError, match=r"field 'a.b' is of type duration"):
        Decoder("csv", pa.schema([("a", inner)]))


def test_a_decoder_travels() -> None:
    decoder = Decoder("json", PLAIN)
    decoder.decode(raw_block(b"x"))
    there = pickle.loads(pickle.dumps(decoder))
    assert there == decoder
    assert len(there.decode(raw_block(b"x", b"{}"))[1]) == 1


def test_text_and_bytes() -> None:
    text = Decoder("text", pa.schema([("value", pa.string())]))
    rows, unfit = text.decode(raw_block("é".encode(), b"\xff", None))
    assert rows.column("value").to_pylist() == ["é", None]
    assert [each.index for each in unfit] == [1]
    raw = Decoder("bytes", pa.schema([("value", pa.binary())]))
    rows, unfit = raw.decode(raw_block(b"\xff", None))
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
    rows, unfit = decoder.decode(raw_block(encoder(str(path))(row), b"\x01\x02"))
    assert [each.index for each in unfit] == [1]
    assert rows.select(decoder.fields.names).to_pylist() == [row]


def test_avro_decimals_have_all_their_digits(tmp_path: Path) -> None:
    path = tmp_path / "wide.avsc"
    wide = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 18}
    path.write_text(
        json.dumps({"type": "record", "name": "r", "fields": [{"name": "d", "type": wide}]})
    )
    decoder = Decoder("avro", arrow_schema(str(path)), avro_schema=str(path))
    values = [Decimal(f"{sign}{'9' * 20}.{'9' * 18}") for sign in ("", "-")]
    rows, unfit = decoder.decode(raw_block(*(encoder(str(path))({"d": value}) for value in values)))
    assert not unfit
    assert rows.column("d").to_pylist() == values
