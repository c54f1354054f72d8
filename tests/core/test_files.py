import json
from decimal import Decimal
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallygate.errors import InputError
from tallygate.kafka.record_files import (
    FileFormat,
    Position,
    _numbered,
    dump_json,
    guess_format,
    read_chunks,
)

ROWS = [{"id": number, "name": f"n{number}"} for number in range(25)]


def _write(folder: Path, kind: FileFormat) -> str:
    path = folder / f"data.{kind.value}"
    if kind is FileFormat.lines:
        path.write_text("".join(f"{row['name']}\n" for row in ROWS))
    elif kind is FileFormat.json:
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    elif kind is FileFormat.csv:
        path.write_text("id,name\n" + "".join(f"{row['id']},{row['name']}\n" for row in ROWS))
    elif kind is FileFormat.parquet:
        pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=7)
    else:
        fields = [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]
        with path.open("wb") as file:
            fastavro.writer(file, {"type": "record", "name": "r", "fields": fields}, ROWS)
    return str(path)


@pytest.mark.parametrize("kind", list(FileFormat))
@pytest.mark.parametrize("rows", [1, 4, 100])
def test_every_format_can_be_left_and_gone_on_with_anywhere(
    tmp_path: Path, kind: FileFormat, rows: int
) -> None:
    name = _write(tmp_path, kind)
    whole = [value for chunk in read_chunks(name, kind) for value in chunk.values]
    assert len(whole) == len(ROWS)
    so_far: list[bytes] = []
    for chunk in read_chunks(name, kind, rows=rows):
        assert len(chunk.values) <= rows
        so_far += chunk.values
        assert chunk.end.records == len(so_far)
        rest = [v for c in read_chunks(name, kind, start=chunk.end) for v in c.values]
        assert so_far + rest == whole


@pytest.mark.parametrize("kind", [FileFormat.csv, FileFormat.parquet, FileFormat.avro])
def test_structured_rows_become_json(tmp_path: Path, kind: FileFormat) -> None:
    (chunk,) = read_chunks(_write(tmp_path, kind), kind)
    assert json.loads(chunk.values[3]) == ROWS[3]


@given(st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"\n", b"").replace(b"\r", b""))))
def test_lines_are_what_was_written(lines: list[bytes]) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        file.write(b"".join(line + b"\n" for line in lines))
        file.flush()
        found = [v for c in read_chunks(file.name, FileFormat.lines, rows=3) for v in c.values]
    assert found == lines


def test_long_lines_and_a_last_line_without_an_end(tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_bytes(b"x" * 3_000_000 + b"\r\n" + b"end")
    chunks = list(read_chunks(str(path), FileFormat.lines))
    assert [len(v) for c in chunks for v in c.values] == [3_000_000, 3]
    assert chunks[-1].end == Position(2, path.stat().st_size)


def test_bad_json_is_listed_with_its_line_number(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text('{"a": 1}\n\n{"a": \n{"a": 2}\n')
    (chunk,) = read_chunks(str(path), FileFormat.json, want_fields=True)
    assert chunk.fields == [{"a": 1}, {"a": 2}]
    assert list(chunk.numbers) == [1, 4]
    assert [(bad.number, bad.raw) for bad in chunk.bad] == [(3, b'{"a": ')]
    assert chunk.end.records == 4


def test_a_csv_row_of_another_length_is_bad(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text('a,b\n1,2\n3\n"4\n5",6\n')
    (chunk,) = read_chunks(str(path), FileFormat.csv)
    assert chunk.fields == [{"a": "1", "b": 2}, {"a": "4\n5", "b": 6}]
    assert [(bad.number, bad.reason) for bad in chunk.bad] == [(2, "does not have 2 columns")]


@pytest.mark.parametrize(
    ("kind", "said"),
    [(FileFormat.parquet, "not a whole Parquet file"), (FileFormat.avro, "not a whole Avro file")],
)
def test_a_file_of_another_format_is_refused(tmp_path: Path, kind: FileFormat, said: str) -> None:
    path = tmp_path / "data"
    path.write_text("plain text, and enough of it to look like something")
    with pytest.raises(InputError, match=said):
        list(read_chunks(str(path), kind))


@pytest.mark.parametrize("kind", [FileFormat.parquet, FileFormat.avro])
def test_a_damaged_file_is_read_or_refused(tmp_path: Path, kind: FileFormat) -> None:
    """Each byte of it in turn; the libraries raise what the damage happens to provoke."""
    path = tmp_path / "data"
    whole = Path(_write(tmp_path, kind)).read_bytes()
    refused = 0
    for at in range(0, len(whole), 3):
        for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 0x5A]) + whole[at + 1 :]):
            path.write_bytes(damaged)
            try:
                list(read_chunks(str(path), kind))
            except InputError as error:
                assert f"{path} is not a whole {kind.value.title()} file: " in str(error)
                refused += 1
    assert refused > len(whole) / 6


@pytest.mark.parametrize(
    ("old", "new"), [(b"deflate", b"deplate"), (b'"long"', b'"lonx"'), (b'"record"', b'"recorx"')]
)
def test_an_avro_file_that_is_not_what_it_says_is_refused(
    tmp_path: Path, old: bytes, new: bytes
) -> None:
    path = tmp_path / "data.avro"
    schema = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}
    with path.open("wb") as file:
        fastavro.writer(file, schema, [{"id": 1}], codec="deflate")
    assert len(list(read_chunks(str(path), FileFormat.avro))) == 1
    content = path.read_bytes()
    assert old in content
    for damaged in (content.replace(old, new), content[:-20] + bytes(20)):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="is not a whole Avro file: "):
            list(read_chunks(str(path), FileFormat.avro))


def _parquet(folder: Path, **columns: pa.Array) -> str:
    path = folder / "data.parquet"
    pq.write_table(pa.table(columns), path)
    return str(path)


FAR = 1 << 62


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pa.array([1, FAR, 3], pa.timestamp("us")), "out of range"),
        (pa.array([1, FAR, 3], pa.timestamp("us", "UTC")), "out of range"),
        (pa.array([1, 1 << 30, 3], pa.date32()), ""),
    ],
)
def test_a_row_whose_time_no_date_can_be_is_bad(
    tmp_path: Path, column: pa.Array, said: str
) -> None:
    name = _parquet(tmp_path, id=pa.array([0, 1, 2]), at=column)
    (chunk,) = read_chunks(name, FileFormat.parquet)
    assert [json.loads(value)["id"] for value in chunk.values] == [0, 2]
    assert list(chunk.numbers) == [1, 3]
    (bad,) = chunk.bad
    assert bad.number == 2
    assert said in bad.reason
    assert json.loads(bad.raw) == {"id": 1, "at": column[1].value}


def test_a_row_without_a_form_in_json_is_bad(tmp_path: Path) -> None:
    name = _parquet(tmp_path, id=pa.array([0, 1]), took=pa.array([None, 1], pa.duration("us")))
    (chunk,) = read_chunks(name, FileFormat.parquet)
    assert chunk.values == [b'{"id":0,"took":null}']
    assert chunk.fields == [{"id": 0, "took": None}]
    assert [(bad.number, bad.reason) for bad in chunk.bad] == [
        (2, "Type is not JSON serializable: datetime.timedelta")
    ]
    assert b"microseconds=1" in chunk.bad[0].raw


def test_times_in_nanoseconds_keep_them(tmp_path: Path) -> None:
    """As pandas writes them."""
    times = pa.array([1, 1_767_225_600_000_000_001], pa.timestamp("ns", "UTC"))
    (chunk,) = read_chunks(_parquet(tmp_path, at=times), FileFormat.parquet)
    assert [json.loads(value)["at"] for value in chunk.values] == [
        "1970-01-01T00:00:00.000000001+00:00",
        "2026-01-01T00:00:00.000000001+00:00",
    ]


@pytest.mark.parametrize("value", ["\ud800", 1 << 70, {b"k": 1}, [1, {"a": "\udfff"}]])
def test_what_json_cannot_hold_is_a_bad_row(value: object) -> None:
    rows: list[tuple[object, str | None]] = [({"a": 1}, None), ({"a": value}, None), ({}, "odd")]
    (chunk,) = _numbered(iter(rows), Position(0), 10)
    assert chunk.values == [b'{"a":1}']
    assert [(each.number, each.reason == "odd") for each in chunk.bad] == [(2, False), (3, True)]
    assert chunk.bad[0].raw == str({"a": value}).encode(errors="backslashreplace")


def test_a_missing_file_is_an_error() -> None:
    with pytest.raises(InputError, match="nowhere cannot be read: No such file"):
        list(read_chunks("nowhere", FileFormat.lines))


def test_formats_are_guessed_by_the_ending() -> None:
    assert guess_format("a/b.JSONL") is FileFormat.json
    assert guess_format("-") is FileFormat.lines


def test_json_keeps_decimals_and_bytes() -> None:
    assert dump_json({"d": Decimal("1.10"), "b": b"\x00\xff"}) == b'{"d":"1.10","b":"AP8="}'
