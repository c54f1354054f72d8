"""Weather stations send a reading a day, and often send it again: each is kept once.

python examples/weather_stations.py
"""

import json
import random
from datetime import datetime, timedelta
from typing import Any

from stage import Example, Records, play

TOPIC = "readings"
BEGIN = datetime(2026, 3, 1, 6)


def readings() -> list[dict[str, Any]]:
    """In order of their sending; a third of them are sent twice, the second time a bit later."""
    chance = random.Random(2)
    sent = []
    for day in range(20):
        for station in range(15):
            at = BEGIN + timedelta(days=day, minutes=station)
            reading = {
                "station": f"s{station:02}",
                "day": at.date().isoformat(),
                "at": at.isoformat(sep=" "),
                "celsius": round(chance.uniform(-5, 25), 1),
            }
            sent.append((at, reading))
            if chance.random() < 0.33:
                sent.append((at + timedelta(hours=chance.randrange(1, 30)), reading))
    return [reading for _, reading in sorted(sent, key=lambda pair: pair[0])]


def records() -> Records:
    for reading in readings():
        yield reading["station"], json.dumps(reading)


def once() -> list[tuple[Any, ...]]:
    return sorted({(r["station"], r["day"], r["celsius"]) for r in readings()})


EXAMPLES = [
    Example(
        name="readings_once",
        topics={TOPIC: records},
        fields={
            "source": {
                "topic": TOPIC,
                "schema": "station string, day string, at timestamp, celsius double",
                "max_records": 120,
            },
            "transform": [
                {"watermark": {"at": "3 days"}},
                {"name": "deduplicated", "dedup": ["station", "day"]},
                {"sql": "SELECT station, day, celsius FROM deduplicated"},
            ],
        },
        expected=once,
        columns=("station", "day", "celsius"),
    ),
]

if __name__ == "__main__":
    play(EXAMPLES)
