"""A dead letter: a record that could not be decoded or that the target refused, and why."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

__all__ = ["Letter", "letter_of"]


@dataclass(frozen=True)
class Letter:
    topic: str
    partition: int
    offset: int
    cause: str
    key: bytes | None = None
    value: bytes | None = None
    time_ms: int | None = None


def letter_of(raw: pa.RecordBatch, index: int, cause: str) -> Letter:
    """A raw record of a block as a dead letter."""
    record: dict[str, Any] = {name: raw.column(name)[index].as_py() for name in raw.schema.names}
    stamp = record.get("timestamp")
    return Letter(
        record["topic"],
        record["partition"],
        record["offset"],
        cause,
        record.get("key"),
        record["value"],
        None if stamp is None else round(stamp.timestamp() * 1000),
    )
