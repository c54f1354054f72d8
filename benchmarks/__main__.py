"""`python -m benchmarks`: what exactly-once costs here, beside the alternatives."""

import json
import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tallygate.cli.output import show_table, stop_well


class Sizes(StrEnum):
    small = "small"
    standard = "standard"
    large = "large"


def bench(
    parts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PART…",
            help="postgres, kafka, windows, files, latency, recovery, growth.",
            show_default="all",
        ),
    ] = None,
    size: Annotated[
        Sizes,
        typer.Option(
            help="small: 500,000 rows once, under 10 minutes; standard: 2 million, three rounds; "
            "large: up to 50 million."
        ),
    ] = Sizes.small,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="How often each takes its turn.", show_default="3, or 1"),
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="A folder for latest.json and figures.json.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="A page of Markdown to put the tables and pictures into.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="An object for each comparison.")] = False,
) -> None:
    """Measure Tallygate beside Spark's own sinks, Flink, Quix Streams and loops by hand, on a
    stack of its own. Flink and Quix Streams are installed on first use, into the cache folder."""
    from benchmarks.bench import SIZES
    from benchmarks.bench import bench as measure
    from benchmarks.report import write_json, write_page

    chosen = SIZES[size.value]
    if rounds is not None:
        chosen = replace(chosen, rounds=rounds)
    stop_well()
    findings = measure(chosen, parts or (), lambda said: print(said, file=sys.stderr, flush=True))
    if results is not None:
        write_json(findings, results)
    if page is not None:
        write_page(findings, chosen, page)
    rows = [
        {**each.as_json(), "met": "met" if each.met else "MISSED"} for each in findings.comparisons
    ]
    if json_:
        for each in findings.comparisons:
            print(json.dumps(each.as_json()))
        return
    names = ("measure", "ours", "peer", "ratio", "target", "met")
    show_table(rows, {name: name for name in names})
    for name, reason in findings.failed.items():
        print(f"{name} does not count: {reason}")


if __name__ == "__main__":
    typer.run(bench)
