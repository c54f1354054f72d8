from datetime import UTC, datetime

import pytest

from tallygate.errors import ConfigError
from tallygate.units import duration_ms, human_size, interval_ms, moment, size_bytes, time_ms


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("500ms", 500), ("1.5s", 1500), ("30m", 1_800_000), ("7d", 604_800_000), ("forever", -1)],
)
def test_durations(text: str, milliseconds: int) -> None:
    assert duration_ms(text) == milliseconds


@pytest.mark.parametrize(
    ("text", "count"),
    [("1024", 1024), ("500MB", 500_000_000), ("1GiB", 1 << 30), ("unlimited", -1)],
)
def test_sizes(text: str, count: int) -> None:
    assert size_bytes(text) == count


LONG = "9" * 400


@pytest.mark.parametrize(
    "text", ["", "7", "d", "-1d", "7 weeks", "\u0667d", f"{LONG}s", f"0.{LONG}s", "9" * 15 + "d"]
)
def test_bad_durations_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a duration"):
        duration_ms(text)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("500ms", 500),
        ("10s", 10_000),
        ("10 seconds", 10_000),
        ("1 minute", 60_000),
        ("2h", 7200_000),
    ],
)
def test_intervals(text: str, milliseconds: int) -> None:
    assert interval_ms(text) == milliseconds


@pytest.mark.parametrize(
    "text",
    ["", "10", "0s", "daily", "forever", "3 fortnights", f"{LONG}s", "\u0667s", "9" * 15 + "d"],
)
def test_bad_intervals_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an interval"):
        interval_ms(text)


@pytest.mark.parametrize(
    "text", ["", "MB", "1 GX", "-5MB", "\u0667", f"{LONG}MB", "9" * 15 + "TiB"]
)
def test_bad_sizes_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a size"):
        size_bytes(text)


def test_human_sizes() -> None:
    assert [human_size(n) for n in (0, 1023, 1536, 5 << 40)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 TiB",
    ]


def test_a_time_that_no_date_can_be_is_none() -> None:
    """Kafka takes any number for a record's time, as nanoseconds by mistake."""
    assert moment(1_767_225_600_000) == datetime(2026, 1, 1, tzinfo=UTC)
    assert moment(-1) is not None
    assert moment(1_767_225_600_000_000_000) is None
    assert moment(10**30) is None


@pytest.mark.parametrize("text", ["", "noon", "\u00b2", "\u0667", LONG, "9" * 16])
def test_bad_times_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a time"):
        time_ms(text)
