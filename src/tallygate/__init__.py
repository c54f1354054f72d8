"""Move events from Kafka through Spark into a store exactly once, and prove it.

What is exported here is the public API. Each name is imported when it is first used, so that
`import tallygate` and the command line stay quick.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tallygate.auditing.audit import audit
    from tallygate.auditing.dead_letters import dead_letters
    from tallygate.auditing.trace import Trace, trace
    from tallygate.auditing.verdict import Anomaly, AuditResult, Verdict
    from tallygate.consumer.dedup import Dedup
    from tallygate.consumer.retry import Retry
    from tallygate.consumer.run import consume
    from tallygate.core.letters import DeadLetter
    from tallygate.core.record import Output, Record
    from tallygate.engine.forgetting import forget_topic
    from tallygate.engine.pipeline import Pipeline, write_stream
    from tallygate.engine.rebuild import Rebuilt, rebuild
    from tallygate.engine.status import PipelineStatus, status
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
    "Anomaly",
    "AuditResult",
    "Cluster",
    "Connection",
    "DeadLetter",
    "DeadLetters",
    "Dedup",
    "Delta",
    "Files",
    "Kafka",
    "KafkaSink",
    "Output",
    "Parquet",
    "Pipeline",
    "PipelineStatus",
    "Postgres",
    "Producer",
    "Rebuilt",
    "Record",
    "Retry",
    "Settings",
    "Stack",
    "TallygateError",
    "Topics",
    "Trace",
    "Verdict",
    "audit",
    "consume",
    "dead_letters",
    "forget_topic",
    "rebuild",
    "session",
    "status",
    "trace",
    "write_stream",
]

_HOMES = {
    "Anomaly": "tallygate.auditing.verdict",
    "AuditResult": "tallygate.auditing.verdict",
    "Cluster": "tallygate.lab.kafka.cluster",
    "Connection": "tallygate.kafka.connection",
    "DeadLetter": "tallygate.core.letters",
    "DeadLetters": "tallygate.spec",
    "Dedup": "tallygate.consumer.dedup",
    "Delta": "tallygate.spec",
    "Files": "tallygate.spec",
    "Kafka": "tallygate.spec",
    "KafkaSink": "tallygate.spec",
    "Output": "tallygate.core.record",
    "Parquet": "tallygate.spec",
    "Pipeline": "tallygate.engine.pipeline",
    "PipelineStatus": "tallygate.engine.status",
    "Postgres": "tallygate.spec",
    "Producer": "tallygate.kafka.producer",
    "Rebuilt": "tallygate.engine.rebuild",
    "Record": "tallygate.core.record",
    "Retry": "tallygate.consumer.retry",
    "Settings": "tallygate.settings",
    "Stack": "tallygate.lab.stack",
    "TallygateError": "tallygate.errors",
    "Topics": "tallygate.kafka.topics",
    "Trace": "tallygate.auditing.trace",
    "Verdict": "tallygate.auditing.verdict",
    "audit": "tallygate.auditing.audit",
    "consume": "tallygate.consumer.run",
    "dead_letters": "tallygate.auditing.dead_letters",
    "forget_topic": "tallygate.engine.forgetting",
    "rebuild": "tallygate.engine.rebuild",
    "session": "tallygate.spark.session",
    "status": "tallygate.engine.status",
    "trace": "tallygate.auditing.trace",
    "write_stream": "tallygate.engine.pipeline",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from tallygate.extras import naming_extras

        with naming_extras(f"tallygate.{name}"):
            return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
