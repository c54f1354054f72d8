"""Reading the bytes of an Avro record, which may be anything.

The library's reader takes what no writer writes: a branch or a symbol of the number -1 is the last
one to it, and a megabyte of continued bytes a number. It builds whatever a few bytes stand for
before anyone can count. So a schema is turned into functions once, each of which reads one type
from where the record is read up to, refuses what is not of it, and counts what it makes.
"""

import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, Inexact
from typing import Any

from tallygate.core.most_values import check_values
from tallygate.errors import InputError

_LONGEST_NUMBER = 63
"""Bits before the last byte of a number of 64."""
_DECIMAL_BYTES = 17
"""One more than a decimal of 38 digits takes."""
_EXACT = Context(prec=76)
_EXACT.traps[Inexact] = True
_EPOCH, _LOCAL_EPOCH, _FIRST_DAY = datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1), 719_163
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")


class _Input:
    """A record, how far it is read, and how many items of arrays and maps it was found to hold."""

    __slots__ = ("at", "data", "values")

    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.values = data, 0, 0


Reader = Callable[[_Input], Any]


def reader_of(schema: Any) -> Callable[[bytes], Any]:
    """What reads a record of a schema that was parsed, so that its names are written out."""
    read = _Readers().of(schema)

    def read_all(data: bytes) -> Any:
        given = _Input(data)
        try:
            found = read(given)
        except IndexError:
            raise InputError("it ends too early") from None
        if given.at != len(data):
            raise InputError("it has bytes left over")
        return found

    return read_all


class _Readers:
    """Readers of types, with those that have a name and how many values they make."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[Reader, int]] = {}

    def of(self, schema: Any) -> Reader:
        return self._of(schema)[0]

    def _of(self, schema: Any) -> tuple[Reader, int]:
        """The reader, and the most values that it makes without those in arrays and maps."""
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            return self._named[schema] if schema in self._named else (_PRIMITIVE[schema], 1)
        kind = schema["type"]
        if kind in ("record", "error"):
            found = self._record(schema)
        elif kind == "array":
            return _array(*self._of(schema["items"])), 1
        elif kind == "map":
            return _map(*self._of(schema["values"])), 1
        elif kind == "enum":
            found = _enum(schema["symbols"]), 1
        elif kind == "fixed":
            found = _logical(_fixed(schema["size"]), schema), 1
        elif isinstance(kind, str):
            read, values = self._of(kind)
            return _logical(read, schema), values
        else:
            return self._of(kind)
        self._named[schema["name"]] = found
        return found

    def _record(self, schema: Any) -> tuple[Reader, int]:
        made = [(each["name"], *self._of(each["type"])) for each in schema["fields"]]
        fields = [(name, read) for name, read, _ in made]

        def read_record(given: _Input) -> Any:
            return {name: read(given) for name, read in fields}

        return read_record, 1 + sum(values for _, _, values in made)

    def _union(self, schema: list[Any]) -> tuple[Reader, int]:
        made = [self._of(each) for each in schema]
        branches = [read for read, _ in made]

        def read_union(given: _Input) -> Any:
            return branches[_number_below(given, len(branches), "branch")](given)

        return read_union, max((values for _, values in made), default=1)


def _read_long(given: _Input) -> int:
    data, at = given.data, given.at
    byte = data[at]
    at += 1
    if byte > 127:
        byte &= 127
        shift = 7
        while True:
            more = data[at]
            at += 1
            byte |= (more & 127) << shift
            if more < 128:
                break
            if shift >= _LONGEST_NUMBER:
                raise InputError("a number takes more than 10 bytes")
            shift += 7
        if byte >> 64:
            raise InputError("a number has more than 64 bits")
    given.at = at
    return (byte >> 1) ^ -(byte & 1)


def _number_below(given: _Input, most: int, said: str) -> int:
    number = _read_long(given)
    if not 0 <= number < most:
        raise InputError(f"there is no {said} {number}, but {most} of them")
    return number


def _taken(given: _Input, size: int) -> bytes:
    start = given.at
    if not 0 <= size <= len(given.data) - start:
        raise InputError(f"a value of {size} bytes is more than there are")
    given.at = start + size
    return given.data[start : given.at]


def _read_bytes(given: _Input) -> bytes:
    return _taken(given, _read_long(given))


def _read_string(given: _Input) -> str:
    return _taken(given, _read_long(given)).decode()


def _read_boolean(given: _Input) -> bool:
    byte = given.data[given.at]
    given.at += 1
    if byte > 1:
        raise InputError(f"a boolean is {byte}")
    return byte == 1


def _read_float(given: _Input) -> float:
    (found,) = _FLOAT.unpack(_taken(given, 4))
    return float(found)


def _read_double(given: _Input) -> float:
    (found,) = _DOUBLE.unpack(_taken(given, 8))
    return float(found)


_PRIMITIVE: Mapping[str, Reader] = {
    "null": lambda _: None,
    "boolean": _read_boolean,
    "int": _read_long,
    "long": _read_long,
    "float": _read_float,
    "double": _read_double,
    "bytes": _read_bytes,
    "string": _read_string,
}


def _fixed(size: int) -> Reader:
    return lambda given: _taken(given, size)


def _enum(symbols: list[str]) -> Reader:
    return lambda given: symbols[_number_below(given, len(symbols), "symbol")]


def _array(read: Reader, values: int) -> Reader:
    def read_array(given: _Input) -> list[Any]:
        found: list[Any] = []
        while count := _block(given, values):
            found += [read(given) for _ in range(count)]
        return found

    return read_array


def _map(read: Reader, values: int) -> Reader:
    def read_map(given: _Input) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while count := _block(given, values + 1):
            for _ in range(count):
                name = _read_string(given)
                found[name] = read(given)
        return found

    return read_map


def _block(given: _Input, values: int) -> int:
    """How many items come next, each of so many values at most; before any of them is made."""
    count = _read_long(given)
    if count < 0:
        count = -count
        _read_long(given)  # the bytes of the block, for who skips it
    given.values += count * values
    check_values(given.values)
    return count


def _logical(read: Reader, schema: Mapping[str, Any]) -> Reader:
    logical, kind = schema.get("logicalType"), schema["type"]
    if logical == "decimal" and kind in ("bytes", "fixed"):
        scale = schema.get("scale", 0)
        return lambda given: _decimal(read(given), scale)
    convert = _CONVERTED.get((kind, logical)) if isinstance(kind, str) else None
    if convert is None:
        return read
    return lambda given: convert(read(given))


_CONVERTED: Mapping[tuple[str, Any], Callable[[int], Any]] = {
    ("long", "timestamp-millis"): lambda number: _EPOCH + timedelta(milliseconds=number),
    ("long", "timestamp-micros"): lambda number: _EPOCH + timedelta(microseconds=number),
    ("long", "local-timestamp-millis"): lambda number: (
        _LOCAL_EPOCH + timedelta(milliseconds=number)
    ),
    ("long", "local-timestamp-micros"): lambda number: (
        _LOCAL_EPOCH + timedelta(microseconds=number)
    ),
    ("int", "date"): lambda number: date.fromordinal(number + _FIRST_DAY),
}


def _decimal(data: bytes, scale: int) -> Decimal:
    sign = b"\xff" if data[:1] >= b"\x80" else b"\x00"
    digits = data.lstrip(sign)
    if len(digits) > _DECIMAL_BYTES:
        raise InputError(f"a decimal of {len(data)} bytes has more than 38 digits")
    number = int.from_bytes(data[-_DECIMAL_BYTES - 1 :], signed=True)
    return Decimal(number).scaleb(-scale, context=_EXACT)
