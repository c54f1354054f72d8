"""Avro of unknown origin: bytes cost no more than their length, and each type has its column."""

import json
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tallygate.core.avro import arrow_schema, decoder, encoder
from tallygate.core.decoding import Decoder
from tallygate.errors import ConfigError, InputError


def _file(folder: Path, *types: Any) -> str:
    path = folder / "r.avsc"
    fields = [{"name": f"f{number}", "type": each} for number, each in enumerate(types)]
    path.write_text(json.dumps({"type": "record", "name": "r", "fields": fields}))
    return str(path)


def _long(number: int) -> bytes:
    """As Avro writes one: zigzag, seven bits a byte."""
    left, written = number << 1, b""
    while left > 127:
        written += bytes([left & 127 | 128])
        left >>= 7
    return written + bytes([left])


def _decimal(kind: str = "bytes", precision: int = 38, scale: int = 2, **more: Any) -> Any:
    shape = {"precision": precision, "scale": scale, **more}
    return {"type": kind, "logicalType": "decimal", **shape}


MOST = 10**38 - 1


@pytest.mark.parametrize("number", [0, 1, -1, 127, 128, -128, -129, 255, 256, MOST, -MOST])
@pytest.mark.parametrize("padding", [0, 1, 40])
def test_a_decimal_is_read_exactly_however_many_bytes_it_takes(
    tmp_path: Path, number: int, padding: int
) -> None:
    path = _file(tmp_path, _decimal(), _decimal("fixed", name="money", size=60), "money")
    size = number.bit_length() // 8 + 1 + padding
    content = number.to_bytes(size, signed=True)
    fixed = number.to_bytes(60, signed=True)
    found = decoder(path)(_long(size) + content + fixed + fixed)
    assert found == dict.fromkeys(("f0", "f1", "f2"), Decimal(f"{number}e-2"))
    assert str(found["f0"]) == str(Decimal(f"{number}e-2"))


def test_a_decimal_without_bytes_is_zero(tmp_path: Path) -> None:
    assert decoder(_file(tmp_path, _decimal()))(b"\0") == {"f0": 0}


def test_a_long_decimal_is_refused_at_once(tmp_path: Path) -> None:
    """The library's own reader took four seconds for 200 kB, and sixteen times as long for 800."""
    decode = decoder(_file(tmp_path, _decimal()))
    record = _long(2_000_000) + b"\x01" * 2_000_000
    began = time.process_time()
    with pytest.raises(InputError, match="a decimal of 2000000 bytes has more than 38 digits"):
        decode(record)
    assert time.process_time() - began < 1


@pytest.mark.parametrize("precision", [39, 100])
def test_a_decimal_that_no_column_holds_is_refused(tmp_path: Path, precision: int) -> None:
    with pytest.raises(ConfigError, match=f"of precision {precision} has no column type: 1 to 38"):
        arrow_schema(_file(tmp_path, _decimal(precision=precision)))


def test_logical_types_without_a_column_type_are_what_they_are_made_of(tmp_path: Path) -> None:
    uuid = "6f1ed002-ab5c-4f7c-8a53-1f9b5c1c8b3d"
    made = [("string", "uuid"), ("int", "time-millis"), ("long", "time-micros"), ("bytes", "our")]
    path = _file(tmp_path, *({"type": kind, "logicalType": said} for kind, said in made))
    fields = arrow_schema(path)
    assert fields.types == [pa.string(), pa.int32(), pa.int64(), pa.binary()]
    record = _long(len(uuid)) + uuid.encode() + _long(5) + _long(7) + b"\x02x"
    raw = pa.RecordBatch.from_pydict({"value": pa.array([record], pa.binary())})
    rows, unfit = Decoder("avro", fields, (), path).decode(raw)
    assert not unfit
    assert rows.to_pylist() == [{"f0": uuid, "f1": 5, "f2": 7, "f3": b"x"}]


NOTHING = {"type": "fixed", "name": "nothing", "size": 0}
HOLLOW = {"type": "record", "name": "hollow", "fields": [{"name": "n", "type": NOTHING}]}


@pytest.mark.parametrize(
    "types",
    [
        [{"type": "array", "items": "null"}],
        [{"type": "array", "items": {"type": "null"}}],
        [{"type": "array", "items": NOTHING}],
        [NOTHING, {"type": "array", "items": "nothing"}],
        [{"type": "array", "items": {"type": "record", "name": "empty", "fields": []}}],
        [HOLLOW, ["null", {"type": "map", "values": {"type": "array", "items": "hollow"}}]],
    ],
)
def test_items_that_take_no_bytes_are_refused(tmp_path: Path, types: list[Any]) -> None:
    path = _file(tmp_path, *types)
    for load in (decoder, arrow_schema):
        with pytest.raises(ConfigError) as raised:
            load(path)
        assert "items that take no bytes, so 5 bytes could stand for millions" in str(raised.value)
        assert str(raised.value).startswith(f"{path} cannot be read safely: ")


@pytest.mark.parametrize(
    "type_", [["null", "r"], {"type": "array", "items": "r"}, {"type": "map", "values": "r"}]
)
def test_a_record_that_holds_itself_is_refused(tmp_path: Path, type_: Any) -> None:
    """A value of 10 kB would end the process: the library nests without looking how deep."""
    path = _file(tmp_path, type_)
    for load in (decoder, arrow_schema):
        with pytest.raises(ConfigError, match="the record r holds itself"):
            load(path)


def test_items_that_take_a_byte_at_least_are_read(tmp_path: Path) -> None:
    some = {"type": "record", "name": "some", "fields": [{"name": "n", "type": ["null", NOTHING]}]}
    path = _file(tmp_path, {"type": "array", "items": some}, {"type": "array", "items": "some"})
    rows: dict[str, Any] = {"f0": [{"n": None}, {"n": b""}], "f1": []}
    assert decoder(path)(encoder(path)(rows)) == rows


@pytest.mark.parametrize("depth", [100, 400, 3000, 100_000])
def test_a_schema_however_deep_is_read_or_refused(tmp_path: Path, depth: int) -> None:
    path = tmp_path / "r.avsc"
    deep = '{"type":"array","items":' * depth + '"int"' + "}" * depth
    path.write_text('{"type":"record","name":"r","fields":[{"name":"f","type":' + deep + "}]}")
    for load in (decoder, arrow_schema):
        try:
            load(str(path))
        except ConfigError:
            assert depth > 100
