"""Converting decoded values, field by field, to what Arrow takes for the declared types.

A value of another type is refused with the path of its field: nothing is guessed or rounded.
"""

import base64
import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Context, Decimal, InvalidOperation
from typing import Any, TypeVar

import pyarrow as pa

from tallygate.core.most_values import check_values
from tallygate.errors import ConfigError

C = TypeVar("C", list[Any], dict[str, Any])

# Twice the digits of the longest decimal(38, s), so that no digit is lost before it is looked at.
_EXACT = Context(prec=76)
# Python takes more for a number (`1_000`, ` 7 `, digits of any script) and any character between a
# date and a time.
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_TIME = re.compile(
    r"(?:[0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{8}|[0-9]{4}-W[0-9]{2}(?:-[0-9])?|[0-9]{4}W[0-9]{2,3})"
    r"(?:[Tt ].+)?"
)


@dataclass(frozen=True)
class Member:
    """A field of a record, or of a struct in one."""

    name: str
    nullable: bool
    convert: Callable[[Any], Any]

    def of(self, found: dict[str, Any]) -> Any:
        item = found.get(self.name)
        if item is None:
            if self.nullable:
                return None
            raise ValueError(f"{self.name}: is missing or null, and declared NOT NULL")
        try:
            return self.convert(item)
        except (ValueError, ArithmeticError) as error:
            raise ValueError(f"{self.name}: {error}") from None


def members_of(declared: Iterable[pa.Field], above: str = "") -> list[Member]:
    return [
        Member(each.name, each.nullable, _converter(each.type, above + each.name))
        for each in declared
    ]


def _converter(type_: pa.DataType, place: str) -> Callable[[Any], Any]:
    """What turns a decoded value into one that Arrow takes for `type_`, or refuses it."""
    if pa.types.is_integer(type_):
        limit = 1 << (type_.bit_width - 1)
        return lambda item: _integer(item, limit)
    if pa.types.is_decimal(type_):
        return lambda item: _decimal(item, type_.precision, type_.scale)
    if pa.types.is_timestamp(type_):
        return _timestamp if type_.tz else _local_timestamp
    if pa.types.is_list(type_):
        inner, size = _converter(type_.value_type, place), _values_in(type_.value_type)
        return lambda item: [
            None if i is None else inner(i) for i in _counted(_of(item, list, "a list"), size)
        ]
    if pa.types.is_map(type_):
        key, value = _converter(type_.key_type, place), _converter(type_.item_type, place)
        size = _values_in(type_.item_type)
        return lambda item: [
            (key(k), None if v is None else value(v))
            for k, v in _counted(_of(item, dict, "an object"), size).items()
        ]
    if pa.types.is_struct(type_):
        members = members_of([type_.field(i) for i in range(type_.num_fields)], f"{place}.")
        return lambda item: _struct(item, members)
    simple: list[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]]] = [
        (pa.types.is_boolean, lambda item: _of(item, bool, "true or false")),
        (pa.types.is_float32, _short_float),
        (pa.types.is_float64, _float),
        (pa.types.is_string, _text),
        (pa.types.is_date, _date),
        (pa.types.is_binary, _binary),
    ]
    for is_it, convert in simple:
        if is_it(type_):
            return convert
    raise ConfigError(
        f"field {place!r} is of type {type_}, which cannot be decoded; numbers, decimals, booleans,"
        " strings, binary, dates, timestamps, and arrays, maps and structs of these can."
    )


def _values_in(type_: pa.DataType) -> int:
    """How many columns Arrow makes of one item, be it null."""
    if not pa.types.is_struct(type_):
        return 1
    return sum(_values_in(type_.field(i).type) for i in range(type_.num_fields))


def _counted(items: C, size: int) -> C:
    check_values(len(items) * size)
    return items


def _struct(item: Any, members: list[Member]) -> dict[str, Any]:
    found = _of(item, dict, "an object")
    return {member.name: member.of(found) for member in members}


def _of(item: Any, kind: type, said: str) -> Any:
    if not isinstance(item, kind):
        raise ValueError(f"{_shown(item)} is not {said}")
    return item


def _shown(item: Any) -> str:
    text = repr(item) if isinstance(item, str) else str(item)
    return text if len(text) <= 60 else text[:57] + "..."


def _text(item: Any) -> str:
    text: str = _of(item, str, "a string")
    text.encode()  # raises a ValueError for a lone surrogate
    return text


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


def _short_float(item: Any) -> float:
    number = _float(item)
    try:
        struct.pack("<f", number)  # without the sign it would store infinity, as Arrow would
    except OverflowError:
        raise ValueError(f"{_shown(item)} is beyond 32 bits") from None
    return number


def is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


def _decimal(item: Any, precision: int, scale: int) -> Decimal:
    if isinstance(item, bool | float) or not isinstance(item, int | str | Decimal):
        raise ValueError(f"{_shown(item)} is not a decimal")
    if isinstance(item, str) and not is_number(item):
        raise ValueError(f"{_shown(item)} is not a decimal")
    try:
        number = Decimal(item)
        exact = number.quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    except InvalidOperation:
        raise ValueError(f"{_shown(item)} is not a decimal({precision}, {scale})") from None
    if exact != number or len(exact.as_tuple().digits) > precision:
        raise ValueError(f"{_shown(item)} does not fit decimal({precision}, {scale}) exactly")
    return exact


def _local_timestamp(item: Any) -> datetime:
    if isinstance(item, datetime):
        return item.replace(tzinfo=None)
    parsed = _parsed_time(item)
    if parsed.tzinfo is not None:
        raise ValueError(f"{_shown(item)} has a zone, which a timestamp_ntz cannot keep")
    return parsed


def _timestamp(item: Any) -> datetime:
    if isinstance(item, datetime):
        return item
    parsed = _parsed_time(item)
    return parsed.astimezone(UTC) if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def _parsed_time(item: Any) -> datetime:
    text: str = _of(item, str, "a time")
    if not _TIME.fullmatch(text):
        raise ValueError(f"{_shown(item)} is not a time as in 2026-01-31T12:00:00Z")
    return datetime.fromisoformat(text)


def _date(item: Any) -> date:
    return item if isinstance(item, date) else date.fromisoformat(_of(item, str, "a date"))


def _binary(item: Any) -> bytes:
    if isinstance(item, bytes):
        return item
    return base64.b64decode(_of(item, str, "base64"), validate=True)
