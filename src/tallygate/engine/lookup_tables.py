"""Tables that do not stream, and which version of them a batch saw.

A batch that is computed again after a crash must see what it saw the first time. So a static side
is copied into the checkpoint before a batch uses it, and the checkpoint remembers from which batch
on which copy holds:

    CHECKPOINT/static/versions.json      [{"batch": 7, "versions": {"animals": "3f2a…"}}, …]
    CHECKPOINT/static/animals/3f2a…      the copy, as Parquet

A change is taken up between two batches: the query is stopped, its next batch is noted down with
the new versions, and it is started again. A batch that is planned already keeps its versions.
Copies that no batch of Spark's log has seen, which holds the last hundred, are removed.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from tallygate.engine.schema import check_sample, declared, refuse_header
from tallygate.errors import ConfigError
from tallygate.postgres.connect import connect, jdbc
from tallygate.spark.checkpoint import Checkpoint
from tallygate.spark.error_text import reason
from tallygate.spark.files import Folder
from tallygate.spec import Static
from tallygate.units import interval_ms

VERSIONS = "static/versions.json"


@dataclass
class Statics:
    """The static sides of one pipeline."""

    spark: SparkSession
    sides: Mapping[str, Static]
    dsn: Callable[[], str]
    """Of the configured PostgreSQL, for tables that do not say."""
    where: Callable[..., str]
    """What a place in the pipeline is called in messages."""
    _begun: float = field(default_factory=time.monotonic)
    _looked: dict[str, float] = field(default_factory=dict)

    def schemas(self) -> dict[str, DataFrame]:
        """Empty frames in place of the sides, for looking at a plan; nothing is read."""
        return {
            name: self.spark.createDataFrame([], self._reader_schema(name, side))
            for name, side in self.sides.items()
        }

    def check_files(self) -> None:
        """Raise if a side's file, where it is there already, does not fit its schema."""
        for name, side in self.sides.items():
            if (
                side.file is not None
                and side.schema_ is not None
                and Folder(self.spark, side.file).has()
            ):
                check_sample(self._read(name), self.where("static", name, "schema"))

    def frames(self, checkpoint: Checkpoint) -> dict[str, DataFrame]:
        """The sides as the checkpoint's next batch must see them."""
        return self._at(checkpoint, self._versions(checkpoint)) if self.sides else {}

    def seen(self, checkpoint: Checkpoint) -> dict[str, DataFrame]:
        """The sides as the last batch saw them; nothing is copied."""
        held = _last(checkpoint)
        if set(held) != set(self.sides):
            raise ConfigError(
                f"{checkpoint.path} has no copies of the static sides, so what batches saw is not "
                "known."
            )
        return self._at(checkpoint, held)

    def changes(self, checkpoint: Checkpoint) -> int:
        """How often a side has changed between two batches."""
        return max(0, len(_history(checkpoint)) - 1)

    def _at(self, checkpoint: Checkpoint, versions: Mapping[str, str]) -> dict[str, DataFrame]:
        return {
            name: self.spark.read.parquet(f"{checkpoint.path}/static/{name}/{version}")
            for name, version in versions.items()
        }

    def changed(self, checkpoint: Checkpoint) -> bool:
        """Whether a side that it is time to look at is not as the last batch saw it."""
        due = [name for name, side in self.sides.items() if self._is_due(name, side)]
        known = _last(checkpoint) if due else {}
        for name in due:
            self._looked[name] = time.monotonic()
        return any(self._version(name) != known.get(name) for name in due)

    def wait_for_a_batch(self, checkpoint: Checkpoint) -> bool:
        """Whether a batch is planned that must see what has changed since: then that batch is to
        be done by itself, and the rest afterwards."""
        held = _last(checkpoint)
        fresh = [name for name, side in self.sides.items() if side.refresh != "never"]
        return bool(
            fresh
            and held
            and checkpoint.end(checkpoint.next_batch) is not None
            and any(self._version(name) != held.get(name) for name in fresh)
        )

    def check(self, checkpoint: Checkpoint) -> None:
        """Raise if a side that has to be read cannot be reached."""
        held = _last(checkpoint)
        for name, side in self.sides.items():
            if side.refresh != "never" or name not in held:
                self._version(name)

    def _is_due(self, name: str, side: Static) -> bool:
        if side.refresh in ("never", "on change"):
            return side.refresh == "on change"
        looked = self._looked.get(name, self._begun)
        return time.monotonic() - looked >= interval_ms(side.refresh) / 1000

    def _versions(self, checkpoint: Checkpoint) -> dict[str, str]:
        number = checkpoint.next_batch
        history = _history(checkpoint)
        held = dict(_last(checkpoint))
        planned = checkpoint.end(number) is not None
        if planned and set(held) == set(self.sides):
            return held
        versions = {
            name: held[name]
            if name in held and side.refresh == "never"
            else self._copy(checkpoint, name)
            for name, side in self.sides.items()
        }
        if versions != held:
            history.append({"batch": number, "versions": versions})
            checkpoint.replace(VERSIONS, json.dumps(history))
            self._remove_old(checkpoint, history)
        return versions

    def _remove_old(self, checkpoint: Checkpoint, history: list[dict[str, Any]]) -> None:
        """Keep what the batches of the log saw, and what the next one is to see."""
        oldest = min(checkpoint.batches, default=0)
        seen = [entry["versions"] for entry in history if entry["batch"] <= oldest][-1:]
        seen += [entry["versions"] for entry in history if entry["batch"] > oldest]
        for name in self.sides:
            kept = {versions.get(name) for versions in seen}
            for version in set(checkpoint.names(f"static/{name}")) - kept:
                checkpoint.remove(f"static/{name}/{version}")

    def _copy(self, checkpoint: Checkpoint, name: str) -> str:
        """Copy a side as it is now, and return its version. Read between two looks at the version,
        so that a copy never mixes two of them."""
        while True:
            version = self._version(name)
            path = f"{checkpoint.path}/static/{name}/{version}"
            if checkpoint.has(f"static/{name}/{version}/_SUCCESS"):
                return version
            try:
                self._read(name).write.mode("overwrite").parquet(path)
            except (PySparkException, Py4JJavaError) as error:
                raise self._unreadable(name, error) from None
            if self._version(name) == version:
                return version
            checkpoint.remove(f"static/{name}/{version}")

    def _version(self, name: str) -> str:
        side = self.sides[name]
        if side.table is not None:
            return self._digest(name, side)
        path = side.file or f"{side.delta}/_delta_log"
        if not Folder(self.spark, path).has():
            raise ConfigError(f"{self.where('static', name)}: {path} does not exist.")
        seen = Folder(self.spark, path).versions()
        return hashlib.sha256(repr(seen).encode()).hexdigest()[:16]

    def _digest(self, name: str, side: Static) -> str:
        """Of a table's rows, in whatever order."""
        try:
            with connect(self._dsn(side), timeout=10, autocommit=True) as connection:
                row = connection.execute(
                    "SELECT count(*), sum(hashtextextended(tallygate_row::text, 0)::numeric) "
                    f"FROM {side.table} AS tallygate_row".encode()
                ).fetchone()
        except psycopg.Error as error:
            raise self._unreadable(name, error) from None
        return hashlib.sha256(repr(row).encode()).hexdigest()[:16]

    def _read(self, name: str) -> DataFrame:
        side = self.sides[name]
        if side.table is not None:
            return self._table(side)
        try:
            if side.delta is not None:
                return self.spark.read.format("delta").load(side.delta)
            reader = self.spark.read.options(**side.options)
            if side.schema_ is not None:
                reader = reader.schema(side.schema_)
                self._refuse_header(name, side)
            if side.format in ("csv", "json"):
                reader = reader.option("mode", "FAILFAST")
            return reader.format(side.format).load(str(side.file))
        except PySparkException as error:
            raise self._unreadable(name, error) from None

    def _refuse_header(self, name: str, side: Static) -> None:
        if side.format == "csv" and side.file is not None:
            where = self.where("static", name, "schema")
            schema = self._reader_schema(name, side)
            refuse_header(self.spark, side.file, schema, side.options, where)

    def _unreadable(self, name: str, error: Exception) -> ConfigError:
        return ConfigError(f"{self.where('static', name)} cannot be read: {reason(error)}.")

    def _table(self, side: Static) -> DataFrame:
        url, access = jdbc(self._dsn(side))
        return self.spark.read.jdbc(url, str(side.table), properties=access)

    def _dsn(self, side: Static) -> str:
        return side.dsn or self.dsn()

    def _reader_schema(self, name: str, side: Static) -> t.StructType:
        if side.schema_ is not None:
            return declared(side.schema_, self.where("static", name, "schema"))
        return self._read(name).schema


def _history(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    text = checkpoint.read(VERSIONS) or checkpoint.read(f"{VERSIONS}.partial")
    found: list[dict[str, Any]] = json.loads(text) if text else []
    return found


def _last(checkpoint: Checkpoint) -> dict[str, str]:
    history = _history(checkpoint)
    found: dict[str, str] = history[-1]["versions"] if history else {}
    return found
