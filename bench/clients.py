"""`tallygate produce` and `consume` beside bare confluent-kafka loops that move the same bytes.

The bare loops do what a careful person would write: acks=all, idempotence, the same linger, batch
size and compression, and a look at whether everything was delivered. They check no JSON, count
nothing and keep no position.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from ratios import conclude, ratio

from tallygate import Settings, Stack, Topics
from tallygate.kafka.producer import producer_properties

PARTITIONS = 4


def bare_produce(servers: str, topic: str, path: str) -> None:
    properties = {n.replace("_", "."): v for n, v in producer_properties(compression="lz4").items()}
    producer = Producer({"bootstrap.servers": servers, **properties})
    with Path(path).open("rb") as file:
        for number, line in enumerate(file):
            while True:
                try:
                    producer.produce(topic, line[:-1])
                    break
                except BufferError:
                    producer.poll(0.05)
            if number % 10_000 == 0:
                producer.poll(0)
    if producer.flush(60):
        sys.exit("not everything was delivered")


def bare_consume(servers: str, topic: str, path: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "bare",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    ended = 0
    with Path(path).open("wb") as file:
        while ended < PARTITIONS:
            for message in consumer.consume(10_000, 0.2):
                if message.error():
                    ended += 1
                else:
                    file.write((message.value() or b"") + b"\n")
    consumer.close()


def measure(command: list[str], output: Path | None = None) -> tuple[float, float]:
    """Seconds and MiB at the most of a command that must succeed."""
    started = time.monotonic()
    with (output or Path(os.devnull)).open("wb") as out, Path(os.devnull).open("wb") as null:
        process = subprocess.Popen(command, stdout=out, stderr=null)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)} failed with {process.returncode}")
    return time.monotonic() - started, usage.ru_maxrss / 1024


def run(records: int, rounds: int) -> list[dict[str, Any]]:
    python, tallygate = sys.executable, [sys.executable, "-m", "tallygate"]
    measured: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder, Stack("bench", purge=True) as stack:
        source, target = Path(folder) / "source.jsonl", Path(folder) / "target"
        write_source(source, records)
        servers, topics = stack.bootstrap_servers, Topics(stack.cluster.connection)
        for number in range(rounds + 1):
            names = {kind: f"{kind}-{number}" for kind in ("bare", "plain", "transactional")}
            for name in names.values():
                topics.create(name, partitions=PARTITIONS)
            produce = [*tallygate, "produce", "-b", servers]
            bare = [python, __file__, "--bare", servers]
            consume = [*tallygate, "consume", names["plain"], "--exit", "-o", "raw", "-b", servers]
            steps: dict[str, Callable[[], tuple[float, float]]] = {
                "bare produce": lambda b=bare, n=names: measure(
                    [*b, "produce", n["bare"], str(source)]
                ),
                "produce": lambda p=produce, n=names: measure([*p, n["plain"], str(source)]),
                "transactional produce": lambda p=produce, n=names: measure(
                    [*p, n["transactional"], str(source), "--transactional"]
                ),
                "bare consume": lambda b=bare, n=names: measure(
                    [*b, "consume", n["plain"], str(target)]
                ),
                "consume": lambda c=consume: measure(c, target),
            }
            for step, act in steps.items():
                seconds, mebibytes = act()
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
    parser.add_argument("--bare", nargs=4, metavar=("SERVERS", "WHAT", "TOPIC", "FILE"))
    arguments = parser.parse_args()
    if arguments.bare:
        servers, what, topic, path = arguments.bare
        (bare_produce if what == "produce" else bare_consume)(servers, topic, path)
        return
    Settings.load()
    conclude("clients", run(arguments.records, arguments.rounds))


if __name__ == "__main__":
    main()
