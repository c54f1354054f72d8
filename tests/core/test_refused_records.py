"""Records that are unfit whatever their values say: by their headers, or by their size."""

from typing import Any

import pyarrow as pa
import pytest

from fixtures.blocks import raw_block
from tallygate.core.decoding import Decoder
from tallygate.units import FIRST_RECORD_MS, LAST_MS

PLAIN = pa.schema([("id", pa.int64()), ("name", pa.string())])


def _headed(*headers: list[dict[str, Any]] | None) -> pa.RecordBatch:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    raw = raw_block(*(b'{"id":%d}' % number for number in range(len(headers))))
    return raw.append_column("headers", pa.array(headers, kind))


GOOD_HEADERS: list[dict[str, Any]] = [
    {"key": "trace", "value": b"\xff"},
    {"key": "", "value": None},
]
MISNAMED_HEADERS: list[dict[str, Any]] = [
    *GOOD_HEADERS,
    {"key": "tr\N{REPLACEMENT CHARACTER}ce", "value": b"1"},
]


@pytest.mark.parametrize("format", ["json", "text", "bytes"])
def test_a_record_is_unfit_if_a_header_name_is_not_utf_8(format: str) -> None:
    """Both readers say so by U+FFFD: ours in the place of the headers, Java's in the name."""
    fields = PLAIN if format == "json" else pa.schema([("value", pa.binary())])
    decoder = Decoder(format, fields if format != "text" else pa.schema([("value", pa.string())]))
    block = _headed(GOOD_HEADERS, MISNAMED_HEADERS, None, [], MISNAMED_HEADERS, GOOD_HEADERS)
    for raw in (block, block.slice(1)):
        rows, unfit = decoder.decode(raw)
        bad = [i for i, at in enumerate(raw.column("offset").to_pylist()) if at in (1, 4)]
        assert [(each.index, each.cause) for each in unfit] == [
            (index, "a header's name is not UTF-8") for index in bad
        ]
        assert rows.num_rows == raw.num_rows - 2
    assert decoder.decode(_headed(None, GOOD_HEADERS))[1] == []
    assert decoder.decode(_headed(None, None))[1] == []


def test_records_that_are_unfit_by_their_headers_do_not_hide_others() -> None:
    raw = _headed(MISNAMED_HEADERS, None, MISNAMED_HEADERS, None)
    values = pa.array([b'{"id":1}', b"bad", b"bad", b'{"id":4}'])
    raw = raw.set_column(raw.schema.get_field_index("value"), "value", values)
    rows, unfit = Decoder("json", PLAIN).decode(raw)
    assert [each.index for each in unfit] == [0, 1, 2]
    assert rows.column("id").to_pylist() == [4]


@pytest.mark.parametrize("format", ["json", "text", "bytes"])
def test_a_record_that_is_too_large_is_not_looked_at(format: str) -> None:
    fields = PLAIN if format == "json" else pa.schema([("value", pa.binary())])
    fields = pa.schema([("value", pa.string())]) if format == "text" else fields
    fit, large = b'{"id": 1}', b'{"id": 2, "name": "' + b"n" * 200 + b'"}'
    rows, unfit = Decoder(format, fields, largest=100).decode(
        raw_block(fit, large, fit, b"x" * 101)
    )
    assert rows.num_rows == 2
    assert rows.column("_offset").to_pylist() == [0, 2]
    assert [each.index for each in unfit] == [1, 3]
    assert "of 102 bytes, more than the 100 that source.max_record" in unfit[1].cause
    rows, unfit = Decoder(format, fields).decode(raw_block(fit, large, fit))
    assert (rows.num_rows, unfit) == (3, [])


def test_key_value_and_headers_count_together() -> None:
    """A key of 50 MB would go by a limit for the value alone."""
    sizes = [(1, 1, 0), (90, 5, 0), (5, 90, 0), (1, 1, 92), (50, 20, 28), (50, 20, 29)]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    given = [[{"key": "n", "value": b"h" * size}] for *_, size in sizes]
    raw = raw_block(*(b"v" * size for _, size, _ in sizes))
    raw = raw.set_column(0, "key", pa.array([b"k" * size for size, *_ in sizes], pa.binary()))
    decoder = Decoder("bytes", pa.schema([("value", pa.binary())]), largest=99)
    headed = raw.append_column("headers", pa.array(given, kind))
    for block, large in ((headed, [5]), (headed.slice(1), [4]), (raw, [])):
        assert [each.index for each in decoder.decode(block)[1]] == large
    small = Decoder("bytes", pa.schema([("value", pa.binary())]), largest=94)
    assert [each.index for each in small.decode(raw)[1]] == [1, 2]
    none = pa.array([None, None, *given[2:]], kind)
    found = small.decode(raw.append_column("headers", none))[1]
    assert [each.index for each in found] == [1, 2, 3, 4, 5]


def test_a_time_beyond_all_dates_is_null_whoever_has_read_it() -> None:
    times = [
        FIRST_RECORD_MS * 1000,
        FIRST_RECORD_MS * 1000 - 1,
        0,
        LAST_MS * 1000,
        (LAST_MS + 1) * 1000,
        None,
    ]
    raw = raw_block(*[b"x"] * len(times))
    raw = raw.set_column(5, "timestamp", pa.array(times, pa.timestamp("us", "UTC")))
    rows, unfit = Decoder("bytes", pa.schema([("value", pa.binary())]), ("_timestamp",)).decode(raw)
    found = rows.column("_timestamp").cast(pa.int64()).to_pylist()
    assert (found, unfit) == ([FIRST_RECORD_MS * 1000, None, 0, LAST_MS * 1000, None, None], [])
