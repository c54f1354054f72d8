"""Dead letters in a topic that do not count, and how those who read it can tell.

A step that decodes keeps dead letters before their batch is committed. If that batch is given up,
the next run may find others, since its schema is another one; but a topic keeps what is in it. So
that run puts a marker behind them, without a key or a value and with these headers alone:

    tallygate.pipeline    the pipeline
    tallygate.withdrawn   TOPIC/PARTITION@OFFSET

Dead letters of the pipeline that come before it in the same partition of their topic, and are of
records of TOPIC/PARTITION from OFFSET on, are withdrawn. What comes after the marker counts.
"""

import re
from dataclasses import dataclass

from tallygate.core.offsets import TopicPartition
from tallygate.core.record import Headers

PIPELINE = "tallygate.pipeline"
WITHDRAWN = "tallygate.withdrawn"
_FROM = re.compile(r"([^/@]+)/([0-9]{1,9})@([0-9]{1,18})", re.ASCII)


@dataclass(frozen=True)
class Withdrawal:
    pipeline: bytes
    partition: TopicPartition
    """Of the source."""
    start: int
    """The offset from which on dead letters are withdrawn."""

    @property
    def headers(self) -> Headers:
        topic, number = self.partition
        text = f"{topic}/{number}@{self.start}"
        return (PIPELINE, self.pipeline), (WITHDRAWN, text.encode())

    @classmethod
    def read(cls, headers: Headers, *, bare: bool) -> "Withdrawal | None":
        """What a record in a topic of dead letters withdraws, which is `bare` if it has neither key
        nor value; None if it is a letter. No header that a letter's record had has such a name (see
        `core.marks`)."""
        if not bare or [name for name, _ in headers] != [PIPELINE, WITHDRAWN]:
            return None
        (_, pipeline), (_, text) = headers
        found = _FROM.fullmatch((text or b"").decode(errors="replace"))
        if found is None:
            return None
        topic, number, start = found.groups()
        return cls(pipeline or b"", (topic, int(number)), int(start))
