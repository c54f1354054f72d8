"""Decoding a block of records at once: from raw values to columns, and which records are unfit.

One decoder for every pipeline, whether it runs on the driver or in a worker. Values that can be
taken a block at a time are (JSON of plain types, text, bytes); as soon as a block holds anything
doubtful, all of it is decoded again record by record, with the same rules and with reasons. What
the fast way accepts the careful way accepts with the same result: a property test holds them to it.

The rules are strict, since a guess is a silent loss: a missing field is null, a field that is not
declared is ignored, a value of another type makes the record unfit. Numbers are never rounded to
fit a decimal; times are ISO 8601, and UTC where they do not say.
"""

import base64
import csv
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from tallygate.errors import InputError
from tallygate.records import avro

__all__ = ["COORDINATES", "METADATA", "Decoder", "Unfit", "fit_records"]

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
_RAW_NAMES = {"_topic": "topic", "_partition": "partition", "_offset": "offset"}


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
    _made: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": {}}

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*self.fields, *(METADATA.field(name) for name in self.metadata)])

    def decode(self, raw: pa.RecordBatch) -> tuple[pa.RecordBatch, list[Unfit]]:
        """The fit records as columns, and the unfit ones with their causes."""
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
        """All lines in one go, if each line is surely one record.

        Every value begins with `{`, ends with `}` and holds no line feed. Since after a `}` no `{`
        can follow but on the outermost level, no object spans two lines; since each line begins
        one, as many objects as lines means one each.
        """
        if not len(values) or values.null_count or not self._fast_fields():
            return None
        values = values.cast(pa.string())  # refuses what is not UTF-8
        framed = pc.and_(pc.starts_with(values, "{"), pc.ends_with(values, "}"))
        if not pc.all(framed).as_py() or pc.any(pc.match_substring(values, "\n")).as_py():
            return None
        lines = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
        text = pc.binary_join(lines, "\n")[0].as_buffer()
        table = pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=self._read_schema(), unexpected_field_behavior="ignore"
            ),
        )
        if len(table) != len(values):
            return None
        columns = []
        for name, type_ in zip(self.fields.names, self.fields.types, strict=True):
            column = table.column(name).combine_chunks()
            if type_ == pa.float64() and not pc.all(pc.is_finite(column)).as_py():
                return None  # NaN and Infinity are no JSON
            columns.append(column.cast(type_))
        return columns

    def _fast_fields(self) -> bool:
        return all(type_ in _FAST or type_ == _TIMESTAMP for type_ in self.fields.types)

    def _read_schema(self) -> pa.Schema:
        return pa.schema(
            [
                (name, pa.string() if type_ == _TIMESTAMP else type_)
                for name, type_ in zip(self.fields.names, self.fields.types, strict=True)
            ]
        )

    def _careful(self, values: pa.Array) -> tuple[list[pa.Array], list[Unfit]]:
        rows, unfit = [], []
        for index, value in enumerate(values.to_pylist()):
            try:
                rows.append(self._row(value))
            except (InputError, ValueError, ArithmeticError, RecursionError) as error:
                unfit.append(Unfit(index, str(error) or type(error).__name__))
        columns = [
            pa.array([row[place] for row in rows], type_)
            for place, type_ in enumerate(self.fields.types)
        ]
        return columns, unfit

    def _row(self, value: bytes | None) -> tuple[Any, ...]:
        """One record's fields, converted, or a ValueError that says what is wrong."""
        if self.format == "text":
            return (None if value is None else value.decode(),)
        if value is None:
            raise ValueError("the record has no value (a tombstone)")
        if not self._made:
            self._made["parse"] = self._parser()
            self._made["converters"] = _members(self.fields)
        found = self._made["parse"](value)
        return tuple(
            None if (item := found.get(name)) is None else _within(name, convert, item)
            for name, convert in self._made["converters"]
        )

    def _parser(self) -> Callable[[bytes], dict[str, Any]]:
        if self.format == "avro":
            return avro.decoder(self.avro_schema or "")
        if self.format == "csv":
            return self._csv
        exact = any(_holds_decimal(type_) for type_ in self.fields.types)
        return _exact_object if exact else _object

    def _csv(self, value: bytes) -> dict[str, Any]:
        names, types = self.fields.names, self.fields.types
        (cells,) = csv.reader([value.decode().rstrip("\r\n")], strict=True)
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


def _metadata(raw: pa.RecordBatch, name: str) -> pa.Array:
    column = raw.column(_RAW_NAMES.get(name, name.removeprefix("_")))
    return column.cast(METADATA.field(name).type)


def _object(value: bytes) -> dict[str, Any]:
    found = orjson.loads(value)
    if not isinstance(found, dict):
        raise ValueError(f"a JSON {type(found).__name__} and no object")
    return found


def _exact_object(value: bytes) -> dict[str, Any]:
    found = json.loads(value.decode(), parse_float=Decimal, parse_constant=_no_constant)
    if not isinstance(found, dict):
        raise ValueError(f"a JSON {type(found).__name__} and no object")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _holds_decimal(type_: pa.DataType) -> bool:
    if pa.types.is_decimal(type_):
        return True
    return any(_holds_decimal(type_.field(i).type) for i in range(type_.num_fields))


def _within(name: str, convert: Callable[[Any], Any], item: Any) -> Any:
    try:
        return convert(item)
    except (ValueError, ArithmeticError) as error:
        raise ValueError(f"{name}: {error}") from None


def _members(fields: Any) -> list[tuple[str, Callable[[Any], Any]]]:
    return [(each.name, _converter(each.type)) for each in fields]


def _converter(type_: pa.DataType) -> Callable[[Any], Any]:
    """What turns a decoded value into one that Arrow takes for `type_`, or refuses it."""
    if pa.types.is_integer(type_):
        limit = 1 << (type_.bit_width - 1)
        return lambda item: _integer(item, limit)
    if pa.types.is_floating(type_):
        return _float
    if pa.types.is_decimal(type_):
        return lambda item: _decimal(item, type_.precision, type_.scale)
    if pa.types.is_timestamp(type_):
        return _timestamp if type_.tz else _local_timestamp
    if pa.types.is_list(type_):
        inner = _converter(type_.value_type)
        return lambda item: [None if i is None else inner(i) for i in _of(item, list, "a list")]
    if pa.types.is_map(type_):
        key, value = _converter(type_.key_type), _converter(type_.item_type)
        return lambda item: [
            (key(k), None if v is None else value(v))
            for k, v in _of(item, dict, "an object").items()
        ]
    if pa.types.is_struct(type_):
        members = _members([type_.field(i) for i in range(type_.num_fields)])
        return lambda item: _struct(item, members)
    simple: list[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]]] = [
        (pa.types.is_boolean, lambda item: _of(item, bool, "true or false")),
        (pa.types.is_string, lambda item: _of(item, str, "a string")),
        (pa.types.is_date, _date),
        (pa.types.is_binary, _binary),
    ]
    for is_it, convert in simple:
        if is_it(type_):
            return convert
    raise InputError(f"values of type {type_} cannot be decoded")


def _struct(item: Any, members: list[tuple[str, Callable[[Any], Any]]]) -> dict[str, Any]:
    found = _of(item, dict, "an object")
    return {
        name: None if (part := found.get(name)) is None else _within(name, convert, part)
        for name, convert in members
    }


def _of(item: Any, kind: type, said: str) -> Any:
    if not isinstance(item, kind):
        raise ValueError(f"{_shown(item)} is not {said}")
    return item


def _shown(item: Any) -> str:
    text = repr(item) if isinstance(item, str) else str(item)
    return text if len(text) <= 60 else text[:57] + "..."


def _integer(item: Any, limit: int) -> int:
    if type(item) is not int:
        raise ValueError(f"{_shown(item)} is not an integer")
    if not -limit <= item < limit:
        raise ValueError(f"{_shown(item)} is beyond {limit.bit_length()} bits")
    return item


def _float(item: Any) -> float:
    if isinstance(item, bool) or not isinstance(item, int | float | Decimal):
        raise ValueError(f"{_shown(item)} is not a number")
    number = float(item)
    if number - number != 0:
        raise ValueError(f"{_shown(item)} is not a finite number")
    return number


def _decimal(item: Any, precision: int, scale: int) -> Decimal:
    if isinstance(item, bool | float) or not isinstance(item, int | str | Decimal):
        raise ValueError(f"{_shown(item)} is not a decimal")
    try:
        number = Decimal(item)
        exact = number.quantize(Decimal(1).scaleb(-scale))
    except InvalidOperation:
        raise ValueError(f"{_shown(item)} is not a decimal({precision}, {scale})") from None
    if exact != number or len(exact.as_tuple().digits) > precision:
        raise ValueError(f"{_shown(item)} does not fit decimal({precision}, {scale}) exactly")
    return exact


def _local_timestamp(item: Any) -> datetime:
    if isinstance(item, datetime):
        return item.replace(tzinfo=None)
    parsed = datetime.fromisoformat(_of(item, str, "a time"))
    if parsed.tzinfo is not None:
        raise ValueError(f"{_shown(item)} has a zone, which a timestamp_ntz cannot keep")
    return parsed


def _timestamp(item: Any) -> datetime:
    if isinstance(item, datetime):
        return item
    parsed = datetime.fromisoformat(_of(item, str, "a time"))
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def _date(item: Any) -> date:
    return item if isinstance(item, date) else date.fromisoformat(_of(item, str, "a date"))


def _binary(item: Any) -> bytes:
    if isinstance(item, bytes):
        return item
    return base64.b64decode(_of(item, str, "base64"), validate=True)


def _cell(cell: str, type_: pa.DataType) -> Any:
    """A cell of CSV as the value that a JSON of it would hold; an empty one is null."""
    if cell == "":
        return None
    if pa.types.is_integer(type_):
        return int(cell) if _is_number(cell) else cell
    if pa.types.is_floating(type_):
        return float(cell)
    if pa.types.is_boolean(type_):
        return {"true": True, "false": False}.get(cell.lower(), cell)
    return cell


def _is_number(cell: str) -> bool:
    return cell.removeprefix("-").isdecimal() and cell.isascii()
