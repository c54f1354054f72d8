"""Decoding a block of records at once: from raw values to columns, and which records are unfit.

One decoder for every pipeline, whether it runs on the driver or in a worker. Values that can be
taken a block at a time are (JSON of plain types, text, bytes); as soon as a block holds anything
doubtful, all of it is decoded again record by record, with the same rules and with reasons. What
the fast way accepts the careful way accepts with the same result, or a record's fate would hang on
its neighbours: a property test holds them to it.

The rules are strict, since a guess is a silent loss: a missing field is null, and unfit if it is
declared NOT NULL; a field that is not declared is ignored, but must be JSON; a value of another
type makes the record unfit. Numbers are never rounded to fit a decimal; times are ISO 8601, UTC
where they do not say, and within the years 1 to 9999 of UTC.
"""

import csv
import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from tallygate.core import avro
from tallygate.core.converters import Member, is_number, members_of
from tallygate.core.most_values import MOST_VALUES, check_csv, check_json
from tallygate.core.record import MISNAMED, MISNAMED_HEADER
from tallygate.errors import InputError
from tallygate.units import FIRST_RECORD_MS

COORDINATES = ("_topic", "_partition", "_offset")
METADATA = pa.schema(
    [
        ("_topic", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_timestamp", pa.timestamp("us", "UTC")),
        ("_key", pa.binary()),
    ]
)
_FAST = {pa.bool_(), pa.int64(), pa.int32(), pa.int16(), pa.int8(), pa.float64(), pa.string()}
_TIMESTAMP = pa.timestamp("us", "UTC")
_HEADERS = "headers"
_RAW_NAMES = {"_topic": "topic", "_partition": "partition", "_offset": "offset"}

# pyarrow takes these for numbers in JSON, as Python writes them. Patterns that begin with a literal
# are searched for six times as fast as the one that tells the value from a word in a text.
_WORDS = (r"NaN[\s,\]}]", r"Inf(inity)?[\s,\]}]")
_NO_NUMBER = r"[:,\[]\s*-?(NaN|Inf(inity)?)[\s,\]}]"
_WHOLE_NEGATIVE_ZERO = r"-0[\s,}]"
# pyarrow nests without limit, orjson 1,024 levels, Python's own reader some 900.
_DEEPEST = 500
_NEGATIVE_ZERO = -(1 << 63)  # its bits
_FIRST_TIME, _LAST_TIME = (
    pa.scalar(time.replace(tzinfo=UTC), _TIMESTAMP).value for time in (datetime.min, datetime.max)
)
# The largest record that Kafka can hold; a cell of one may be as long.
_LONGEST_CELL = (1 << 31) - 1
# By default Python makes no int of more digits; no field can hold so many.
_LONGEST_INT = 4300
# Bytes of records whose values are Python's at a time: they take hundreds of times as many.
_AT_ONCE = 256 << 10


@dataclass(frozen=True)
class Unfit:
    """A record that could not be decoded, by its place in the block, and why."""

    index: int
    cause: str


@dataclass(frozen=True)
class Decoder:
    """Turns blocks of raw Kafka records into blocks of `fields` and the chosen `metadata`."""

    format: str
    fields: pa.Schema
    metadata: tuple[str, ...] = COORDINATES
    avro_schema: str | None = None
    largest: int | None = None
    """Bytes that a record may have; what a larger one holds is not looked at."""

    def __post_init__(self) -> None:
        _ = self._members  # a type that cannot be decoded is refused before there are records

    def __getstate__(self) -> dict[str, Any]:
        """Without what was made of the fields: it is made again where the decoder arrives."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*self.fields, *(METADATA.field(name) for name in self.metadata)])

    def decode(self, raw: pa.RecordBatch) -> tuple[pa.RecordBatch, list[Unfit]]:
        """The fit records as columns, and the unfit ones with their causes."""
        refused = self._refused(raw)
        if not refused:
            return self._decode(raw)
        left = sorted(set(range(raw.num_rows)) - refused.keys())
        rows, unfit = self._decode(raw.take(pa.array(left, pa.int64())))
        found = [Unfit(left[each.index], each.cause) for each in unfit]
        found += [Unfit(index, cause) for index, cause in refused.items()]
        return rows, sorted(found, key=lambda each: each.index)

    def _refused(self, raw: pa.RecordBatch) -> dict[int, str]:
        """The records that are unfit whatever their values say, and why."""
        refused = dict.fromkeys(_misnamed(raw), MISNAMED_HEADER)
        most = self.largest
        if most is None or raw.nbytes <= most:
            return refused
        sizes = _sizes(raw)
        for index in pc.indices_nonzero(pc.greater(sizes, most)).to_pylist():
            refused[index] = (
                f"the record is of {sizes[index].as_py():,} bytes, more than the {most:,} that "
                "source.max_record lets it have"
            )
        return refused

    def _decode(self, raw: pa.RecordBatch) -> tuple[pa.RecordBatch, list[Unfit]]:
        values = raw.column("value")
        columns = self._fast(values)
        unfit: list[Unfit] = []
        if columns is None:
            columns, unfit = self._careful(values)
            raw = fit_records(raw, unfit)
        extra = [_metadata(raw, name) for name in self.metadata]
        return pa.RecordBatch.from_arrays([*columns, *extra], schema=self.schema), unfit

    def _fast(self, values: pa.Array) -> list[pa.Array] | None:
        if self.format == "bytes":
            return [values.cast(pa.binary())]
        try:
            if self.format == "text":
                return [values.cast(pa.string())]
            if self.format == "json":
                return self._json(values)
        except pa.ArrowInvalid:
            pass
        return None

    def _json(self, values: pa.Array) -> list[pa.Array] | None:
        """All records in one go, unless the careful way could say otherwise about one of them."""
        if not len(values) or values.null_count or not self._fast_fields:
            return None
        text = _lines(values.cast(pa.string()))  # which refuses what is not UTF-8
        if text is None or _may_be_no_json(text) or _may_be_deep(values) or _may_hold_many(values):
            return None
        table = self._read(text[0].as_buffer())
        if len(table) != len(values):
            return None
        columns = []
        for field in self.fields:
            read = table.column(field.name).combine_chunks()
            column = read.cast(field.type)
            if _doubtful(column, field, read, text):
                return None
            columns.append(column)
        return columns

    def _read(self, text: pa.Buffer) -> pa.Table:
        return pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
            parse_options=self._parse_options,
        )

    @cached_property
    def _fast_fields(self) -> bool:
        return all(type_ in _FAST or type_ == _TIMESTAMP for type_ in self.fields.types)

    @cached_property
    def _parse_options(self) -> pj.ParseOptions:
        read = [
            (name, pa.string() if type_ == _TIMESTAMP else type_)
            for name, type_ in zip(self.fields.names, self.fields.types, strict=True)
        ]
        return pj.ParseOptions(explicit_schema=pa.schema(read), unexpected_field_behavior="ignore")

    def _careful(self, values: pa.Array) -> tuple[list[pa.Array], list[Unfit]]:
        unfit: list[Unfit] = []
        parts = list(self._parts(values, unfit)) or [self._columns([])]
        if len(parts) == 1:
            return parts[0], unfit
        return [pa.concat_arrays(each) for each in zip(*parts, strict=True)], unfit

    def _parts(self, values: pa.Array, unfit: list[Unfit]) -> Iterator[list[pa.Array]]:
        """The columns of some records after the other. What a few bytes stand for as values of
        Python is in memory for those alone."""
        rows: list[tuple[Any, ...]] = []
        size = 0
        for index, value in enumerate(values.to_pylist()):
            try:
                rows.append(self._row(value))
            except (InputError, ValueError, ArithmeticError, RecursionError) as error:
                unfit.append(Unfit(index, str(error) or type(error).__name__))
                continue
            size += len(value or b"")
            if size > _AT_ONCE:
                yield self._columns(rows)
                rows, size = [], 0
        if rows:
            yield self._columns(rows)

    def _columns(self, rows: list[tuple[Any, ...]]) -> list[pa.Array]:
        return [
            pa.array([row[number] for row in rows], type_)
            for number, type_ in enumerate(self.fields.types)
        ]

    def _row(self, value: bytes | None) -> tuple[Any, ...]:
        """One record's fields, converted, or a ValueError that says what is wrong."""
        if self.format == "text":
            return (None if value is None else value.decode(),)
        if value is None:
            raise ValueError("the record has no value (a tombstone)")
        found = self._parse(value)
        return tuple(member.of(found) for member in self._members)

    @cached_property
    def _members(self) -> list[Member]:
        return members_of(self.fields)

    @cached_property
    def _parse(self) -> Callable[[bytes], dict[str, Any]]:
        if self.format == "avro":
            return avro.decoder(self.avro_schema or "")
        if self.format == "csv":
            # A setting of the whole process, the only one there is: it is raised, which no other
            # user of the module can mind, and never put back, which another thread might.
            csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_CELL))
            return self._csv
        exact = any(_holds_decimal(type_) for type_ in self.fields.types)
        return _exact_object if exact else _object

    def _csv(self, value: bytes) -> dict[str, Any]:
        check_csv(value)
        names, types = self.fields.names, self.fields.types
        try:
            (cells,) = csv.reader([value.decode().rstrip("\r\n")], strict=True)
        except csv.Error as error:  # which is no ValueError
            raise ValueError(f"is not a line of CSV: {error}") from None
        if len(cells) != len(names):
            raise ValueError(f"{len(cells)} cells for {len(names)} fields")
        return {
            name: _cell(cell, type_) for name, cell, type_ in zip(names, cells, types, strict=True)
        }


def fit_records(raw: pa.RecordBatch, unfit: Collection[Unfit]) -> pa.RecordBatch:
    """The records that are fit."""
    if not unfit:
        return raw
    bad = {each.index for each in unfit}
    return raw.take(pa.array([i for i in range(raw.num_rows) if i not in bad], pa.int64()))


def _misnamed(raw: pa.RecordBatch) -> list[int]:
    """The records with a header whose name is not UTF-8, in a block that has headers."""
    if _HEADERS not in raw.schema.names:
        return []
    headers = raw.column(_HEADERS)
    if headers.null_count == len(headers):
        return []
    wrong = pc.match_substring(pc.struct_field(pc.list_flatten(headers), "key"), MISNAMED)
    if not pc.any(wrong).as_py():
        return []
    return sorted(set(pc.list_parent_indices(headers).filter(wrong).to_pylist()))


def _sizes(raw: pa.RecordBatch) -> pa.Array:
    """The bytes of each record: its value, and of its key and headers what was read."""
    sizes = _lengths(raw.column("value"))
    if "key" in raw.schema.names:
        sizes = pc.add(sizes, _lengths(raw.column("key")))
    if _HEADERS not in raw.schema.names:
        return sizes
    parents = pc.list_parent_indices(raw.column(_HEADERS))
    flat = pc.list_flatten(raw.column(_HEADERS))
    lengths = pc.add(*(_lengths(pc.struct_field(flat, name)) for name in ("key", "value")))
    held = pa.table({"at": parents, "size": lengths}).group_by("at").aggregate([("size", "sum")])
    added = dict(zip(*(column.to_pylist() for column in held.columns), strict=True))
    return pc.add(sizes, pa.array([added.get(at, 0) for at in range(len(sizes))], pa.int64()))


def _lengths(column: pa.Array) -> pa.Array:
    return pc.fill_null(pc.binary_length(column), 0).cast(pa.int64())


def _metadata(raw: pa.RecordBatch, name: str) -> pa.Array:
    column = raw.column(_RAW_NAMES.get(name, name.removeprefix("_")))
    column = column.cast(METADATA.field(name).type)
    if column.type != _TIMESTAMP:
        return column
    # Kafka takes any number for a record's time; our own reader gives null for such a one as well.
    time = column.view(pa.int64())
    dated = pc.and_(pc.greater_equal(time, FIRST_RECORD_MS * 1000), pc.less_equal(time, _LAST_TIME))
    return pc.if_else(dated, column, None)


def _lines(values: pa.Array) -> pa.Array | None:
    """The records as one text, of which as many objects as records means one each.

    Every value begins with `{` and ends with `}`, so between two stands a `}`, a line feed and a
    `{`. A line feed is in no string of JSON, and after a `}` no `{` can follow but on the outermost
    level: no object spans two values, and each value holds at least one.
    """
    framed = pc.and_(pc.starts_with(values, "{"), pc.ends_with(values, "}"))
    if not pc.all(framed).as_py():
        return None
    whole = pa.array([0, len(values)], pa.int32())
    return pc.binary_join(pa.ListArray.from_arrays(whole, values), "\n")


def _may_be_no_json(text: pa.Array) -> bool:
    return any(_holds(text, word) for word in _WORDS) and _holds(text, _NO_NUMBER)


def _holds(text: pa.Array, pattern: str) -> bool:
    return bool(pc.match_substring_regex(text, pattern)[0].as_py())


def _may_be_deep(values: pa.Array) -> bool:
    """Whether a record has as many brackets as it takes; only a long one can."""
    long = values.filter(pc.greater(pc.binary_length(values), 2 * _DEEPEST))
    return any(each.count(b"{") + each.count(b"[") > _DEEPEST for each in long.to_pylist())


def _may_hold_many(values: pa.Array) -> bool:
    """Whether a record is long enough to hold more values than one may."""
    longest = pc.max(pc.binary_length(values)).as_py()
    return longest is not None and longest > MOST_VALUES


def _doubtful(column: pa.Array, field: pa.Field, read: pa.Array, text: pa.Array) -> bool:
    """Whether the column holds what the careful way refuses or reads as something else."""
    if column.null_count and not field.nullable:
        return True
    if field.type == _TIMESTAMP:
        return _beyond_time(column) or bool(pc.any(pc.starts_with(read, "0000")).as_py())
    if field.type == pa.float64():
        if not pc.all(pc.is_finite(column), min_count=0).as_py():
            return True
        # -0 is an integer, and so 0; -0.0 is not.
        signed = pc.min(column.view(pa.int64())).as_py() == _NEGATIVE_ZERO
        return signed and _holds(text, _WHOLE_NEGATIVE_ZERO)
    return False


def _beyond_time(column: pa.Array) -> bool:
    ends = pc.min_max(column.view(pa.int64())).as_py()
    return ends["min"] is not None and not _FIRST_TIME <= ends["min"] <= ends["max"] <= _LAST_TIME


def _object(value: bytes) -> dict[str, Any]:
    """What orjson reads, which judges what is JSON."""
    check_json(value)
    try:
        return _of_object(orjson.loads(value))
    except orjson.JSONDecodeError as error:
        if "infinity" not in str(error):
            raise
        # A number beyond a double is JSON, and only for the field that it is in to refuse.
        return _every_digit(value)


def _exact_object(value: bytes) -> dict[str, Any]:
    """With decimals as they were written, by a reader that lets through what is no text (a lone
    surrogate): so the other one judges first."""
    _object(value)
    return _every_digit(value)


def _every_digit(value: bytes) -> dict[str, Any]:
    return _of_object(
        json.loads(
            value.decode(), parse_float=Decimal, parse_int=_whole, parse_constant=_no_constant
        )
    )


def _of_object(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ValueError(f"is a JSON {type(found).__name__} and not an object")
    return found


def _whole(digits: str) -> int | Decimal:
    return int(digits) if len(digits) <= _LONGEST_INT else Decimal(digits)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _holds_decimal(type_: pa.DataType) -> bool:
    if pa.types.is_decimal(type_):
        return True
    return any(_holds_decimal(type_.field(i).type) for i in range(type_.num_fields))


def _cell(cell: str, type_: pa.DataType) -> Any:
    """A cell of CSV as the value that a JSON of it would hold; an empty one is null."""
    if cell == "":
        return None
    if pa.types.is_integer(type_):
        return int(cell) if _is_whole(cell) else cell
    if pa.types.is_floating(type_):
        return float(cell) if is_number(cell) else cell
    if pa.types.is_boolean(type_):
        return {"true": True, "false": False}.get(cell.lower(), cell)
    return cell


def _is_whole(cell: str) -> bool:
    return cell.removeprefix("-").isdecimal() and cell.isascii()
