"""A pipeline as data."""

from tallygate.spec.functions import look_in
from tallygate.spec.loading import load_spec, validated
from tallygate.spec.pipeline import NAME, DeadLetters, PipelineSpec
from tallygate.spec.sinks import (
    Console,
    Delivery,
    Delta,
    Foreach,
    KafkaSink,
    Memory,
    Parquet,
    Postgres,
)
from tallygate.spec.sources import Files, Kafka, Rate, Socket
from tallygate.spec.steps import Join, Pivot, Static, Step, Window

__all__ = [
    "NAME",
    "Console",
    "DeadLetters",
    "Delivery",
    "Delta",
    "Files",
    "Foreach",
    "Join",
    "Kafka",
    "KafkaSink",
    "Memory",
    "Parquet",
    "PipelineSpec",
    "Pivot",
    "Postgres",
    "Rate",
    "Socket",
    "Static",
    "Step",
    "Window",
    "load_spec",
    "look_in",
    "validated",
]
