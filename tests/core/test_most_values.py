"""A few bytes can stand for hundreds as many in memory: what a record holds is counted first."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.blocks import raw_block
from tallygate.core import most_values
from tallygate.core.avro import arrow_schema, encoder
from tallygate.core.decoding import Decoder
from tallygate.core.most_values import MOST_VALUES, check_csv, check_json
from tallygate.errors import InputError

LISTED = {
    "type": "array",
    "items": {
        "type": "record",
        "name": "item",
        "fields": [{"name": "x", "type": {"type": "array", "items": "int"}}],
    },
}
ITEMS = pa.schema([("f", pa.list_(pa.struct([("x", pa.list_(pa.int32()))])))])
MANY = 4_000_000
SAID = f"the record holds more than {MOST_VALUES:,} values"


def _avro(folder: Path, type_: Any) -> Decoder:
    path = folder / "r.avsc"
    fields = [{"name": "f", "type": type_}]
    path.write_text(json.dumps({"type": "record", "name": "r", "fields": fields}))
    return Decoder("avro", arrow_schema(str(path)), (), str(path))


def _long(number: int) -> bytes:
    left, written = number << 1, b""
    while left > 127:
        written += bytes([left & 127 | 128])
        left >>= 7
    return written + bytes([left])


def _peak(decoder: Decoder, *values: bytes) -> tuple[int, list[str]]:
    """The most bytes that decoding took, and the causes of what is unfit."""
    raw = raw_block(*values)
    tracemalloc.start()
    _, unfit = decoder.decode(raw)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak, [each.cause for each in unfit]


@pytest.mark.parametrize(
    "value",
    [_long(MANY) + b"\0" * MANY, (_long(1000) + b"\0" * 1000) * (MANY // 1000) + b"\0"],
    ids=["one block", "many blocks"],
)
def test_zeros_of_avro_do_not_fill_the_memory(tmp_path: Path, value: bytes) -> None:
    peak, causes = _peak(_avro(tmp_path, LISTED), value)
    assert causes == [f"is not of the Avro schema: {SAID}"]
    assert peak < 300 << 20


@pytest.mark.parametrize("item", [b"{}", b"[]", b"null", b"1"])
def test_items_of_json_do_not_fill_the_memory(item: bytes) -> None:
    peak, causes = _peak(
        Decoder("json", ITEMS, ()), b'{"f":[' + (item + b",") * MANY + item + b"]}"
    )
    assert causes == [SAID]
    assert peak < 100 << 20, "they were counted before they were made"


def test_what_no_field_asks_for_counts_too() -> None:
    value = b'{"g":[' + b"{}," * MANY + b"{}]}"
    for type_ in (pa.decimal128(9, 2), pa.int64()):
        decoder = Decoder("json", pa.schema([("f", type_)]), ())
        assert _peak(decoder, value)[1] == [SAID]


def test_null_takes_the_place_of_all_its_columns() -> None:
    wide = pa.struct([(f"x{number}", pa.int64()) for number in range(1000)])
    for type_, value in {
        pa.list_(wide): b"[" + b"null," * 2000 + b"null]",
        pa.map_(pa.string(), wide): json.dumps(dict.fromkeys(map(str, range(2000)))).encode(),
    }.items():
        decoder = Decoder("json", pa.schema([("f", type_)]), ())
        _, unfit = decoder.decode(raw_block(b'{"f":' + value + b"}", b'{"f":null}'))
        assert [(each.index, each.cause) for each in unfit] == [(0, SAID)]


def test_cells_of_csv_do_not_fill_the_memory() -> None:
    peak, causes = _peak(Decoder("csv", pa.schema([("f", pa.string())]), ()), b"ab," * MANY)
    assert causes == [SAID]
    assert peak < 100 << 20


def test_records_are_values_of_python_some_at_a_time() -> None:
    """Each holds no more than it may, and a block of them would take gigabytes."""
    decoder = Decoder("json", ITEMS, ())
    texts = [b'{"f":[{"x":[%d]}]}' % number + b" " * 10_000 for number in range(60)]
    values = raw_block(*texts, b"?").column("value")
    assert [len(columns[0]) for columns in decoder._parts(values, [])] == [27, 27, 6]
    columns, unfit = decoder._careful(values)
    assert columns[0].to_pylist() == [[{"x": [number]}] for number in range(60)]
    assert [each.index for each in unfit] == [60]


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_a_long_text_may_hold_as_many_commas_as_it_likes(kind: str) -> None:
    text = ',{["' * MOST_VALUES
    if kind == "json":
        value = json.dumps({"f": text, "g\\": [1, 2]}).encode()
    else:
        value = b'"' + text.replace('"', '""').encode() + b'"'
    decoder = Decoder(kind, pa.schema([("f", pa.string())]), ())
    rows, unfit = decoder._careful(raw_block(value).column("value"))
    assert (rows[0][0].as_py(), unfit) == (text, [])


@given(st.recursive(st.none() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_no_more_values_are_made_than_were_counted(given_: Any) -> None:
    def count(found: Any) -> int:
        inside = found.values() if isinstance(found, dict) else found
        return 1 + sum(map(count, inside)) if isinstance(found, list | dict) else 1

    text = json.dumps(given_).encode()
    marks = most_values._JSON_MARKS
    counted = sum(map(most_values._JSON_STRING.sub(b"", text).count, marks))
    assert count(given_) <= 2 * counted + 1


@pytest.mark.parametrize("most", [0, 1])
def test_as_many_as_may_be_are_taken(most: int) -> None:
    fit = b"[" + b"1," * (MOST_VALUES - 1 + most)
    if most:
        with pytest.raises(InputError, match=SAID):
            check_json(fit)
    else:
        check_json(fit)
    check_csv(b"1," * MOST_VALUES)


def test_a_record_that_is_large_and_fit_is_read(tmp_path: Path) -> None:
    decoder = _avro(tmp_path, {"type": "array", "items": "double"})
    row = {"f": [float(number) for number in range(500_000)]}
    value = encoder(str(tmp_path / "r.avsc"))(row)
    rows, unfit = decoder.decode(raw_block(value))
    assert (rows.column("f")[0].as_py() == row["f"], unfit) == (True, [])
