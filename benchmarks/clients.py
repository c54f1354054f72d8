"""`tallygate produce` and `consume` beside bare confluent-kafka loops that move the same bytes.

The bare loops do what a careful person would write: acks=all, idempotence, the same linger, batch
size and compression, and a look at whether everything was delivered. They check no JSON, count
nothing and keep no position. They are in `bare.py`.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.meter import Peak
from benchmarks.pagecache import PageCache
from benchmarks.ratios import conclude, ratio
from benchmarks.stage import own_stack
from tallygate import Topics
from tallygate.kafka.producer import producer_properties
from tallygate.lab.drills.isolation import environment

PARTITIONS = 4
EVERY = 0.02
"""Seconds between two looks at a process."""
BARE = Path(__file__).with_name("bare.py")


def measure(
    command: list[str], variables: Mapping[str, str], output: Path | None = None
) -> tuple[float, float]:
    """Seconds and MiB at the most of a command that must succeed."""
    started = time.monotonic()
    with (output or Path(os.devnull)).open("wb") as out, Path(os.devnull).open("wb") as null:
        process = subprocess.Popen(command, stdout=out, stderr=null, env=variables)
        peak, held = Peak(process.pid), 0.0
        while process.poll() is None:
            # Not what the kernel says in the end: that counts what this program held at the fork.
            with contextlib.suppress(OSError, StopIteration):  # it has just ended
                held = peak.size
            time.sleep(EVERY)
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)} failed with {process.returncode}")
    return time.monotonic() - started, held


def run(records: int, rounds: int) -> list[dict[str, Any]]:
    measured: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder, own_stack(brokers=3) as stack:
        source, target = Path(folder) / "source.jsonl", Path(folder) / "target"
        write_source(source, records)
        topics = Topics(stack.cluster.connection, stack.settings)
        variables = environment(stack.settings)
        memory = PageCache(stack.settings.state_dir)
        for number in range(rounds + 1):
            names = {kind: f"{kind}-{number}" for kind in ("bare", "plain", "transactional")}
            for name in names.values():
                topics.create(name, partitions=PARTITIONS)
            memory.fill()
            for step, command in commands(stack.bootstrap_servers, names, source, target).items():
                seconds, mebibytes = measure(
                    command, variables, target if step == "consume" else None
                )
                if "consume" in step:
                    check(target, records)
                if number:  # the first round warms up
                    measured.setdefault(step, []).append((seconds, mebibytes))
                print(f"round {number}: {step}: {seconds:.2f} s, {mebibytes:.0f} MiB", flush=True)
            topics.delete(list(names.values()))
    return [
        compare("produce", "bare produce", measured, 0.8, records),
        compare("transactional produce", "bare produce", measured, 0.7, records),
        compare("consume", "bare consume", measured, 0.7, records),
    ]


def commands(
    servers: str, names: Mapping[str, str], source: Path, target: Path
) -> dict[str, list[str]]:
    """What is measured, in turn; `consume` writes to its standard output."""
    plain, server = names["plain"], {"bootstrap.servers": servers}
    chosen = producer_properties(compression="lz4")
    writing = server | {name.replace("_", "."): value for name, value in chosen.items()}
    bare, ours = [sys.executable, str(BARE)], [sys.executable, "-m", "tallygate"]
    produce = [*ours, "produce", "-b", servers]
    return {
        "bare produce": [*bare, "produce", names["bare"], str(source), json.dumps(writing)],
        "produce": [*produce, plain, str(source)],
        "transactional produce": [
            *produce,
            names["transactional"],
            str(source),
            "--transactional",
        ],
        "bare consume": [*bare, "consume", plain, str(target), json.dumps(server)],
        "consume": [*ours, "consume", plain, "--exit", "-o", "raw", "-b", servers],
    }


def write_source(path: Path, records: int) -> None:
    with path.open("w") as file:
        for number in range(records):
            row = {"id": number, "account": number % 1000, "amount": number % 50000 / 100}
            line = json.dumps({**row, "at": "2026-01-01T00:00:00Z", "pad": ""})
            file.write(line[:-2] + "x" * (99 - len(line)) + '"}\n')


def check(path: Path, records: int) -> None:
    with path.open("rb") as file:
        found = sum(1 for _ in file)
    if found != records:
        sys.exit(f"{found} records came out of {records}: this does not count")


def compare(
    ours: str,
    peer: str,
    measured: dict[str, list[tuple[float, float]]],
    target: float,
    records: int,
) -> dict[str, Any]:
    seconds = statistics.median(second for second, _ in measured[ours])
    peers = statistics.median(second for second, _ in measured[peer])
    return ratio(
        f"{ours}, records/s",
        records / seconds,
        records / peers,
        target,
        peak_mib=round(max(mebibytes for _, mebibytes in measured[ours])),
        seconds=[round(second, 2) for second, _ in measured[ours]],
        peer_seconds=[round(second, 2) for second, _ in measured[peer]],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    conclude("clients", run(arguments.records, arguments.rounds))


if __name__ == "__main__":
    main()
