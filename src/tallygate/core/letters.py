"""A dead letter: a record that could not be decoded or that the target refused, and why."""

import base64
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any

import pyarrow as pa

from tallygate.core.marks import given_back
from tallygate.core.record import Headers, Record
from tallygate.units import moment

MARKER = "tallygate.replayed"
"""The header of a marker in a topic of dead letters: it names the letter that was put back."""
ROW = "tallygate.row"
"""The header of a dead letter that is not the record, but the row that a pipeline made of it."""

CUT = "tallygate.cut-from"
"""The header of a dead letter of which only the first bytes are kept: how many there were."""
MOST_KEPT = 8 << 20
"""Bytes of a record that a dead letter keeps."""
MOST_SAID = 1000
"""Characters of a cause, which may repeat what is in the record."""
HEADER_ROOM = 16
"""Bytes for which a header counts beside its name and its content: the lengths of both, and what a
name gets that is put aside."""
_SHARE = 4
"""Of what is kept, so small a part is left to the key, and to the headers."""

Coordinates = tuple[str, int, int]
"""Topic, partition and offset of a record."""
_CONTENT = ("key", "value")
LOOKED_AT = 1000
"""How many causes are looked at for some that differ."""


@dataclass(frozen=True)
class Letter:
    topic: str
    partition: int
    offset: int
    cause: str
    key: bytes | None = None
    value: bytes | None = None
    time_ms: int | None = None
    headers: Headers = ()
    """The record's own."""
    is_row: bool = False
    """Whether key and value are those of the row that was made of the record."""
    cut_from: int | None = None
    """How many bytes key, value and headers had, if not all of them are kept."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "cause", _bounded(self.cause))

    def cut(self, most: int) -> "Letter":
        """With no more of its record than so many bytes; what is kept for people to look at must
        not be what a store refuses."""
        size = record_size(self.key, self.value, self.headers)
        if size <= most:
            return self
        key, value, headers = cut_record(self.key, self.value, self.headers, most)
        said = f" (the first {most:,} of its {size:,} bytes are kept)"
        return replace(
            self,
            key=key,
            value=value,
            headers=headers,
            cut_from=self.cut_from or size,
            cause=_bounded(self.cause, MOST_SAID - len(said)) + said,
        )

    @property
    def at(self) -> Coordinates:
        return self.topic, self.partition, self.offset

    def text(self) -> str:
        """As one line of JSON that people can read, if the record is text at all."""
        fields = asdict(self)
        del fields["headers"]
        for name in _CONTENT:
            content: bytes | None = fields.pop(name)
            try:
                fields[name] = None if content is None else content.decode()
            except UnicodeDecodeError:
                fields[f"{name}_base64"] = base64.b64encode(content or b"").decode()
        return json.dumps(fields)

    @classmethod
    def read(cls, text: str) -> "Letter":
        fields: dict[str, Any] = json.loads(text)
        for name in _CONTENT:
            if f"{name}_base64" in fields:
                fields[name] = base64.b64decode(fields.pop(f"{name}_base64"))
            elif fields[name] is not None:
                fields[name] = fields[name].encode()
        return cls(**fields)


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """A record that failed for good, and why."""

    topic: str
    partition: int
    offset: int
    cause: str
    record: Record
    """What is kept of it. In a topic of dead letters this is the record that keeps it, which has
    coordinates of its own."""
    time: datetime | None = None
    is_row: bool = False
    """Whether key and value are not the record's, but those of the row that was made of it."""
    is_cut: bool = False
    """Whether only the first bytes of the value are kept."""
    tries: int = 1
    stack: str = ""
    """The traceback of the handler that failed, if it was one."""
    replayed: bool = False
    """Whether it was put back into the topic that it came from."""

    @classmethod
    def of(cls, letter: Letter) -> "DeadLetter":
        """A letter that a pipeline keeps elsewhere than in a topic."""
        ms = letter.time_ms
        stamp = -1 if ms is None else ms
        return cls(
            topic=letter.topic,
            partition=letter.partition,
            offset=letter.offset,
            cause=letter.cause,
            record=Record(*letter.at, stamp, letter.key, letter.value, letter.headers),
            time=None if ms is None else moment(ms),
            is_row=letter.is_row,
            is_cut=letter.cut_from is not None,
        )

    @property
    def key(self) -> bytes | None:
        return self.record.key

    @property
    def value(self) -> bytes | None:
        return self.record.value

    @property
    def headers(self) -> Headers:
        """The record's own, as far as they are kept."""
        return given_back(self.record.headers)

    @property
    def at(self) -> Coordinates:
        return self.topic, self.partition, self.offset

    @property
    def coordinates(self) -> str:
        """As `trace` takes them."""
        return f"{self.topic}/{self.partition}@{self.offset}"

    @property
    def same(self) -> tuple[bytes | None, str]:
        """What two letters have in common that a crash made of one record. A record that was put
        back and failed again is another: it has other coordinates."""
        return self.record.header("tallygate.group"), self.coordinates


def record_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """The bytes of what is in a record, a few more than Kafka needs for them."""
    return len(key or b"") + len(value or b"") + sum(map(_header_size, headers))


def cut_record(
    key: bytes | None, value: bytes | None, headers: Headers, most: int
) -> tuple[bytes | None, bytes | None, Headers]:
    """The first bytes of key and value, and the first headers, together no more than `most`. A
    header is kept whole or not at all."""
    left = most // _SHARE
    kept = []
    for each in headers:
        left -= _header_size(each)
        if left < 0:
            break
        kept.append(each)
    first = None if key is None else key[: most // _SHARE]
    room = most - record_size(first, None, tuple(kept))
    return first, None if value is None else value[:room], tuple(kept)


def _header_size(header: tuple[str, bytes | None]) -> int:
    name, content = header
    return len(name.encode()) + len(content or b"") + HEADER_ROOM


def _bounded(cause: str, most: int = MOST_SAID) -> str:
    """A cause that any store keeps: not too long, and text, of which half a character is none."""
    if len(cause) > most:  # which is not encoded whole
        cause = cause[:most] + "..."
    text = cause.encode(errors="backslashreplace").decode()
    return text if len(text) <= most else text[: most - 3] + "..."


def first_distinct(causes: Iterable[str], most: int) -> list[str]:
    """The first causes that differ, of those that come first."""
    found: dict[str, None] = {}
    for cause in islice(causes, LOOKED_AT):
        found.setdefault(cause)
        if len(found) == most:
            break
    return list(found)


def letter_of(raw: pa.RecordBatch, index: int, cause: str, *, is_row: bool = False) -> Letter:
    """A raw record of a block, or a row made of one, as a dead letter."""
    found = {name: raw.column(name)[index] for name in raw.schema.names}
    # As a number: Spark's records may be of a year that Python's times do not reach.
    stamp = found.pop("timestamp", None)
    record: dict[str, Any] = {name: each.as_py() for name, each in found.items()}
    return Letter(
        record["topic"],
        record["partition"],
        record["offset"],
        cause,
        record.get("key"),
        record["value"],
        None if stamp is None or not stamp.is_valid else stamp.value // 1000,
        tuple((each["key"], each["value"]) for each in record.get("headers") or ()),
        is_row,
    ).cut(MOST_KEPT)
