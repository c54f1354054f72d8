"""How many values a record may hold, whatever its size.

A byte of a record can stand for hundreds in memory: `{},` for an object with all the fields of its
type, a zero of Avro for a record with an empty list. So values are counted before they are made,
and a record of too many becomes a dead letter instead of the end of its worker.
"""

import re

from tallygate.errors import InputError

MOST_VALUES = 1_000_000
"""Items of arrays and maps, and the fields of those that are structs. They take a quarter of a
gigabyte while they are Python's."""
_JSON_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_CSV_STRING = re.compile(rb'"[^"]*+"')
_JSON_MARKS, _CSV_MARKS = (b",", b"{", b"["), (b",",)


def check_values(count: int) -> None:
    if count > MOST_VALUES:
        raise InputError(f"the record holds more than {MOST_VALUES:,} values")


def check_json(value: bytes) -> None:
    """Raise if a text holds too many values, before any of them is made."""
    _check_marks(value, _JSON_MARKS, _JSON_STRING)


def check_csv(value: bytes) -> None:
    _check_marks(value, _CSV_MARKS, _CSV_STRING)


def _check_marks(value: bytes, marks: tuple[bytes, ...], string: re.Pattern[bytes]) -> None:
    """Only a long text can hold too many. What is in its strings is no mark, but to look for them
    takes longer than to count."""
    if len(value) > MOST_VALUES and sum(map(value.count, marks)) > MOST_VALUES:
        check_values(sum(map(string.sub(b"", value).count, marks)))
