"""What a run found: as JSON for programs, as a page with pictures for people."""

import importlib.metadata
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path

import psutil

from benchmarks import flink, quix
from benchmarks.bench import Size
from benchmarks.contenders import CONTENDERS
from benchmarks.findings import Figure, Findings
from benchmarks.meter import KINDS
from benchmarks.plots import bars
from benchmarks.targets import TARGETS
from tallygate.jvm.jars import KAFKA_VERSION

__all__ = ["machine", "write_json", "write_page"]

TITLES = {
    "postgres": "Kafka → PostgreSQL, rows a second",
    "kafka": "Kafka → Kafka, rows a second",
    "windows": "Windowed counts by upsert, rows a second",
    "files": "Kafka → Parquet, rows a second",
}
BEGIN = "<!-- what was measured: written by `make bench` -->"
END = "<!-- the end of what was measured -->"


def machine() -> dict[str, str | int]:
    """Where it was measured, and with what."""
    packages = ("pyspark", "pyarrow", "confluent-kafka", "adbc-driver-postgresql")
    return {
        "cores": os.cpu_count() or 0,
        "memory (GiB)": round(psutil.virtual_memory().total / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "kafka": KAFKA_VERSION,
        **{name: importlib.metadata.version(name) for name in packages},
        "peers": f"{flink.PACKAGE}, {quix.PACKAGE}",
    }


def write_json(findings: Findings, folder: Path) -> None:
    """`latest.json`: the comparisons; `figures.json`: what they were made of."""
    folder.mkdir(parents=True, exist_ok=True)
    compared = [each.as_json() for each in findings.comparisons]
    (folder / "latest.json").write_text(json.dumps(compared, indent=2) + "\n")
    figures = {
        "machine": machine(),
        "figures": [
            {
                "name": each.name,
                "promise": each.promise,
                "settings": each.settings,
                "unit": each.unit,
                "median": round(each.median, 3),
                "values": [round(value, 3) for value in each.values],
                "cpu seconds for a million rows": {
                    kind: round(each.spent(kind), 2) for kind in KINDS if each.cpu
                },
                "memory in MiB": round(each.held) if each.memory and each.held else None,
            }
            for each in findings.figures.values()
        ],
        "did not count": findings.failed,
    }
    (folder / "figures.json").write_text(json.dumps(figures, indent=2) + "\n")


def write_page(findings: Findings, size: Size, page: Path) -> None:
    """Put what was measured into the page, between its two marks; pictures go beside it."""
    lines = [BEGIN, "", _setting(size), "", *_compared(findings), ""]
    pictures = page.parent / page.stem
    pictures.mkdir(parents=True, exist_ok=True)
    for part, contenders in CONTENDERS.items():
        figures = [
            findings.figures[each.name] for each in contenders if each.name in findings.figures
        ]
        if not figures:
            continue
        (pictures / f"{part}.svg").write_text(bars(TITLES[part], figures))
        lines += [f"### {TITLES[part]}", "", f"![{TITLES[part]}]({page.stem}/{part}.svg)", ""]
        lines += [*_figures(sorted(figures, key=lambda figure: -figure.median)), ""]
    if findings.growth:
        grown = [findings.figures[name] for name in findings.growth]
        lines += ["### How it grows: Kafka → PostgreSQL, rows a second", "", *_figures(grown), ""]
    for name, reason in findings.failed.items():
        lines += [f"{name} does not count: {' '.join(reason.split())[:300]}", ""]
    text = page.read_text() if page.exists() else f"# Benchmarks\n\n{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(before + "\n".join(lines) + END + after)


def _setting(size: Size) -> str:
    facts = ", ".join(f"{name} {value}" for name, value in machine().items())
    return (
        f"{size.rows:,} JSON records of about 100 bytes in 4 partitions of one broker, "
        f"{size.rounds} rounds in turns, medians. {facts}."
    )


def _compared(findings: Findings) -> list[str]:
    lines = ["| measure | ours | peer | ratio | target | |", "|---|--:|--:|--:|--:|---|"]
    limits = {target.measure: "≤" if target.at_most else "≥" for target in TARGETS}
    for each in findings.comparisons:
        met = "met" if each.met else "**missed**"
        lines.append(
            f"| {each.measure} | {_number(each.ours)} | {_number(each.peer)} | {each.ratio:.2f} | "
            f"{limits[each.measure]} {each.target:g} | {met} |"
        )
    return lines


def _figures(figures: Sequence[Figure]) -> list[str]:
    lines = [
        f"| | promise | rows/s | spread | CPU s / million | {' | '.join(KINDS)} | MiB | settings |",
        f"|---|---|--:|--:|--:|{'--:|' * len(KINDS)}--:|---|",
    ]
    for each in figures:
        spread = f"{min(each.values):,.0f} to {max(each.values):,.0f}"
        spent = [each.spent(kind) for kind in KINDS]
        parts = " | ".join(f"{seconds:.1f}" for seconds in spent)
        lines.append(
            f"| {each.name} | {each.promise} | {each.median:,.0f} | {spread} | {sum(spent):.1f} | "
            f"{parts} | {f'{each.held:,.0f}' if each.held else '-'} | {each.settings} |"
        )
    return lines


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"
