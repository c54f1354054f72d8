"""The number of what rows are made by: it changes with that, and with nothing else."""

from typing import Any

import pytest

from tallygate import Kafka, Pipeline, Postgres
from tallygate.engine.fingerprint import fingerprint_of


def _made(time_zone: str = "UTC", **fields: Any) -> str:
    given: dict[str, Any] = {
        "name": "p",
        "source": Kafka("t", schema="id long"),
        "transform": "SELECT id FROM source",
        "sink": Postgres("rows"),
    }
    return fingerprint_of(Pipeline(**{**given, **fields}), time_zone)


def double(source: Any) -> Any:
    return source.selectExpr("2 * id AS id")


def triple(source: Any) -> Any:
    return source.selectExpr("3 * id AS id")


@pytest.mark.parametrize(
    "other",
    [
        {"transform": "SELECT id + 1 AS id FROM source"},
        {"transform": None},
        {"transform": double},
        {"transform": [{"sql": "SELECT id FROM source WHERE id > 3"}]},
        {"source": Kafka("t", schema="id int")},
        {"source": Kafka("t", schema="id long", headers=True)},
        {"sink": Postgres("rows", key="id", mode="upsert")},
        {"parameters": {"least": 3}, "transform": "SELECT id FROM source WHERE id > :least"},
        {"time_zone": "Europe/Vienna"},
    ],
)
def test_it_changes_with_what_makes_rows(other: dict[str, Any]) -> None:
    assert _made(**other) != _made()


@pytest.mark.parametrize(
    "other",
    [
        {"name": "q"},
        {"source": Kafka(("t", "u"), schema="id long", max_records=7)},
        {"sink": Postgres("others", driver_rows=1)},
        {"delivery": "at-least-once"},
        {"trigger": "10s"},
    ],
)
def test_it_stays_whatever_else_is_changed(other: dict[str, Any]) -> None:
    assert _made(**other) == _made()


def test_functions_are_told_from_each_other_by_what_they_do() -> None:
    assert _made(transform=double) == _made(transform=double) != _made(transform=triple)
