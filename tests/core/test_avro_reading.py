"""Bytes that no writer of Avro writes are no record, whatever the library makes of them."""

import io
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallygate.core.avro import decoder, encoder
from tallygate.errors import InputError

SUIT = {"type": "enum", "name": "suit", "symbols": ["A", "B", "C"]}
INSIDE = {
    "type": "record",
    "name": "inside",
    "fields": [{"name": "s", "type": "string"}, {"name": "u", "type": ["null", "suit"]}],
}
ALL = {
    "b": "boolean",
    "i": "int",
    "l": "long",
    "f": "float",
    "d": "double",
    "s": "string",
    "y": "bytes",
    "e": SUIT,
    "x": {"type": "fixed", "name": "four", "size": 4},
    "u": ["null", "long", "string"],
    "r": INSIDE,
    "a": {"type": "array", "items": ["null", "inside"]},
    "m": {"type": "map", "values": {"type": "array", "items": "four"}},
    "ms": {"type": "long", "logicalType": "timestamp-millis"},
    "us": {"type": "long", "logicalType": "timestamp-micros"},
    "local": {"type": "long", "logicalType": "local-timestamp-micros"},
    "day": {"type": "int", "logicalType": "date"},
}
LONG = st.integers(-(1 << 63), (1 << 63) - 1)
TIMES = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1))
FOUR = st.binary(min_size=4, max_size=4)
INNER = st.fixed_dictionaries({"s": st.text(), "u": st.none() | st.sampled_from("ABC")})
ROWS = st.fixed_dictionaries(
    {
        "b": st.booleans(),
        "i": st.integers(-(1 << 31), (1 << 31) - 1),
        "l": LONG,
        "f": st.floats(width=32, allow_nan=False),
        "d": st.floats(allow_nan=False),
        "s": st.text(),
        "y": st.binary(),
        "e": st.sampled_from("ABC"),
        "x": FOUR,
        "u": st.none() | LONG | st.text(),
        "r": INNER,
        "a": st.lists(st.none() | INNER),
        "m": st.dictionaries(st.text(), st.lists(FOUR)),
        "ms": TIMES.map(lambda at: at.replace(microsecond=0, tzinfo=UTC)),
        "us": TIMES.map(lambda at: at.replace(tzinfo=UTC)),
        "local": TIMES,
        "day": st.dates(),
    }
)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _file(tmp_path_factory.mktemp("avro"), **ALL)


def _file(folder: Path, **types: Any) -> str:
    path = folder / "r.avsc"
    fields = [{"name": name, "type": each} for name, each in types.items()]
    path.write_text(json.dumps({"type": "record", "name": "r", "fields": fields}))
    return str(path)


@given(row=ROWS)
def test_what_the_library_writes_is_read_as_it_was(everything: str, row: Any) -> None:
    assert decoder(everything)(encoder(everything)(row)) == row


@given(data=st.binary(max_size=200))
def test_whatever_the_bytes_they_are_a_record_or_refused(everything: str, data: bytes) -> None:
    try:
        row = decoder(everything)(data)
    except InputError:
        return
    assert row.keys() == ALL.keys()


@pytest.mark.parametrize(
    ("type_", "data", "said"),
    [
        (["null", "long"], b"\x01\x06", "there is no branch -1, but 2 of them"),
        (["null", "long"], b"\x04\x06", "there is no branch 2, but 2 of them"),
        (SUIT, b"\x01", "there is no symbol -1, but 3 of them"),
        (SUIT, b"\x06", "there is no symbol 3, but 3 of them"),
        ("long", b"\x80" * 1_000_000 + b"\0", "a number takes more than 10 bytes"),
        ("long", b"\xff" * 9 + b"\x02", "a number has more than 64 bits"),
        ("long", b"\x80", "it ends too early"),
        ("long", b"", "it ends too early"),
        ("boolean", b"\x02", "a boolean is 2"),
        ("bytes", b"\x01", "a value of -1 bytes is more than there are"),
        ("string", b"\x08abc", "a value of 4 bytes is more than there are"),
        ("string", b"\x02\xff", "'utf-8' codec can't decode"),
        ("double", b"\0" * 7, "a value of 8 bytes is more than there are"),
        ({"type": "array", "items": "long"}, b"\x04\x02", "it ends too early"),
        ("null", b"\0", "it has bytes left over"),
        (ALL["ms"], b"\xff" * 9 + b"\x01", "out of range|signed integer is less|too large"),
        (ALL["day"], b"\xff" * 9 + b"\x01", "out of range|signed integer is less|too large"),
    ],
)
def test_what_no_writer_writes_is_refused(
    tmp_path: Path, type_: Any, data: bytes, said: str
) -> None:
    with pytest.raises(InputError, match=f"^is not of the Avro schema: .*({said})"):
        decoder(_file(tmp_path, f=type_))(data)


def test_the_library_would_take_them(tmp_path: Path) -> None:
    """The twin."""
    schema = fastavro.parse_schema(
        {"type": "record", "name": "r", "fields": []}
        | {"fields": [{"name": "f", "type": ["null", "long"]}]}
    )
    assert fastavro.schemaless_reader(io.BytesIO(b"\x01\x06"), schema, None) == {"f": 3}


def test_a_block_that_says_its_size_is_read(tmp_path: Path) -> None:
    decode = decoder(_file(tmp_path, f={"type": "array", "items": "long"}))
    assert decode(b"\x03\x04\x02\x04\x02\x06\x00") == {"f": [1, 2, 3]}


def test_logical_types_are_read_on_both_sides_of_1970(tmp_path: Path) -> None:
    decode = decoder(
        _file(
            tmp_path,
            f=ALL["ms"],
            d=ALL["day"],
            n=["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}],
        )
    )
    assert decode(b"\x01\x01\x02\x04\xff\x38") == {
        "f": datetime(1970, 1, 1, tzinfo=UTC) - timedelta(milliseconds=1),
        "d": date(1969, 12, 31),
        "n": Decimal("-2.00"),
    }
