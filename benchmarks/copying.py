"""How PostgreSQL alone grows: COPY over two connections, with no Kafka and no Spark.

    python -m benchmarks.copying [--millions 50]

A pipeline that writes into it cannot grow better than this. The target beside it is the one that
pipelines have, to compare.
"""

import argparse
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg

from benchmarks.course import Course
from benchmarks.meter import Meter
from benchmarks.pagecache import PageCache
from benchmarks.ratios import conclude, ratio
from benchmarks.stage import own_stack

CONNECTIONS = 2
AT_ONCE = 100_000
PARTS = 10
ROWS = f"""
CREATE TABLE rows AS SELECT
    n::bigint AS id, (n % 1000)::bigint AS account, n / 4.0::float8 AS amount,
    '2026-01-01T00:00:00Z'::text AS at, 'note ' || lpad((n % 97)::text, 12, '0') AS note,
    'events'::text AS _topic, (n % 4)::int AS _partition, n::bigint AS _offset
FROM generate_series(1, {AT_ONCE}) n
"""


class Copying:
    def __init__(self, dsn: str, times: int) -> None:
        self._dsn, self._times = dsn, times
        self._lock = threading.Lock()
        self._taken = 0
        self.ends: list[float] = []

    def run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(ROWS.encode())
            connection.execute("CREATE TABLE copied (LIKE rows)")
            with connection.cursor().copy("COPY rows TO STDOUT (FORMAT binary)") as copy:
                block = b"".join(map(bytes, copy))
        with ThreadPoolExecutor(CONNECTIONS) as threads:
            for done in [threads.submit(self._copy, block) for _ in range(CONNECTIONS)]:
                done.result()

    def _copy(self, block: bytes) -> None:
        with psycopg.connect(self._dsn) as connection:
            while self._take():
                into = "COPY copied FROM STDIN (FORMAT binary)"
                with connection.cursor().copy(into) as copy:
                    copy.write(block)
                connection.commit()
                self.ends.append(time.time())

    def _take(self) -> bool:
        with self._lock:
            self._taken += 1
            return self._taken <= self._times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millions", type=int, default=50)
    parts = measure(parser.parse_args().millions)
    first, last = parts[0]["rows/s"], parts[-1]["rows/s"]
    conclude("copying", [ratio("COPY, rows/s, last part to first", last, first, 0.9, parts=parts)])


def measure(millions: int) -> list[dict[str, Any]]:
    """Each of some parts of the rows: how fast it came, and what PostgreSQL spent on it."""
    times = millions * 1_000_000 // AT_ONCE
    with own_stack(brokers=1) as stack:
        PageCache(stack.settings.state_dir).fill()
        copying = Copying(stack.dsn, times)
        with Meter() as meter:
            copying.run()
    course = Course.of_batches(sorted(copying.ends), AT_ONCE, times * AT_ONCE)
    found = []
    for number, part in enumerate(course.parts(PARTS)):
        spent = meter.between(part.begin, part.end)
        found.append(
            {
                "rows up to": (number + 1) * course.rows // PARTS,
                "rows/s": round(part.rate),
                "connections, CPU s / million": round(spent["PostgreSQL"] / part.rows * 1e6, 2),
                "upkeep, CPU s / million": round(spent["upkeep"] / part.rows * 1e6, 2),
            }
        )
    return found


if __name__ == "__main__":
    main()
