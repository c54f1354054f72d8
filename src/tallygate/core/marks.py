"""Our own headers, which say what became of a record, and those of that name that came with it.

Headers of records come from outside, so one of ours is believed only where we alone write: in a
group's own retry topics, and in topics of dead letters. A record that goes there takes its own
headers along, and those that have our name are put aside under another one.
"""

from tallygate.core.record import Headers, Record

OURS = "tallygate."
ASIDE = "tallygate.was."
"""What a header of that name begins with while it is put aside."""
LONGEST = 19
"""Digits of a long, which is what an offset and a time are."""


def put_aside(headers: Headers) -> Headers:
    """The headers of a record from outside, of which none looks like ours."""
    return tuple(
        (ASIDE + name.removeprefix(OURS) if name.startswith(OURS) else name, content)
        for name, content in headers
    )


def given_back(headers: Headers) -> Headers:
    """The headers as they were before they were put aside, without our marks."""
    return tuple(
        (OURS + name.removeprefix(ASIDE) if name.startswith(ASIDE) else name, content)
        for name, content in headers
        if not is_mark(name)
    )


def is_mark(name: str) -> bool:
    """Whether a header beside those that were put aside is one of ours."""
    return name.startswith(OURS) and not name.startswith(ASIDE)


def origin(record: Record) -> tuple[str, int, int]:
    """Topic, partition and offset at which a record first was that is in a retry topic or in one of
    dead letters: our marks say it there."""
    topic = record.header("tallygate.topic")
    if topic is None:
        return record.topic, record.partition, record.offset
    partition, offset = record.header("tallygate.partition"), record.header("tallygate.offset")
    return topic.decode(errors="replace"), number(partition), number(offset)


def number(content: bytes | None, otherwise: int = 0) -> int:
    """A mark's number, whatever is written there."""
    text = (content or b"").decode(errors="replace")
    sound = text.isascii() and text.isdecimal() and len(text) <= LONGEST
    return int(text) if sound and int(text) < 1 << 63 else otherwise
