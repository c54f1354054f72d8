"""The cells of a CSV file as values: by types that the user names, or that the first rows suggest.

A guess must lose nothing: a column is of numbers only if each cell of it, as a number, is the same
text but for zeros at the end of a fraction. What begins with a zero or a plus, or has more digits
than a number holds, may be a code, and stays text. A cell further down that does not fit is a bad
row, never a changed value.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from tallygate.errors import ConfigError, InputError

SAMPLE = 1000
"""How many rows a guess is made of."""
TYPES = ("long", "double", "boolean", "string")
NULLS = frozenset(("na", "n/a", "nan", "null", "none", "nil", "-", "?", r"\n"))
"""What programs write, in some case of letters, where a value is missing."""

Texts = Mapping[str, str]
Converted = tuple[Mapping[str, Any], str | None]
"""A row of values; or the row as it was, and what is wrong with it."""

_LONG = re.compile(r"0|-?[1-9][0-9]{0,18}")
_DOUBLE = re.compile(r"-?(?:0|[1-9][0-9]*)\.[0-9]+")
_ANY_LONG = re.compile(r"[+-]?[0-9]{1,40}")
_ANY_DOUBLE = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_SAFE_DIGITS = 15
"""Any decimal of so many digits comes back from a double as it was."""


@dataclass(frozen=True, kw_only=True)
class Cells:
    """How the cells of a file become values."""

    as_text: bool = False
    """Whether each stays the text that it is, also an empty one."""
    named: Mapping[str, str] = field(default_factory=dict)
    """The types that the user names; other columns have those that the first rows suggest."""
    nulls: frozenset[str] = frozenset()
    """Cells that are null, besides empty ones."""

    def converter(
        self, columns: Sequence[str], sample: Iterable[Texts]
    ) -> Callable[[Texts], Converted]:
        """What makes a row of values of a row of texts; `sample` are its file's first rows."""
        if self.as_text:
            return lambda row: (row, None)
        missing = [name for name in self.named if name not in columns]
        if missing:
            raise InputError(
                f"the file has no column {missing[0]!r}, which --schema names; it has "
                f"{', '.join(columns)}."
            )
        rows, nulls = list(sample), self.nulls | {""}
        readers: dict[str, tuple[str, Callable[[str], Any], bool]] = {}
        for name in columns:
            guessed = name not in self.named
            type_ = self._guess(name, rows) if guessed else self.named[name]
            if type_ != "string":
                readers[name] = type_, (_STRICT if guessed else _LENIENT)[type_], guessed

        def convert(row: Texts) -> Converted:
            values: dict[str, Any] = {
                name: None if cell in nulls else cell for name, cell in row.items()
            }
            for name, (type_, read, guessed) in readers.items():
                cell = values[name]
                if cell is not None:
                    try:
                        values[name] = read(cell)
                    except ValueError:
                        return row, _misfit(name, cell, type_, guessed=guessed)
            return values, None

        return convert

    def notes(self, columns: Sequence[str], sample: Iterable[Texts]) -> list[str]:
        """What to tell of columns that are text only for the word that stands for no value."""
        found = []
        rows = list(sample)
        for name in columns if not self.as_text else ():
            if name in self.named or self._guess(name, rows) != "string":
                continue
            words = sorted({row[name] for row in rows if row[name].casefold() in NULLS})
            without = Cells(nulls=self.nulls | set(words))._guess(name, rows)
            if words and without != "string":
                flags = " ".join(f"--null {_quoted(word)}" for word in words)
                found.append(
                    f"{name} stays text for cells that are {' or '.join(map(repr, words))}; with "
                    f"{flags} these are null, and the others of type {without}"
                )
        return found

    def _guess(self, name: str, rows: Iterable[Texts]) -> str:
        cells = {row[name] for row in rows} - self.nulls - {""}
        if not cells:
            return "string"
        for type_ in ("boolean", "long", "double"):
            if all(_fits(cell, _STRICT[type_]) for cell in cells):
                return type_
        return "string"


def parse_types(text: str) -> dict[str, str]:
    """Types of columns, as `id long, amount double`; a name may stand in backticks."""
    found: dict[str, str] = {}
    for part in re.findall(r"(?:`[^`]*`|[^,`])+", text):
        match = re.fullmatch(r"\s*(?:`([^`]+)`|(\S+))\s+(\w+)\s*", part)
        if match is None or match[3].lower() not in TYPES:
            raise ConfigError(
                f"--schema: {part.strip()!r} is not a column with one of the types "
                f"{', '.join(TYPES)}; write it as `id long, amount double`."
            )
        found[match[1] or match[2]] = match[3].lower()
    if not found:
        raise ConfigError("--schema names no column; write it as `id long, amount double`.")
    return found


def _fits(cell: str, read: Callable[[str], Any]) -> bool:
    try:
        read(cell)
    except ValueError:
        return False
    return True


def _misfit(name: str, cell: str, type_: str, *, guessed: bool) -> str:
    shown = repr(cell) if len(cell) <= 40 else f"{cell[:40]!r}…"
    said = f"{name}: {shown} is not a {type_}"
    ways = [f"--null {_quoted(cell)}"] if cell.casefold() in NULLS else []
    ways += ["--schema", "--as-text"] if guessed else []
    if not ways:
        return said
    *first, last = ways
    return f"{said}; say {', '.join(first)} or {last}" if first else f"{said}; say {last}"


def _quoted(word: str) -> str:
    return word if word.replace("/", "").isalnum() else f"'{word}'"


def _long(cell: str) -> int:
    if not _LONG.fullmatch(cell):
        raise ValueError
    return _within_64_bits(int(cell))


def _double(cell: str) -> float:
    if not _DOUBLE.fullmatch(cell) and not _LONG.fullmatch(cell):
        raise ValueError
    number = float(cell)
    if len(cell) > _SAFE_DIGITS and Decimal(repr(number)) != Decimal(cell):
        raise ValueError  # infinity too: no text that gets here names it
    return number


def _boolean(cell: str) -> bool:
    if cell.lower() not in ("true", "false"):
        raise ValueError
    return cell.lower() == "true"


def _any_long(cell: str) -> int:
    if not _ANY_LONG.fullmatch(cell):
        raise ValueError
    return _within_64_bits(int(cell))


def _any_double(cell: str) -> float:
    if not _ANY_DOUBLE.fullmatch(cell):
        raise ValueError
    number = float(cell)
    if number - number != 0:
        raise ValueError
    return number


def _within_64_bits(number: int) -> int:
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError
    return number


_STRICT: Mapping[str, Callable[[str], Any]] = {
    "long": _long,
    "double": _double,
    "boolean": _boolean,
}
"""For types that are guessed: nothing of the text may be lost."""
_LENIENT: Mapping[str, Callable[[str], Any]] = {
    "long": _any_long,
    "double": _any_double,
    "boolean": _boolean,
}
"""For types that the user names."""
