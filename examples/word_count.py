"""Counting words that come as lines of text, from Kafka and from a socket.

python examples/word_count.py            from Kafka into PostgreSQL
python examples/word_count.py PORT       from a socket to the screen: run `nc -lk PORT` first
"""

import random
import sys
from collections import Counter
from typing import Any

from stage import Example, Records, play

from tallygate import Pipeline

TOPIC = "lines"
WORDS = [
    "each",
    "record",
    "once",
    "whatever",
    "crashes",
    "and",
    "an",
    "audit",
    "that",
    "proves",
    "it",
]
COUNT = "SELECT word, count(*) AS times FROM words GROUP BY word"
SPLIT = {"name": "words", "sql": "SELECT explode(split(value, ' ')) AS word FROM source"}


def lines() -> list[str]:
    chance = random.Random(3)
    return [" ".join(chance.choices(WORDS, k=chance.randrange(1, 9))) for _ in range(900)]


def records() -> Records:
    for number, line in enumerate(lines()):
        yield str(number), line


def counted() -> list[tuple[Any, ...]]:
    return list(Counter(word for line in lines() for word in line.split(" ")).items())


EXAMPLES = [
    Example(
        name="word_count",
        topics={TOPIC: records},
        fields={
            "source": {"topic": TOPIC, "format": "text", "max_records": 300},
            "transform": [SPLIT, {"sql": COUNT}],
        },
        expected=counted,
        columns=("word", "times"),
        key=("word",),
    ),
]


def from_socket(port: int) -> Pipeline:
    return Pipeline(
        name="word_count_socket",
        source={"port": port},
        transform=[SPLIT, {"sql": COUNT}],
        sink={"console": 20, "mode": "replace"},
        delivery="at-most-once",
    )


if __name__ == "__main__":
    if sys.argv[1:]:
        from_socket(int(sys.argv[1])).run()
    else:
        play(EXAMPLES)
