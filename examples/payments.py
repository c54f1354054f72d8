"""Payments to balances: one row for each account, always the sum of all its payments.

python examples/payments.py
"""

import json
import random
from collections import defaultdict
from decimal import Decimal
from typing import Any

from stage import Example, Records, play

TOPIC = "payments"


def payments() -> list[dict[str, Any]]:
    chance = random.Random(1)
    return [
        {"id": n, "account": f"a{chance.randrange(20):02}", "cents": chance.randrange(-500, 1000)}
        for n in range(2000)
    ]


def records() -> Records:
    for payment in payments():
        yield payment["account"], json.dumps(payment)


def balances() -> list[tuple[Any, ...]]:
    sums: dict[str, int] = defaultdict(int)
    counts: dict[str, int] = defaultdict(int)
    for payment in payments():
        sums[payment["account"]] += payment["cents"]
        counts[payment["account"]] += 1
    return [(name, counts[name], Decimal(sums[name]) / 100) for name in sums]


EXAMPLES = [
    Example(
        name="balances",
        topics={TOPIC: records},
        fields={
            "source": {
                "topic": TOPIC,
                "schema": "id long, account string, cents long",
                "max_records": 700,
            },
            "transform": """
                SELECT account, count(*) AS payments,
                       CAST(sum(cents) / 100 AS decimal(18, 2)) AS balance
                FROM source GROUP BY account
            """,
        },
        expected=balances,
        columns=("account", "payments", "balance"),
        key=("account",),
    ),
]

if __name__ == "__main__":
    play(EXAMPLES)
