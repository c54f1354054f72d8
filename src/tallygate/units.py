"""Durations, sizes and times as people write them, and back."""

import re
from datetime import UTC, datetime, timedelta

from tallygate.errors import ConfigError

__all__ = [
    "FIRST_MS",
    "FIRST_RECORD_MS",
    "LAST_MS",
    "duration_ms",
    "human_size",
    "interval_ms",
    "moment",
    "size_bytes",
    "time_ms",
]

_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_NAMES = {"millisecond": "ms", "second": "s", "minute": "m", "hour": "h", "day": "d"}
FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The first and the last millisecond of the years 1 to 9999, which Python, Arrow and databases can
all hold."""
FIRST_RECORD_MS = -2_208_988_800_000
"""The first millisecond of 1900. Of a record's own time before it Spark and Python do not think
alike: they have other calendars, and other time zones."""
_NUMBER = r"([0-9]{1,15}(?:\.[0-9]{1,15})?)"
_LARGEST = (1 << 63) - 1
"""What Kafka and the JVM can hold."""
_BYTES: dict[str, int] = {"": 1, "B": 1} | {
    prefix + suffix: factor**power
    for power, prefix in enumerate("KMGT", start=1)
    for suffix, factor in (("B", 1000), ("iB", 1024))
}


def duration_ms(text: str) -> int:
    """`7d`, `12h`, `30m`, `45s`, `500ms` as milliseconds; `forever` is -1, as in Kafka."""
    if text == "forever":
        return -1
    match = re.fullmatch(rf"{_NUMBER}\s*(ms|s|m|h|d)", text)
    ms = round(float(match[1]) * _MILLISECONDS[match[2]]) if match else None
    if ms is None or ms > _LARGEST:
        raise ConfigError(f"{text!r} is not a duration: write 7d, 12h, 30m, 45s, 500ms or forever.")
    return ms


def interval_ms(text: str) -> int:
    """How far apart things happen, in milliseconds: `10s`, or as Spark takes it, `10 seconds`."""
    match = re.fullmatch(rf"{_NUMBER}\s*([a-z]+)", text)
    unit = _NAMES.get(match[2].removesuffix("s"), match[2]) if match else ""
    ms = float(match[1]) * _MILLISECONDS.get(unit, 0) if match else 0.0
    if not 0 < ms <= _LARGEST:
        raise ConfigError(f"{text!r} is not an interval: write 500ms, 10s, 5m, 1h or 10 seconds.")
    return round(ms)


def size_bytes(text: str) -> int:
    """`500MB`, `1GiB`, `1024` as bytes; `unlimited` is -1, as in Kafka."""
    if text == "unlimited":
        return -1
    match = re.fullmatch(rf"{_NUMBER}\s*([A-Za-z]*)", text)
    size = round(float(match[1]) * _BYTES[match[2]]) if match and match[2] in _BYTES else None
    if size is None or size > _LARGEST:
        raise ConfigError(f"{text!r} is not a size: write 1024, 500MB, 1GiB or unlimited.")
    return size


def human_size(count: int) -> str:
    """A count of bytes in the largest binary unit that keeps it at 1 or more."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def time_ms(text: str) -> int:
    """An ISO 8601 time, or milliseconds since 1970, as milliseconds."""
    if re.fullmatch("[0-9]{1,15}", text):
        return int(text)
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a time: write 2026-01-31T12:00:00Z.") from None
    return int((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp() * 1000)


def moment(ms: float) -> datetime | None:
    """Milliseconds since 1970 as a time. None if no date is that far away: Kafka takes any number
    for a record's time."""
    try:
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)
    except OverflowError:
        return None
