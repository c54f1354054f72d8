"""Which records an audit looks at: what the ledger claims, the source still has, and was asked for.

A sample is taken in windows: stretches of offsets that follow each other, chosen by lot among all
of their kind. What it says of the rest is an inference, and is said as one.
"""

import random
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from confluent_kafka.admin import OffsetSpec

from tallygate.auditing.verdict import Anomaly
from tallygate.core.ledger_snapshot import LedgerSnapshot
from tallygate.core.offsets import (
    Range,
    TopicPartition,
    count,
    forgotten_at,
    is_forgotten,
    is_topic,
    lies_in,
    topic_of,
)
from tallygate.errors import ConfigError
from tallygate.kafka.connection import Connection
from tallygate.kafka.groups import topic_ids
from tallygate.kafka.read import list_offsets
from tallygate.units import duration_ms, moment, time_ms

WINDOWS = 40
SMALLEST = 50
SURE = 0.95


@dataclass(frozen=True, kw_only=True)
class Scope:
    ranges: tuple[Range, ...] = ()
    """What is checked."""
    doubts: tuple[str, ...] = ()
    """What else is unknown of the ledger."""
    anomalies: tuple[Anomaly, ...] = ()
    removed: tuple[Range, ...] = ()
    """What is claimed and was removed by retention, before the ranges."""
    forgotten: tuple[tuple[datetime, Range], ...] = ()
    """What is claimed of topics that were forgotten, and when, if it cannot be read again."""

    @property
    def unknown(self) -> tuple[str, ...]:
        return (
            *self.doubts,
            *(
                f"{each} cannot be read again: the topic was forgotten at {at:%Y-%m-%d %H:%M:%S} "
                "UTC, and is gone"
                for at, each in self.forgotten
            ),
            *(
                f"{each} cannot be read again: retention removed {len(each)} records"
                for each in self.removed
            ),
        )

    def since(self, at: datetime, connection: Connection) -> "Scope":
        """Only records from a time on."""
        partitions = [each.topic_partition for each in self.ranges]
        begins, firsts = (
            list_offsets(partitions, OffsetSpec.for_timestamp(max(0, ms)), connection)
            for ms in (int(at.timestamp() * 1000), 0)
        )
        later = tuple(each for each in self.forgotten if each[0] >= at)
        return replace(self.beginning(begins, firsts), forgotten=later)

    def beginning(
        self, begins: Mapping[TopicPartition, int], firsts: Mapping[TopicPartition, int]
    ) -> "Scope":
        """Only offsets from `begins` on; where that is negative, none. What retention removed lies
        before the first record that is left: if that one is too old, so is what was removed."""
        left, older = [], set()
        for each in self.ranges:
            partition = each.topic_partition
            begin = each.until if begins[partition] < 0 else begins[partition]
            if begin < each.until:
                left.append(replace(each, start=max(each.start, begin)))
            if 0 <= firsts[partition] < begin:
                older.add(partition)
        removed = tuple(each for each in self.removed if each.topic_partition not in older)
        return replace(self, ranges=tuple(left), removed=removed)

    def sampled(self, sample: "Sample") -> "Scope":
        return replace(self, ranges=windows(self.ranges, sample, random.SystemRandom()))


def unchecked(scope: Scope, ledger: LedgerSnapshot, *, partial: bool) -> tuple[str, ...]:
    """Why nothing was checked, if there is something that the ledger ledger. A ledger that claims
    nothing has been checked against its target; `partial` says that a part was asked for."""
    if count(scope.ranges) or not count(ledger.ranges.values()):
        return ()
    if partial:
        return (
            "no offset that the ledger claims lies in what was asked for, so nothing was checked; "
            "ask for an earlier --since, or leave out --since and --sample",
        )
    return ("no offset that the ledger claims can be read again, so nothing was checked",)


def scope_of(ledger: LedgerSnapshot, connection: Connection) -> Scope:
    """The part of the claimed ranges that can be read again, and what cannot."""
    names = {name for name, _ in ledger.ranges if is_topic(name) or is_forgotten(name)}
    ids = topic_ids(sorted(set(map(topic_of, names))), connection)
    others = {name for name in names if _is_other(name, ledger, ids)}
    unknown = [
        f"topic {topic} is not the one that was read: it was removed or recreated since"
        for topic in sorted(filter(is_topic, others))
    ]
    read = names - others
    partitions = sorted({(topic_of(name), n) for name, n in ledger.ranges if name in read})
    earliest = list_offsets(partitions, OffsetSpec.earliest(), connection)  # type: ignore[no-untyped-call]
    latest = list_offsets(partitions, OffsetSpec.latest(), connection)  # type: ignore[no-untyped-call]
    forgotten = _forgotten(ledger, others)
    found, beyond, removed = [], [], []
    for name, number in sorted(at for at in ledger.ranges if at[0] in read):
        held = held_here(ledger.ranges[name, number], ledger.lost)
        claimed = _apart(replace(held, topic=topic_of(name)), forgotten)
        partition = claimed.topic_partition
        begin = max(claimed.start, _readable(held, ledger, earliest[partition]))
        if claimed.until > latest[partition]:
            beyond.append(replace(claimed, start=latest[partition]))
            claimed = replace(claimed, until=latest[partition])
        if begin > claimed.start:
            removed.append(replace(claimed, until=min(begin, claimed.until)))
        if begin < claimed.until:
            found.append(replace(claimed, start=begin))
    anomalies: tuple[Anomaly, ...] = ()
    if beyond:
        said = tuple(str(each) for each in beyond[:5])
        anomalies = (Anomaly("overclaimed", sum(map(len, beyond)), said),)
    return Scope(
        ranges=tuple(found),
        doubts=(*ledger.unknown, *unknown),
        anomalies=anomalies,
        removed=tuple(removed),
        forgotten=forgotten,
    )


def _is_other(name: str, ledger: LedgerSnapshot, ids: Mapping[str, str]) -> bool:
    """Whether the topic is gone, or another one by now. Of one that was forgotten it must be sure
    that it is the same."""
    now = ids.get(topic_of(name))
    return now is None or ledger.topic_ids.get(name, now if is_topic(name) else None) != now


def _forgotten(
    ledger: LedgerSnapshot, others: Collection[str]
) -> tuple[tuple[datetime, Range], ...]:
    """What is claimed of topics that were forgotten and are gone."""
    return tuple(
        (forgotten_at(name), replace(claimed, topic=topic_of(name)))
        for (name, _), each in sorted(ledger.ranges.items())
        if name in others and is_forgotten(name) and len(claimed := held_here(each, ledger.lost))
    )


def _apart(claimed: Range, forgotten: Iterable[tuple[datetime, Range]]) -> Range:
    """What is claimed beyond a topic that had this name before: up to there rows of both have the
    same coordinates, and cannot be told apart."""
    before = [
        each.until for _, each in forgotten if each.topic_partition == claimed.topic_partition
    ]
    return replace(claimed, start=min(max([claimed.start, *before]), claimed.until))


def held_here(claimed: Range, lost: Iterable[Range]) -> Range:
    """What is claimed without the ranges that it begins with and that the target never got: they
    were lost before they were read, or written to another target."""
    for each in sorted(lost):
        if lies_in([each], *claimed.topic_partition, claimed.start):
            claimed = replace(claimed, start=min(each.until, claimed.until))
    return claimed


def _readable(claimed: Range, ledger: LedgerSnapshot, earliest: int) -> int:
    lost = [each.until for each in ledger.lost if each.topic_partition == claimed.topic_partition]
    return max(claimed.start, earliest, *lost)


def since_time(given: str | datetime | timedelta) -> datetime:
    """A time, or how long ago: `2026-01-31T12:00:00Z`, `2h`. A time without a zone is in UTC."""
    if isinstance(given, datetime):
        return given if given.tzinfo else given.replace(tzinfo=UTC)
    now = time.time() * 1000
    if isinstance(given, timedelta):
        found = moment(now - given / timedelta(milliseconds=1))
    elif re.fullmatch(r"[\d.]+\s*(ms|s|m|h|d)", given):
        found = moment(now - duration_ms(given))
    else:
        found = moment(time_ms(given))
    if found is None:
        raise ConfigError(f"{given!r} is not a time that a record can have.")
    return found


@dataclass(frozen=True)
class Sample:
    """How many records to look at: a number, or a share of all."""

    records: int | None = None
    share: float | None = None

    @classmethod
    def parse(cls, given: "str | int | Sample") -> "Sample":
        """`1%`, `100000` or a number."""
        if isinstance(given, cls):
            return given
        text = str(given)
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", text.replace(",", "").replace("_", ""))
        if match and match[2] and 0 < float(match[1]) <= 100:
            return cls(share=float(match[1]) / 100)
        if match and not match[2] and match[1].isdigit() and int(match[1]):
            return cls(records=int(match[1]))
        raise ConfigError(f"{text!r} is not a sample: write a number of records, or a share as 1%.")

    def of(self, total: int) -> int:
        return min(total, self.records or max(1, round(total * (self.share or 0))))


def windows(ranges: Sequence[Range], sample: Sample, lot: random.Random) -> tuple[Range, ...]:
    """Stretches of the ranges, chosen by lot, that hold about as many offsets as are asked for."""
    total = sum(map(len, ranges))
    if sample.of(total) >= total:
        return tuple(ranges)
    size = max(SMALLEST, -(-sample.of(total) // WINDOWS))
    counts = [-(-len(each) // size) for each in ranges]
    wanted = min(sum(counts), max(1, round(sample.of(total) / size)))
    found = []
    for chosen in sorted(lot.sample(range(sum(counts)), wanted)):
        number, index = chosen, 0
        while number >= counts[index]:
            number -= counts[index]
            index += 1
        whole = ranges[index]
        start = whole.start + number * size
        found.append(replace(whole, start=start, until=min(start + size, whole.until)))
    return tuple(found)


def sureness(records: int, stretches: int, total: int) -> str:
    """What a sample in which nothing is wrong says of the rest."""
    if not records or not stretches:
        return "nothing was looked at, so nothing is said"
    per_record = (1 - (1 - SURE) ** (1 / records)) * 1_000_000
    per_stretch = (1 - (1 - SURE) ** (1 / stretches)) * 100
    return (
        f"{records:,} records in {stretches} windows, of {total:,} offsets; if nothing is wrong in "
        f"them, then with {SURE:.0%} confidence fewer than {_rounded(per_record)} in a million are "
        f"wrong where faults are scattered, and fewer than {per_stretch:.0f} % of all windows "
        "where they come together"
    )


def _rounded(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.1g}"
