"""Move events from Kafka through Spark into a store exactly once, and prove it.

What is exported here is the public API. Each name is imported when it is first used, so that
`import tallygate` and the command line stay quick.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tallygate.consumer.dedup import Dedup
    from tallygate.consumer.retry import Retry
    from tallygate.consumer.run import consume
    from tallygate.core.record import Output, Record
    from tallygate.engine.pipeline import Pipeline, write_stream
    from tallygate.errors import TallygateError
    from tallygate.kafka.connection import Connection
    from tallygate.kafka.producer import Producer
    from tallygate.kafka.topics import Topics
    from tallygate.lab.kafka.cluster import Cluster
    from tallygate.lab.stack import Stack
    from tallygate.settings import Settings
    from tallygate.spark.session import session
    from tallygate.spec import DeadLetters, Delta, Files, Kafka, KafkaSink, Parquet, Postgres

__version__ = "0.1.0"

__all__ = [
    "Cluster",
    "Connection",
    "DeadLetters",
    "Dedup",
    "Delta",
    "Files",
    "Kafka",
    "KafkaSink",
    "Output",
    "Parquet",
    "Pipeline",
    "Postgres",
    "Producer",
    "Record",
    "Retry",
    "Settings",
    "Stack",
    "TallygateError",
    "Topics",
    "consume",
    "session",
    "write_stream",
]

_HOMES = {
    "Cluster": "tallygate.lab.kafka.cluster",
    "Connection": "tallygate.kafka.connection",
    "DeadLetters": "tallygate.spec",
    "Dedup": "tallygate.consumer.dedup",
    "Delta": "tallygate.spec",
    "Files": "tallygate.spec",
    "Kafka": "tallygate.spec",
    "KafkaSink": "tallygate.spec",
    "Output": "tallygate.core.record",
    "Parquet": "tallygate.spec",
    "Pipeline": "tallygate.engine.pipeline",
    "Postgres": "tallygate.spec",
    "Producer": "tallygate.kafka.producer",
    "Record": "tallygate.core.record",
    "Retry": "tallygate.consumer.retry",
    "Settings": "tallygate.settings",
    "Stack": "tallygate.lab.stack",
    "TallygateError": "tallygate.errors",
    "Topics": "tallygate.kafka.topics",
    "consume": "tallygate.consumer.run",
    "session": "tallygate.spark.session",
    "write_stream": "tallygate.engine.pipeline",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
