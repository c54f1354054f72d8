"""What every benchmark says in the end: ours against a peer's, as a ratio with its target."""

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["conclude", "ratio"]

RESULTS = Path(__file__).parent / "results"


def ratio(
    measure: str, ours: float, peer: float, target: float, *, at_most: bool = False, **more: Any
) -> dict[str, Any]:
    found = ours / peer
    return {
        "measure": measure,
        "ours": round(ours, 3),
        "peer": round(peer, 3),
        "ratio": round(found, 3),
        "target": target,
        "met": found <= target if at_most else found >= target,
        **more,
    }


def conclude(name: str, results: Sequence[dict[str, Any]]) -> None:
    """Keep the results in bench/results/NAME.json, and print them."""
    RESULTS.mkdir(exist_ok=True)
    machine = {"cores": os.cpu_count(), "python": platform.python_version()}
    report = {"machine": machine, "results": results}
    (RESULTS / f"{name}.json").write_text(json.dumps(report, indent=2) + "\n")
    for each in results:
        met = "met" if each["met"] else "MISSED"
        print(
            f"{each['measure']:<58} {each['ours']:>12,.2f} {each['peer']:>12,.2f} "
            f"ratio {each['ratio']:.2f}, target {each['target']:g}: {met}"
        )
