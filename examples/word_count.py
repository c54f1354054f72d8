"""Counting words that come as lines of text, from Kafka and from a socket.

python examples/word_count.py            from Kafka into PostgreSQL
python examples/word_count.py socket     from a socket to the screen, until Ctrl-C
python examples/word_count.py PORT       the same from a server of yours, such as `nc -lk PORT`
"""

import random
import sys
from collections import Counter
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from stage import Example, Records, play, serve

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
LONG = "SELECT word, count(*) AS times FROM shouted WHERE length(word) > :least GROUP BY word"
SPLIT = {"name": "words", "sql": "SELECT explode(split(value, ' ')) AS word FROM source"}


def lines() -> list[str]:
    chance = random.Random(3)
    return [" ".join(chance.choices(WORDS, k=chance.randrange(1, 9))) for _ in range(900)]


def records() -> Records:
    for number, line in enumerate(lines()):
        yield str(number), line


def counted() -> list[tuple[Any, ...]]:
    return list(Counter(word for line in lines() for word in line.split(" ")).items())


def counted_long() -> list[tuple[Any, ...]]:
    return [(word.upper(), times) for word, times in counted() if len(word) > 4]


def shout(words: DataFrame) -> DataFrame:
    """A step in Python, between two in SQL."""
    return words.select(f.upper("word").alias("word"))


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
    Example(
        name="long_words",
        topics={TOPIC: records},
        fields={
            "source": {"topic": TOPIC, "format": "text", "max_records": 300},
            "transform": [
                SPLIT,
                {"name": "shouted", "function": "word_count:shout"},
                {"sql": LONG},
            ],
            "parameters": {"least": 4},
        },
        expected=counted_long,
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


def printed() -> str:
    """What comes on the screen in the end, but for the order."""
    rows = [f"  word={word}, times={times}" for word, times in sorted(counted())]
    return "\n".join([f"batch 0: {len(rows)} rows", *rows[:3], "  …"])


PRINTED = {"From a socket, all counts again after each batch:": printed}

if __name__ == "__main__":
    if sys.argv[1:]:
        from_socket(serve(lines()) if sys.argv[1] == "socket" else int(sys.argv[1])).run()
    else:
        play(EXAMPLES)
