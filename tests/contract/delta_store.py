"""A Delta table in the contract suite.

Delta is a library of Spark's JVM. One JVM serves all: a process that is to be killed gets a session
of the same JVM, through the socket by which PySpark talks to it. When it dies the JVM still ends
what it was asked for: that is one more thing which may become of a commit without an answer.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql import types as t

from contract.harness import COLUMNS, COORDINATES, Store
from contract.source import REFUSED, At, place_of
from tallygate.core.letters import Letter
from tallygate.core.offsets import topic_of
from tallygate.settings import Settings
from tallygate.spec import Delta
from tallygate.targets.delta.target import DeltaTarget

__all__ = ["DeltaStore", "gateway_of"]

Gateway = tuple[int, str]
"""Port and secret."""


def gateway_of(spark: SparkSession) -> Gateway:
    parameters = spark.sparkContext._gateway.gateway_parameters  # type: ignore[union-attr]
    return parameters.port, parameters.auth_token


def _session(gateway: Gateway) -> SparkSession:
    """This process's own, or one more of the JVM that the gateway leads to."""
    if SparkContext._active_spark_context is None:
        port, secret = gateway
        os.environ |= {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
        opened = launch_gateway()  # type: ignore[no-untyped-call]
        scala = opened.jvm.org.apache.spark.SparkContext.getOrCreate()
        java = opened.jvm.JavaSparkContext(scala)
        SparkContext(gateway=opened, jsc=java, conf=SparkConf(_jconf=java.getConf()))
    context = SparkContext._active_spark_context
    assert context is not None
    return SparkSession(context)


@dataclass(frozen=True, kw_only=True)
class DeltaStore(Store):
    folder: str
    gateway: Gateway

    @property
    def raw(self) -> bool:
        return False

    @property
    def keyed(self) -> bool:
        return self.strategy == "upsert"

    @property
    def path(self) -> Path:
        return Path(self.folder) / self.at

    def make(self) -> None:
        """The target makes its table, unless it is to have a rule."""
        if self.refuses:
            columns = ", ".join(
                f"{each.name} {each.dataType.simpleString()}" for each in self._columns
            )
            table = f"delta.`{self.path}`"
            spark = _session(self.gateway)
            spark.sql(f"CREATE TABLE {table} ({columns}) USING delta")
            spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT not_3 CHECK (id % 10 <> {REFUSED})")

    @property
    def _columns(self) -> list[t.StructField]:
        return COLUMNS if self.keyed else [*COLUMNS, *COORDINATES]

    def target(self) -> DeltaTarget:
        fields = {"mode": "upsert", "key": "account"} if self.keyed else {}
        return DeltaTarget(
            Delta(str(self.path), **fields),
            pipeline=self.pipeline,
            spark=_session(self.gateway),
            settings=Settings.load({"state.dir": self.folder}),
        )

    def rows(self) -> list[At]:
        if not (self.path / "_delta_log").exists():
            return []
        frame = _session(self.gateway).read.format("delta").load(str(self.path))
        return [place_of(row.id) for row in frame.select("id").collect()]

    def causes(self) -> list[tuple[At, str]]:
        """Those that count: the letters of a batch are written before it, by runs that are fenced
        too."""
        state = self.target().ledger()
        files = (self.path / "_tallygate" / self.pipeline / "letters").rglob("*.json")
        found = [Letter.read(line) for file in files for line in file.read_text().splitlines()]
        positions = {} if state is None else state.positions
        held = {(topic_of(name), number): at for (name, number), at in positions.items()}
        counting = {
            (each.partition, each.offset): each.cause
            for each in found
            if each.offset < held.get((each.topic, each.partition), 0)
        }
        return list(counting.items())
