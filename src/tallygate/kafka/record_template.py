"""How a row becomes a record: where its key, headers, partition and timestamp come from.

A key or a header is a template: `account` is a field, `user.id` a field within a field,
`{account}-{region}` fields within text. A field that is not there makes the row a bad row.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tallygate.errors import ConfigError, InputError

Partitioner = Callable[[bytes | None, int], int]
_HOLE = re.compile(r"\{([^{}]+)\}")


@dataclass(frozen=True, kw_only=True)
class RecordTemplate:
    key: str | None = None
    headers: Mapping[str, str] | None = None
    timestamp: str | None = None
    partition: int | None = None
    partitioner: Partitioner | None = None

    @property
    def needs_fields(self) -> bool:
        return bool(self.key or self.timestamp or _has_holes(self.headers))

    @property
    def is_plain(self) -> bool:
        """Whether a record is its value alone, placed by Kafka."""
        simple = (self.key, self.headers, self.timestamp, self.partition, self.partitioner)
        return not any(part is not None for part in simple)

    def arguments(self, row: Any, partitions: int) -> dict[str, Any]:
        """What `produce` takes besides topic and value."""
        found: dict[str, Any] = {}
        if self.key is not None:
            found["key"] = _fill(self.key, row)
        if self.headers:
            found["headers"] = [
                (name, _fill(text, row, bare=False)) for name, text in self.headers.items()
            ]
        if self.timestamp is not None:
            found["timestamp"] = _milliseconds(_field(row, self.timestamp), self.timestamp)
            if not 0 < found["timestamp"] < 1 << 63:
                raise InputError(f"has no time after 1970 in {self.timestamp!r}, as Kafka needs")
        if self.partition is not None:
            found["partition"] = self.partition
        elif self.partitioner is not None:
            found["partition"] = self._place(found.get("key"), partitions)
        return found

    def _place(self, key: bytes | None, partitions: int) -> int:
        assert self.partitioner is not None
        chosen = self.partitioner(key, partitions)
        if not isinstance(chosen, int) or not 0 <= chosen < partitions:
            raise ConfigError(
                f"the partitioner chose {chosen!r} for key {key!r}; it must be a number from 0 "
                f"to {partitions - 1}."
            )
        return chosen


def round_robin() -> Partitioner:
    turn = -1

    def place(_: bytes | None, partitions: int) -> int:
        nonlocal turn
        turn = (turn + 1) % partitions
        return turn

    return place


def load_function(name: str, use: str) -> Callable[..., Any]:
    """The function that `module:function` names; the current folder counts as a place to look."""
    import importlib
    import sys

    module, colon, function = name.partition(":")
    if not colon or not module or not function:
        raise ConfigError(f"{use} {name!r} must be written module:function.")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{use} {name!r} cannot be loaded: {error}.") from error
    if not callable(found):
        raise ConfigError(f"{use} {name!r} is not a function.")
    return found  # type: ignore[no-any-return]


def _has_holes(headers: Mapping[str, str] | None) -> bool:
    return any(_HOLE.search(text) for text in (headers or {}).values())


def _fill(template: str, row: Any, *, bare: bool = True) -> bytes | None:
    """The template with its fields filled in; a `bare` word without braces is a field itself."""
    if "{" in template:
        return _HOLE.sub(lambda match: _text(_field(row, match[1])), template).encode()
    if not bare:
        return template.encode()
    value = _field(row, template)
    return None if value is None else _text(value).encode()


def _field(row: Any, path: str) -> Any:
    value = row
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            raise InputError(f"has no field {path!r}")
        value = value[name]
    return value


def _text(value: Any) -> str:
    from tallygate.kafka.record_files import dump_json

    return value if isinstance(value, str) else dump_json(value).decode()


def _milliseconds(value: Any, path: str) -> int:
    if isinstance(value, bool):
        raise InputError(f"has {value!r} in {path!r}, which is not a timestamp")
    if isinstance(value, int | float):
        if value - value != 0:
            raise InputError(f"has {value!r} in {path!r}, which is not a timestamp")
        return int(value)
    if isinstance(value, datetime):
        return int((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp() * 1000)
    try:
        parsed = datetime.fromisoformat(str(value))
    except ValueError:
        raise InputError(
            f"has {value!r} in {path!r}, which is not a timestamp (milliseconds or ISO 8601)"
        ) from None
    return int((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp() * 1000)
