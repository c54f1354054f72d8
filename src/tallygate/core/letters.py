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
"""Bytes of a value that a dead letter keeps."""

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
    headers: tuple[tuple[str, bytes | None], ...] = ()
    """The record's own."""
    is_row: bool = False
    """Whether key and value are those of the row that was made of the record."""
    cut_from: int | None = None
    """How many bytes the value had, if only its first ones are kept."""

    def cut(self, most: int) -> "Letter":
        """With no more than the first bytes of its value; what is kept for people to look at must
        not be what a store refuses."""
        if self.value is None or len(self.value) <= most:
            return self
        said = f" (the first {most:,} of its {len(self.value):,} bytes are kept)"
        size = self.cut_from or len(self.value)
        return replace(self, value=self.value[:most], cut_from=size, cause=self.cause + said)

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
