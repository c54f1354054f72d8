"""A Delta table, as far as the ledger needs it: its transactions, and files that it keeps for us.

Everything goes through Delta's own library in Spark's JVM and Hadoop's file systems, so a table may
be wherever Spark can write one. The files are in `TABLE/_tallygate`: readers of the table and
VACUUM leave folders alone whose names begin with an underscore.
"""

import json
import time
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import types as t

from tallygate.errors import TargetError
from tallygate.spark.error_text import causes_in_jvm, reason
from tallygate.spark.files import Folder
from tallygate.targets.base import UnknownOutcomeError

CONFLICTS = tuple(
    f"io.delta.exceptions.{kind}" for kind in ("Concurrent", "MetadataChanged", "ProtocolChanged")
)
FORGETS = "delta.setTransactionRetentionDuration"
CHECK = "delta.constraints."
REFUSES = "InvariantViolationException"
OWN_FOLDER = "_tallygate"


class Transaction:
    """One of Delta's optimistic transactions: what it reads is one version of the table, and its
    commit fails if another writer has since changed anything that it asked for."""

    def __init__(self, jvm: Any, transaction: Any) -> None:
        self._jvm, self._transaction = jvm, transaction

    @property
    def exists(self) -> bool:
        return self.version >= 0

    @property
    def version(self) -> int:
        """The version of the table that it reads."""
        return int(self._transaction.readVersion())

    @property
    def table_id(self) -> str:
        """Given to a table when it is made: one that is made again has another."""
        return str(self._transaction.metadata().id())

    @property
    def schema(self) -> t.StructType:
        text = str(self._transaction.metadata().schema().json())
        return t.StructType.fromJson(json.loads(text))

    @property
    def forgets(self) -> bool:
        """Whether the table drops what applications have written after a while."""
        return bool(self._transaction.metadata().configuration().contains(FORGETS))

    @property
    def checks(self) -> dict[str, str]:
        """The table's CHECK constraints: their names and expressions."""
        metadata = json.loads(str(self._transaction.metadata().json()))["metaData"]
        return {
            name.removeprefix(CHECK): text
            for name, text in metadata["configuration"].items()
            if name.startswith(CHECK)
        }

    @property
    def never_null(self) -> set[str]:
        """The columns that are NOT NULL."""
        return {each.name for each in self.schema.fields if not each.nullable}

    def application(self, name: str) -> int:
        """How far this application is, by the table; -1 if it never wrote."""
        return int(self._transaction.txnVersion(name))

    def commit(self, applications: Mapping[str, int]) -> None:
        """Commit how far applications are, and no rows."""
        delta, option = self._jvm.org.apache.spark.sql.delta, self._jvm.scala.Option
        actions = self._jvm.java.util.ArrayList()
        now = option.apply(int(time.time() * 1000))
        for name, version in applications.items():
            actions.add(delta.actions.SetTransaction(name, version, now))
        converters = self._jvm.scala.jdk.javaapi.CollectionConverters
        operation = getattr(getattr(delta, "DeltaOperations$ManualUpdate$"), "MODULE$")
        try:
            self._transaction.commit(converters.asScala(actions).toSeq(), operation)
        except Py4JJavaError as error:
            if is_conflict(error):
                raise UnknownOutcomeError(
                    "another writer committed to the table at the same time"
                ) from error
            raise


class DeltaTable:
    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._jvm: Any = spark.sparkContext._jvm
        self._folder = Folder(spark, path)
        self.path = self._folder.address
        self.own = Folder(spark, f"{self.path}/{OWN_FOLDER}")
        """Files of ours."""

    def begin(self) -> Transaction:
        delta_log = self._jvm.org.apache.spark.sql.delta.DeltaLog
        none = self._jvm.scala.Option.empty()
        log = delta_log.forTable(self._spark._jsparkSession, self.path)
        return Transaction(self._jvm, log.startTransaction(none, none))

    def make(self, schema: t.StructType) -> None:
        """Make the table, without rows."""
        if set(self._folder.names()) - {OWN_FOLDER}:
            raise TargetError(
                f"{self.path} has files in it and is not a Delta table; name another folder."
            )
        try:
            rows = self._spark.createDataFrame([], schema)
            rows.write.format("delta").mode("ignore").save(self.path)
        except PySparkException as error:
            raise TargetError(
                f"Delta table {self.path} cannot be made: {reason(error)}."
            ) from error


def forget_tables(spark: SparkSession) -> None:
    """Have Delta look at its tables again: it knows them by their paths, and one may have been
    put in the place of another."""
    jvm: Any = spark.sparkContext._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def is_conflict(error: Exception) -> bool:
    """Whether Delta refused a commit because of another: nothing of it was committed."""
    names = (str(cause.getClass().getName()) for cause in causes_in_jvm(error))
    return any(name.startswith(CONFLICTS) for name in names)


def breaks_rule(error: Exception) -> bool:
    """Whether Delta refused a row by a rule of the table: nothing was committed."""
    names = (str(cause.getClass().getName()) for cause in causes_in_jvm(error))
    return any(name.endswith(REFUSES) for name in names)
