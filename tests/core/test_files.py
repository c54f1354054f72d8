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
    expected = {"id": "3", "name": "n3"} if kind is FileFormat.csv else ROWS[3]
    assert json.loads(chunk.values[3]) == expected


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
    assert chunk.fields == [{"a": "1", "b": "2"}, {"a": "4\n5", "b": "6"}]
    assert [(bad.number, bad.reason) for bad in chunk.bad] == [(2, "does not have 2 columns")]


@pytest.mark.parametrize(
    ("kind", "said"),
    [(FileFormat.parquet, "not a Parquet file"), (FileFormat.avro, "not a complete Avro file")],
)
def test_a_file_of_another_format_is_refused(tmp_path: Path, kind: FileFormat, said: str) -> None:
    path = tmp_path / "data"
    path.write_text("plain text, and enough of it to look like something")
    with pytest.raises(InputError, match=said):
        list(read_chunks(str(path), kind))


def test_a_missing_file_is_an_error() -> None:
    with pytest.raises(InputError, match="nowhere cannot be read: No such file"):
        list(read_chunks("nowhere", FileFormat.lines))


def test_formats_are_guessed_by_the_ending() -> None:
    assert guess_format("a/b.JSONL") is FileFormat.json
    assert guess_format("-") is FileFormat.lines


def test_json_keeps_decimals_and_bytes() -> None:
    assert dump_json({"d": Decimal("1.10"), "b": b"\x00\xff"}) == b'{"d":"1.10","b":"AP8="}'
