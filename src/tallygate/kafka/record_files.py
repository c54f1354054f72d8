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
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, time
from decimal import Decimal
from enum import StrEnum
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeGuard

import orjson

from tallygate.errors import InputError
from tallygate.extras import extra_module
from tallygate.kafka.csv_cells import SAMPLE, Cells

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK = 1 << 20
_Row = tuple[Any, str | None]
"""A row, and what is wrong with it if anything is."""


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
GUESSED = Cells()


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
    cells: Cells = GUESSED,
) -> Iterator[Chunk]:
    """The records of a file (`-` is standard input) from `start`, at most `rows` a chunk; `cells`
    says what the cells of CSV become."""
    try:
        with _opened(name) as file:
            if kind is FileFormat.csv:
                yield from _csv(file, start, rows, cells)
            else:
                yield from _READERS[kind](file, start, rows, want_fields)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{name} cannot be read: {reason}.") from error


def notes_on_cells(name: str, cells: Cells) -> list[str]:
    """What a user may want to know of the types that the cells of a CSV file get."""
    try:
        with _opened(name) as file, _rows_of_text(file) as reader:
            sample = filter(_is_whole, islice(reader, SAMPLE))
            return cells.notes(reader.fieldnames or (), sample)
    except (OSError, UnicodeDecodeError, csv.Error):
        return []  # reading it as a whole says it better


def dump_json(value: Any) -> bytes:
    """JSON as bytes; decimals keep every digit as text, bytes become base64. A value that JSON has
    no form for (a duration, an integer beyond 64 bits, half a character) is a TypeError."""
    return orjson.dumps(value, default=plain, option=orjson.OPT_NON_STR_KEYS)


def plain(value: Any) -> Any:
    """What JSON holds in the place of a value that it has no type for."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        import base64

        return base64.b64encode(value).decode()
    if isinstance(value, date | time):
        return value.isoformat()  # orjson asks for those of pandas, which have nanoseconds
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


def _csv(file: BinaryIO, start: Position, rows: int, cells: Cells) -> Iterator[Chunk]:
    """Rows as JSON objects, by the names in the first row. What the types are guessed from is
    always the beginning of the file, so that a load that goes on elsewhere finds the same."""
    with _rows_of_text(file) as reader:
        sample = list(islice(reader, 0 if cells.as_text else SAMPLE))
        columns = reader.fieldnames or ()
        convert = cells.converter(columns, filter(_is_whole, sample))

        def good_or_bad() -> Iterator[_Row]:
            for row in chain(sample, reader):
                if _is_whole(row):
                    yield convert(row)
                else:
                    yield row, f"does not have {len(columns)} columns"

        yield from _numbered(good_or_bad(), start, rows)


def _is_whole(row: Mapping[Any, Any]) -> TypeGuard[Mapping[str, str]]:
    """Whether a row has as many cells as the first one."""
    return None not in row and None not in row.values()


@contextmanager
def _rows_of_text(file: BinaryIO) -> "Iterator[csv.DictReader[str]]":
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    try:
        yield csv.DictReader(text, strict=True)
    finally:
        text.detach()


def _parquet(file: BinaryIO, start: Position, rows: int, want_fields: bool) -> Iterator[Chunk]:
    import pyarrow.parquet as pq

    def read() -> Iterator[_Row]:
        for batch in pq.ParquetFile(file).iter_batches(batch_size=rows):
            yield from _rows_of(batch)

    yield from _numbered(_whole(read(), f"{file.name} is not a whole Parquet file"), start, rows)


def _avro(file: BinaryIO, start: Position, rows: int, want_fields: bool) -> Iterator[Chunk]:
    fastavro = extra_module("fastavro", "Avro")

    def read() -> Iterator[_Row]:
        for row in fastavro.reader(file):
            yield row, None

    yield from _numbered(_whole(read(), f"{file.name} is not a whole Avro file"), start, rows)


def _whole(rows: Iterator[_Row], problem: str) -> Iterator[_Row]:
    """The rows of a library, which raises all kinds of errors for a file that is damaged."""
    try:
        yield from rows
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's, and not Arrow's
        raise InputError(f"{problem}: {str(error) or type(error).__name__}.") from error


def _rows_of(batch: "pa.RecordBatch") -> Iterator[_Row]:
    """Of a time beyond the year 9999, for one, Python has no value, and its row is bad."""
    try:
        fit = batch.to_pylist()
    except (ValueError, ArithmeticError):
        yield from _careful_rows(batch)
    else:
        yield from ((row, None) for row in fit)


def _careful_rows(batch: "pa.RecordBatch") -> Iterator[_Row]:
    for index in range(batch.num_rows):
        try:
            yield batch.slice(index, 1).to_pylist()[0], None
        except (ValueError, ArithmeticError) as error:
            scalars = zip(batch.schema.names, (each[index] for each in batch.columns), strict=True)
            yield {name: _number_or_value(each) for name, each in scalars}, str(error)


def _number_or_value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, ArithmeticError):
        return getattr(scalar, "value", None)


def _numbered(source: Iterator[_Row], start: Position, rows: int) -> Iterator[Chunk]:
    """Chunks of parsed rows, from the position's record on, with their values as JSON."""
    number = start.records
    remaining = islice(source, number, None)
    while part := list(islice(remaining, rows)):
        numbers, values, fields, bad = [], [], [], []
        for row, reason in part:
            number += 1
            try:
                value = dump_json(row if reason is None else {str(k): v for k, v in row.items()})
            except TypeError as error:
                value, reason = str(row).encode(errors="backslashreplace"), reason or str(error)
            if reason is None:
                numbers.append(number)
                values.append(value)
                fields.append(row)
            else:
                bad.append(BadRow(number, reason, value))
        yield Chunk(numbers, values, fields, Position(number), bad)


_READERS: Mapping[FileFormat, Callable[[BinaryIO, Position, int, bool], Iterator[Chunk]]] = {
    FileFormat.lines: _lines,
    FileFormat.json: _json_lines,
    FileFormat.parquet: _parquet,
    FileFormat.avro: _avro,
}
