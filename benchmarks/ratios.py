"""What each benchmark of this folder says in the end: ours beside a peer's."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import machine
from benchmarks.targets import compare
from tallygate.cli.output import show_table

__all__ = ["conclude", "ratio"]

RESULTS = Path(__file__).parent / "results"
COLUMNS = ("measure", "ours", "peer", "ratio", "target", "met")


def ratio(
    measure: str, ours: float, peer: float, target: float, *, at_most: bool = False, **more: Any
) -> dict[str, Any]:
    """A comparison, and what else was noted on the way."""
    return {**compare(measure, ours, peer, target, at_most=at_most).as_json(), **more}


def conclude(name: str, results: Sequence[dict[str, Any]]) -> None:
    """Keep the results in bench/results/NAME.json, and print them."""
    report = {"machine": machine(), "results": results}
    (RESULTS / f"{name}.json").write_text(json.dumps(report, indent=2) + "\n")
    show_table(results, {column: column for column in COLUMNS})
