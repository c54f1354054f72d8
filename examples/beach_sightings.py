"""Animals seen at beaches, as they come in: counted, windowed, pivoted and joined.

python examples/beach_sightings.py
"""

import csv
import json
import random
import tempfile
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from stage import Example, Records, play

SIGHTINGS, CLOSURES = "sightings", "closures"
BEGIN = datetime(2026, 7, 1)
BEACHES = ("north", "south", "west")
NAMES = {1: "shark", 2: "turtle", 3: "ray", 4: "seal"}
KINDS = (1, 2, 3, 4, 77, 78)
"""77 and 78 are in no list of animals."""
CLOSED = [(beach, day) for day in range(0, 12, 3) for beach in ("north", "west")]
COUNT, PACE = 1500, timedelta(minutes=12)


@cache
def sightings() -> tuple[dict[str, Any], ...]:
    chance = random.Random(4)
    seen = []
    for number in range(COUNT):
        at = BEGIN + number * PACE + timedelta(minutes=chance.randrange(-90, 90))
        seen.append(
            {
                "id": number,
                "beach": BEACHES[number % 3],
                "animal": chance.choice(KINDS),
                "at": at.isoformat(sep=" "),
            }
        )
    return tuple(seen)


def _ends(count: int, pace: timedelta = PACE) -> Iterable[tuple[str, dict[str, Any]]]:
    """Records after all others that are no sightings: they move the watermark on, in every
    partition and batch after batch, until all windows are closed."""
    for number in range(count):
        at = (BEGIN + COUNT * PACE + number * pace).isoformat(sep=" ")
        yield BEACHES[number % 3], {"id": -1, "beach": "none", "animal": 0, "at": at}


def sighting_records() -> Records:
    for each in sightings():
        yield each["beach"], json.dumps(each)
    for key, end in _ends(1000):
        yield key, json.dumps(end)


def closure_records() -> Records:
    for beach, day in CLOSED:
        at = BEGIN + timedelta(days=day)
        yield beach, json.dumps({"beach": beach, "at": at.isoformat(sep=" ")})
    for key, end in _ends(30, timedelta(hours=3)):
        yield key, json.dumps(end)


def names_file() -> str:
    path = Path(tempfile.gettempdir()) / "tallygate-animals.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(NAMES.items())
    return str(path)


def _at(each: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(each["at"])


def by_animal() -> list[tuple[Any, ...]]:
    return list(Counter(each["animal"] for each in sightings()).items())


def by_window() -> list[tuple[Any, ...]]:
    def start(at: datetime) -> datetime:
        return at.replace(minute=at.minute // 15 * 15, second=0)

    return [
        (*key, n) for key, n in Counter((start(_at(s)), s["animal"]) for s in sightings()).items()
    ]


def by_sliding_window() -> list[tuple[Any, ...]]:
    """Each sighting is in the two windows of an hour that begin before it, half an hour apart."""
    counts: Counter[tuple[datetime, str]] = Counter()
    for each in sightings():
        at = _at(each)
        last = at.replace(minute=at.minute // 30 * 30)
        counts.update((last - timedelta(minutes=back), each["beach"]) for back in (0, 30))
    return [(*key, n) for key, n in counts.items()]


GAP = timedelta(minutes=95, seconds=30)


def visits() -> list[tuple[Any, ...]]:
    """Sightings of one animal at one beach with no longer pause than the gap between two."""
    found = []
    for beach in BEACHES:
        for animal in KINDS:
            times = sorted(
                _at(s) for s in sightings() if (s["beach"], s["animal"]) == (beach, animal)
            )
            begins = [n for n, at in enumerate(times) if n == 0 or at - times[n - 1] > GAP]
            for first, after in zip(begins, [*begins[1:], len(times)], strict=True):
                found.append((times[first], beach, animal, after - first))
    return found


def ranked() -> list[tuple[Any, ...]]:
    return list(Counter(each["beach"] for each in sightings() if each["animal"] == 1).items())


def by_beach() -> list[tuple[Any, ...]]:
    counts = Counter((each["beach"], NAMES.get(each["animal"], "other")) for each in sightings())
    columns = ("shark", "turtle", "other")
    rest = {beach: counts[beach, "ray"] + counts[beach, "seal"] for beach in BEACHES}
    return [
        (
            beach,
            *(counts[beach, name] + (rest[beach] if name == "other" else 0) for name in columns),
        )
        for beach in BEACHES
    ]


def known() -> list[tuple[Any, ...]]:
    return [(s["id"], NAMES[s["animal"]]) for s in sightings() if s["animal"] in NAMES]


def unknown() -> list[tuple[Any, ...]]:
    return [(s["id"], s["animal"]) for s in sightings() if s["animal"] not in NAMES]


def sharks_on_closed_days() -> list[tuple[Any, ...]]:
    closed = {(beach, (BEGIN + timedelta(days=day)).date()) for beach, day in CLOSED}
    return [
        (s["id"], s["beach"])
        for s in sightings()
        if s["animal"] == 1 and (s["beach"], _at(s).date()) in closed
    ]


def sharks_on_open_days() -> list[tuple[Any, ...]]:
    closed = set(sharks_on_closed_days())
    sharks = [(s["id"], s["beach"]) for s in sightings() if s["animal"] == 1]
    return [each for each in sharks if each not in closed]


SOURCE = {
    "topic": SIGHTINGS,
    "schema": "id long, beach string, animal long, at timestamp",
    "max_records": 400,
}
CLOSURE_SOURCE = {"topic": CLOSURES, "schema": "beach string, at timestamp", "max_records": 20}
ANIMALS = {"file": names_file(), "schema": "number long, name string"}
TOPICS = {SIGHTINGS: sighting_records}
REAL = {"name": "real", "sql": "SELECT * FROM source WHERE id >= 0"}
JOIN = {"with": "animals", "on": "real.animal = animals.number"}
WATERMARK = {"watermark": {"at": "8 hours"}}
SIDES = [
    {"name": "seen", "from": "sightings", **WATERMARK},
    {"name": "closed", "from": "closures", "watermark": {"at": "1 day"}},
]
ON_THAT_DAY = """
    seen.beach = closed.beach AND seen.at >= closed.at AND seen.at < closed.at + INTERVAL 1 DAY
"""
UNMATCHED_SHARK = "CASE WHEN closed.beach IS NULL THEN seen.animal END = 1"
"""Of both sides on purpose. Spark moves a condition on one side below that side's watermark, which
then would not hear of the records at the end that are no sharks, and wait for ever."""

EXAMPLES = [
    Example(
        name="sightings_by_animal",
        topics=TOPICS,
        fields={
            "source": SOURCE,
            "transform": [REAL, {"group_by": "animal", "aggregate": {"seen": "count(*)"}}],
        },
        expected=by_animal,
        columns=("animal", "seen"),
        key=("animal",),
    ),
    Example(
        name="sightings_by_window",
        topics=TOPICS,
        fields={
            "source": SOURCE,
            "transform": [
                WATERMARK,
                {
                    "name": "windows",
                    "window": {"on": "at", "size": "15 minutes"},
                    "group_by": "animal",
                    "aggregate": {"seen": "count(*)", "last": "max(id)"},
                },
                {"sql": "SELECT window_start, animal, seen FROM windows WHERE last >= 0"},
            ],
        },
        expected=by_window,
        columns=("window_start", "animal", "seen"),
    ),
    Example(
        name="sightings_by_sliding_window",
        topics=TOPICS,
        fields={
            "source": SOURCE,
            "transform": [
                WATERMARK,
                {
                    "name": "windows",
                    "window": {"on": "at", "size": "1 hour", "slide": "30 minutes"},
                    "group_by": "beach",
                    "aggregate": {"seen": "count(*)", "last": "max(id)"},
                },
                {"sql": "SELECT window_start, beach, seen FROM windows WHERE last >= 0"},
            ],
        },
        expected=by_sliding_window,
        columns=("window_start", "beach", "seen"),
    ),
    Example(
        name="visits",
        topics=TOPICS,
        fields={
            "source": SOURCE,
            "transform": [
                WATERMARK,
                {
                    "name": "sessions",
                    "window": {"on": "at", "gap": "95 minutes 30 seconds"},
                    "group_by": ["beach", "animal"],
                    "aggregate": {"seen": "count(*)", "last": "max(id)"},
                },
                {"sql": "SELECT window_start, beach, animal, seen FROM sessions WHERE last >= 0"},
            ],
        },
        expected=visits,
        columns=("window_start", "beach", "animal", "seen"),
    ),
    Example(
        name="beaches_by_sharks",
        topics=TOPICS,
        fields={
            "source": SOURCE,
            "transform": """
                SELECT beach, count(*) AS sharks FROM source WHERE animal = 1
                GROUP BY beach ORDER BY sharks DESC
            """,
        },
        expected=ranked,
        columns=("beach", "sharks"),
        replace=True,
    ),
    Example(
        name="animals_by_beach",
        topics=TOPICS,
        fields={
            "source": SOURCE,
            "static": {"animals": ANIMALS},
            "transform": [
                REAL,
                {"join": {**JOIN, "how": "left"}},
                {"group_by": "beach", "pivot": {"on": "name", "values": ["shark", "turtle"]}},
            ],
        },
        expected=by_beach,
        columns=("beach", "shark", "turtle", "other"),
        key=("beach",),
    ),
    Example(
        name="known_animals",
        topics=TOPICS,
        fields={
            "source": SOURCE,
            "static": {"animals": ANIMALS},
            "transform": [
                REAL,
                {"name": "named", "join": JOIN},
                {"sql": "SELECT id, name FROM named"},
            ],
        },
        expected=known,
        columns=("id", "name"),
    ),
    Example(
        name="unknown_animals",
        topics=TOPICS,
        fields={
            "source": SOURCE,
            "static": {"animals": ANIMALS},
            "transform": [
                REAL,
                {"name": "named", "join": {**JOIN, "how": "left"}},
                {"sql": "SELECT id, animal FROM named WHERE name IS NULL"},
            ],
        },
        expected=unknown,
        columns=("id", "animal"),
    ),
    Example(
        name="sharks_on_closed_days",
        topics={**TOPICS, CLOSURES: closure_records},
        fields={
            "sources": {"sightings": SOURCE, "closures": CLOSURE_SOURCE},
            "transform": [
                *SIDES,
                {
                    "sql": f"SELECT seen.id, seen.beach FROM seen JOIN closed ON {ON_THAT_DAY} "
                    "WHERE seen.animal = 1"
                },
            ],
        },
        expected=sharks_on_closed_days,
        columns=("id", "beach"),
    ),
    Example(
        name="sharks_on_open_days",
        topics={**TOPICS, CLOSURES: closure_records},
        fields={
            "sources": {"sightings": SOURCE, "closures": CLOSURE_SOURCE},
            "transform": [
                *SIDES,
                {
                    "sql": "SELECT seen.id, seen.beach FROM seen LEFT JOIN closed "
                    f"ON {ON_THAT_DAY} WHERE {UNMATCHED_SHARK}"
                },
            ],
        },
        expected=sharks_on_open_days,
        columns=("id", "beach"),
    ),
]

if __name__ == "__main__":
    play(EXAMPLES)
