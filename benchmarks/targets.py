"""What is compared with what, and how it is to come out."""

from dataclasses import asdict, dataclass
from typing import Any

__all__ = [
    "FEW_PARTITIONS",
    "LONG_LEDGER",
    "MANY_PARTITIONS",
    "TARGETS",
    "Comparison",
    "Target",
    "compare",
]


@dataclass(frozen=True)
class Target:
    measure: str
    ours: str
    peer: str
    limit: float
    at_most: bool = False

    def compared(self, ours: float, peer: float) -> "Comparison":
        return compare(self.measure, ours, peer, self.limit, at_most=self.at_most)


@dataclass(frozen=True)
class Comparison:
    measure: str
    ours: float
    peer: float
    ratio: float
    target: float
    met: bool

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def compare(
    measure: str, ours: float, peer: float, target: float, *, at_most: bool = False
) -> Comparison:
    found = ours / peer
    met = found <= target if at_most else found >= target
    return Comparison(measure, round(ours, 3), round(peer, 3), round(found, 3), target, met)


FEW_PARTITIONS, MANY_PARTITIONS, LONG_LEDGER = "4 partitions", "64 partitions", "long ledger"
APPEND, WITH_SQL, TOPIC = "tallygate", "tallygate, SQL", "tallygate to topic"
TARGETS = (
    Target("PostgreSQL append, rows/s against Spark JDBC tuned", APPEND, "spark jdbc tuned", 1.6),
    Target("PostgreSQL append, rows/s against Spark JDBC as it comes", APPEND, "spark jdbc", 2.0),
    Target("PostgreSQL append, rows/s against from_json into noop", APPEND, "spark noop", 0.8),
    Target(
        "PostgreSQL append with SQL, rows/s against Spark JDBC tuned",
        WITH_SQL,
        "spark jdbc tuned, SQL",
        1.3,
    ),
    Target("PostgreSQL append, rows/s against Flink SQL JDBC", APPEND, "flink sql", 1.0),
    Target(
        "PostgreSQL append of 10 million, rows/s against Flink SQL JDBC",
        "tallygate longer",
        "flink sql longer",
        1.0,
    ),
    Target("PostgreSQL append, rows/s against Quix Streams", APPEND, "quix streams", 1.0),
    Target("Kafka to Kafka, rows/s against Spark's own sink", TOPIC, "spark to topic", 1.0),
    Target("windowed upsert, rows/s against staging + MERGE", "tallygate windows", "merge", 1.5),
    Target(
        "Parquet, rows/s against Spark's file sink", "tallygate to files", "spark to files", 0.9
    ),
    *(
        Target(
            f"latency {part} at {rate:,}/s, seconds against foreachBatch JDBC",
            f"tallygate {part} {rate}",
            f"spark jdbc {part} {rate}",
            0.9,
            at_most=True,
        )
        for rate in (2_000, 10_000)
        for part in ("p50", "p99")
    ),
    Target(
        "SIGKILL to the next commit, seconds against a plain Spark query",
        "tallygate killed",
        "spark killed",
        1.1,
        at_most=True,
    ),
    Target("rows/s at 50 million rows against 1 million", "50,000,000 rows", "1,000,000 rows", 0.9),
    Target("rows/s at 64 partitions against 4", MANY_PARTITIONS, FEW_PARTITIONS, 0.9),
    Target(
        "rows/s with 10,000 batches in the ledger against none", LONG_LEDGER, FEW_PARTITIONS, 0.9
    ),
)
