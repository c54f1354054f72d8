"""Whether this Spark is one that Tallygate knows how to read, asked when a session starts.

Plans are read and rebuilt, a batch's offsets are asked for, and the input of tasks is followed to
its end, by parts of Spark that are not its public interface. They change without notice. So each
that is used is named here, and looked for before anything begins: what does not fit is said at
once, and not by a batch that fails later.

What the input of a task needs is checked again in each task (see `truncated_input`).
"""

import io
import struct
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyspark
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.serializers import SpecialLengths
from pyspark.sql import SparkSession
from pyspark.sql.pandas import serializers

from tallygate.errors import MachineError
from tallygate.spark.truncated_input import ends_seen, insisting

CATALYST = "org.apache.spark.sql.catalyst"
INTERNALS: Mapping[str, tuple[str, ...]] = {
    f"{CATALYST}.plans.logical.LogicalPlan": (
        "children/0",
        "containsPattern/1",
        "deterministic/0",
        "expressions/0",
        "isStreaming/0",
        "makeCopy/1",
        "output/0",
        "outputSet/0",
        "productArity/0",
        "productElement/1",
        "references/0",
        "schema/0",
        "subqueries/0",
        "withNewChildren/1",
    ),
    f"{CATALYST}.plans.logical.MapInArrow": ("child/0",),
    f"{CATALYST}.plans.logical.Project": ("projectList/0",),
    f"{CATALYST}.streaming.StreamingRelationV2": ("extraOptions/0", "sourceName/0"),
    f"{CATALYST}.trees.TreePattern": ("CURRENT_LIKE/0",),
    f"{CATALYST}.analysis.StreamingJoinHelper": (
        "getStateValueWatermark/4",
        "isWatermarkInJoinKeys/1",
    ),
    f"{CATALYST}.analysis.UnsupportedOperationChecker": ("checkForStreaming/2",),
    f"{CATALYST}.util.IntervalUtils": ("safeStringToInterval/1",),
    "org.apache.spark.sql.classic.Dataset": ("ofRows/2", "queryExecution/0"),
    "org.apache.spark.sql.Observation": ("future/0",),
    "org.apache.spark.sql.execution.QueryExecution": ("analyzed/0", "toRdd/0"),
    "org.apache.spark.sql.internal.SessionState": (
        "newHadoopConf/0",
        "optimizer/0",
        "sqlParser/0",
    ),
}
"""The classes of the JVM that are used, and which of their methods, with how many arguments."""

_checked: set[str] = set()


def check_internals(
    spark: SparkSession, internals: Mapping[str, tuple[str, ...]] = INTERNALS
) -> None:
    """Raise if this Spark lacks what is used of it; once for each application."""
    if not hasattr(spark, "_jsparkSession"):
        raise MachineError(
            "this is a session of Spark Connect, whose driver is another program. Tallygate reads "
            "plans and checkpoints in the driver: use a classic session, as SparkSession.builder "
            "makes with spark.master."
        )
    application = spark.sparkContext.applicationId
    if application in _checked:
        return
    _check_versions(spark)
    _check_serializer()
    for name, methods in internals.items():
        _check_class(spark, name, methods)
    _checked.add(application)


def _check_versions(spark: SparkSession) -> None:
    if spark.version.split("-")[0] != pyspark.__version__.split(".dev")[0]:
        raise MachineError(
            f"PySpark is {pyspark.__version__} and the Spark that it talks to {spark.version}; "
            "install the PySpark of that version, or unset SPARK_HOME to use PySpark's own Spark."
        )


def _check_class(spark: SparkSession, name: str, methods: tuple[str, ...]) -> None:
    jvm: Any = spark.sparkContext._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        found = jvm.java.lang.Class.forName(name, False, loader)
    except Py4JJavaError:
        raise _unknown(f"the class {name}") from None
    # Py4J looks for methods in this way. The list of all of them, as one text, would take 40 ms.
    engine = jvm.py4j.reflection.ReflectionEngine()
    for method in methods:
        called, _, arguments = method.partition("/")
        if engine.getMethodsByNameAndLength(found, called, int(arguments)).isEmpty():
            raise _unknown(f"{name}.{called} with {arguments} arguments")


def _check_serializer() -> None:
    """A worker must see that its input was cut off, by the serializer that PySpark uses for
    blocks: tried with a stream that is whole and with one that is not."""
    block = pa.RecordBatch.from_pydict({"row": [{"n": 1}]})
    sent = io.BytesIO()
    with pa.ipc.new_stream(sent, block.schema) as writer:
        writer.write_batch(block)
    end = struct.pack("!i", SpecialLengths.END_OF_STREAM)
    known = hasattr(serializers, "ArrowStreamUDFSerializer")
    if not (known and _reads(sent.getvalue() + end) and not _reads(sent.getvalue())):
        raise _unknown("an ArrowStreamUDFSerializer that reads blocks as it is known here")


def _reads(stream: bytes) -> bool:
    """Whether the stream is taken for a whole one, after a look at what follows its blocks."""
    made: Any = serializers.ArrowStreamUDFSerializer
    before = ends_seen()
    with insisting():
        try:
            list(made().load_stream(io.BufferedReader(io.BytesIO(stream))))
        except EOFError:
            return False
    return ends_seen() > before


def _unknown(what: str) -> MachineError:
    return MachineError(
        f"this Spark ({pyspark.__version__}) lacks {what}, which Tallygate makes use of; use a "
        "PySpark from 4.0 to 4.2, or a newer Tallygate."
    )
