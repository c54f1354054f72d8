"""Reading files record by record, in chunks, from any position, in flat memory.

A chunk carries the position after its last record, so that a reader can stop between two chunks
and another can go on from there. Text formats go on by byte; CSV, Parquet and Avro, whose records
have no address, by the number of records to skip.

A record that cannot be read is not passed over: the chunk lists it with its number and the reason,
and the caller decides.
"""

import csv
import io
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from tallygate.errors import InputError
from tallygate.extras import extra_module

__all__ = ["BadRow", "Chunk", "FileFormat", "Position", "dump_json", "guess_format", "read_chunks"]

BLOCK = 1 << 20


class FileFormat(StrEnum):
    lines = "lines"
    json = "json"
    csv = "csv"
    parquet = "parquet"
    avro = "avro"


@dataclass(frozen=True, slots=True)
class Position:
    """How far a file was read: whole records, and in text formats the byte after the last."""

    records: int = 0
    byte: int = 0


START = Position()


@dataclass(frozen=True, slots=True)
class BadRow:
    number: int
    reason: str
    raw: bytes


@dataclass(slots=True)
class Chunk:
    """Records that follow each other; `numbers` counts from 1, as people count lines."""

    numbers: list[int] | range
    values: list[bytes]
    fields: list[Any] | None
    end: Position
    bad: list[BadRow] = field(default_factory=list)


def guess_format(name: str) -> FileFormat:
    endings = {
        ".json": FileFormat.json,
        ".jsonl": FileFormat.json,
        ".ndjson": FileFormat.json,
        ".csv": FileFormat.csv,
        ".parquet": FileFormat.parquet,
        ".avro": FileFormat.avro,
    }
    return endings.get(Path(name).suffix.lower(), FileFormat.lines)


def read_chunks(
    name: str,
    kind: FileFormat,
    *,
    start: Position = START,
    rows: int = 10_000,
    want_fields: bool = False,
) -> Iterator[Chunk]:
    """The records of a file (`-` is standard input) from `start`, at most `rows` a chunk."""
    try:
        with _opened(name) as file:
            yield from _READERS[kind](file, start, rows, want_fields)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{name} cannot be read: {reason}.") from error


def dump_json(value: Any) -> bytes:
    """JSON as bytes; decimals keep every digit as text, bytes become base64."""
    return orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS)


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        import base64

        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _opened(name: str) -> BinaryIO:
    return sys.stdin.buffer if name == "-" else Path(name).open("rb")


def _blocks_of_lines(
    file: BinaryIO, start: Position, rows: int
) -> Iterator[tuple[list[bytes], Position]]:
    """Lines without their ends, a block of the file at a time, and the position after them."""
    if start.byte:
        file.seek(start.byte)
    number, byte, rest = start.records, start.byte, b""
    while block := file.read(BLOCK):
        whole, newline, rest = (rest + block).rpartition(b"\n")
        if not newline:
            continue
        lines = whole.split(b"\n")
        for begin in range(0, len(lines), rows):
            part = lines[begin : begin + rows]
            number += len(part)
            byte += sum(map(len, part)) + len(part)
            yield part, Position(number, byte)
    if rest:
        yield [rest], Position(number + 1, byte + len(rest))


def _lines(file: BinaryIO, start: Position, rows: int, want_fields: bool) -> Iterator[Chunk]:
    for lines, end in _blocks_of_lines(file, start, rows):
        values = [line[:-1] if line.endswith(b"\r") else line for line in lines]
        fields = [{"line": value.decode(errors="replace")} for value in values]
        numbers = range(end.records - len(lines) + 1, end.records + 1)
        yield Chunk(numbers, values, fields if want_fields else None, end)


def _json_lines(file: BinaryIO, start: Position, rows: int, want_fields: bool) -> Iterator[Chunk]:
    """Each line is parsed, also where no field of it is needed: half a record must not get in."""
    parse: Callable[[bytes], Any] = orjson.loads
    for lines, end in _blocks_of_lines(file, start, rows):
        first = end.records - len(lines) + 1
        try:
            if want_fields:
                fields = [parse(line) for line in lines]
            else:
                fields = None
                for line in lines:
                    parse(line)
            yield Chunk(range(first, end.records + 1), lines, fields, end)
        except orjson.JSONDecodeError:
            yield _careful_json(lines, first, end, want_fields)


def _careful_json(lines: list[bytes], first: int, end: Position, want_fields: bool) -> Chunk:
    """One line at a time, to tell the bad from the good; blank lines are no records."""
    numbers, values, fields, bad = [], [], [], []
    for number, line in enumerate(lines, start=first):
        if not line.strip():
            continue
        try:
            parsed = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            bad.append(BadRow(number, f"not JSON: {error}", line))
            continue
        numbers.append(number)
        values.append(line)
        fields.append(parsed)
    return Chunk(numbers, values, fields if want_fields else None, end, bad)


def _csv(file: BinaryIO, start: Position, rows: int, want_fields: bool) -> Iterator[Chunk]:
    """Rows as JSON objects of text, by the names in the first row."""
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    reader = csv.DictReader(text, strict=True)

    def good_or_bad() -> Iterator[tuple[Any, str | None]]:
        for row in reader:
            if None in row or None in row.values():
                yield row, f"does not have {len(reader.fieldnames or ())} columns"
            else:
                yield row, None

    try:
        yield from _numbered(good_or_bad(), start, rows)
    finally:
        text.detach()


def _parquet(file: BinaryIO, start: Position, rows: int, want_fields: bool) -> Iterator[Chunk]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        source = pq.ParquetFile(file)
    except pa.ArrowInvalid as error:
        raise InputError(f"{file.name} is not a Parquet file: {error}.") from error
    table_rows = (
        row for batch in source.iter_batches(batch_size=rows) for row in batch.to_pylist()
    )
    yield from _numbered(((row, None) for row in table_rows), start, rows)


def _avro(file: BinaryIO, start: Position, rows: int, want_fields: bool) -> Iterator[Chunk]:
    fastavro = extra_module("fastavro", "Avro")
    try:
        source = fastavro.reader(file)
        yield from _numbered(((row, None) for row in source), start, rows)
    except (ValueError, EOFError, IndexError) as error:
        raise InputError(f"{file.name} is not a complete Avro file: {error}.") from error


def _numbered(
    source: Iterator[tuple[Any, str | None]], start: Position, rows: int
) -> Iterator[Chunk]:
    """Chunks of parsed rows, from the position's record on, with their values as JSON."""
    number = start.records
    remaining = islice(source, number, None)
    while part := list(islice(remaining, rows)):
        numbers, fields, bad = [], [], []
        for row, reason in part:
            number += 1
            if reason is None:
                numbers.append(number)
                fields.append(row)
            else:
                bad.append(BadRow(number, reason, dump_json({str(k): v for k, v in row.items()})))
        yield Chunk(numbers, [dump_json(row) for row in fields], fields, Position(number), bad)


_READERS: Mapping[FileFormat, Callable[[BinaryIO, Position, int, bool], Iterator[Chunk]]] = {
    FileFormat.lines: _lines,
    FileFormat.json: _json_lines,
    FileFormat.csv: _csv,
    FileFormat.parquet: _parquet,
    FileFormat.avro: _avro,
}
