"""A record as it comes out of Kafka, and one as it goes in."""

from dataclasses import dataclass, field
from typing import Any

import orjson

from tallygate.errors import InputError

Headers = tuple[tuple[str, bytes | None], ...]
MISNAMED = "\N{REPLACEMENT CHARACTER}"
"""In a header's name it says that the name is not UTF-8: that is what Java's reader makes of it."""
MISNAMED_HEADER = "a header's name is not UTF-8"
"""Why the record is unfit then."""
UNREADABLE: Headers = ((MISNAMED, None),)
"""In the place of headers that cannot be read."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record that was read, with its coordinates."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since 1970, by the producer's clock or the broker's."""
    key: bytes | None
    value: bytes | None
    headers: Headers = ()

    @property
    def text(self) -> str:
        return (self.value or b"").decode()

    def json(self) -> Any:
        try:
            return orjson.loads(self.value or b"")
        except orjson.JSONDecodeError as error:
            raise InputError(f"{self.where} is not JSON: {error}.") from error

    def header(self, name: str) -> bytes | None:
        """The last header of that name, which is the one that counts."""
        return next((value for key, value in reversed(self.headers) if key == name), None)

    @property
    def is_misnamed(self) -> bool:
        """Whether a header's name is not UTF-8."""
        return any(MISNAMED in name for name, _ in self.headers)

    @property
    def where(self) -> str:
        return f"record {self.topic}/{self.partition}@{self.offset}"


@dataclass(frozen=True, slots=True)
class Output:
    """A record to be written."""

    topic: str
    value: bytes | str | None
    key: bytes | str | None = None
    headers: Headers = field(default=())
    partition: int | None = None
    timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class Metadata:
    """Where an acknowledged record ended up."""

    topic: str
    partition: int
    offset: int
    timestamp: int
