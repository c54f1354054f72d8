"""Nested values: what a table holds does not depend on whether there is a transform."""

import json
from typing import Any

import pytest

from fixtures.flows import Flow
from tallygate import Kafka, Postgres, Producer

FIELDS = (
    "id long, m map<string, long>, s struct<x: binary, d: decimal(20, 4), at: timestamp, "
    "day: date, n: string>, many array<map<string, decimal(4, 2)>>"
)
ROWS: list[dict[str, Any]] = [
    {
        "id": 1,
        "m": {"a": 1, "b": None},
        "s": {
            "x": "AGFiY/8=",
            "d": "12345678901234.5600",
            "at": "2026-01-31T12:00:00.123456+01:00",
            "day": "2026-01-31",
        },
        "many": [{"k": "1.50"}, {}],
    },
    {"id": 2, "m": {}, "s": {}, "many": []},
    {"id": 3},
]
HELD = [
    (
        1,
        {"a": 1, "b": None},
        {
            "x": "AGFiY/8=",
            "d": 12345678901234.56,
            "at": "2026-01-31T11:00:00.123456Z",
            "day": "2026-01-31",
            "n": None,
        },
        [{"k": 1.5}, {}],
    ),
    (2, {}, dict.fromkeys(("x", "d", "at", "day", "n")), []),
    (3, None, None, None),
]


@pytest.mark.parametrize("transform", [None, "SELECT * FROM source"])
@pytest.mark.parametrize("driver_rows", [0, 1000])
def test_nested_values(flow: Flow, transform: str | None, driver_rows: int) -> None:
    with Producer(flow.stack.cluster.connection) as producer:
        for row in ROWS:
            producer.send(flow.name, json.dumps(row))
    flow.run(
        source=Kafka(flow.name, schema=FIELDS),
        transform=transform,
        sink=Postgres(flow.name, driver_rows=driver_rows),
    )
    assert flow.rows("SELECT id, m, s, many FROM {table} ORDER BY id") == HELD
    exact = "SELECT s->>'d', many->0->>'k' FROM {table} WHERE id = 1"
    assert flow.rows(exact) == [("12345678901234.5600", "1.50")]
