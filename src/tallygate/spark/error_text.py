"""What Spark said: of an error in one line that a reader can use, of a query how far it is."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PythonException
from pyspark.sql.streaming.query import StreamingQuery

_OF_ROWS = ("22", "23", "38", "39", "54", "P0")
"""Classes of SQLSTATE that Spark has for what is in a row, and for functions that fail on it."""
_PYTHON = "org.apache.spark.api.python.PythonException"


def progress_of(query: StreamingQuery) -> Mapping[str, Any] | None:
    """What Spark said of the query after its last batch, if there was one.

    As one text: `query.lastProgress` asks the JVM for each part of it, and at the end of each list
    hears an error, for which it looks up a dozen classes in all jars. That takes 70 ms, with every
    batch."""
    said = query._jsq.lastProgress()
    return None if said is None else json.loads(said.json())


def reason(error: BaseException) -> str:
    """What happened, without Spark's codes and the classes that they go with; of an error in the
    JVM, what caused it."""
    said = _cause(error) if isinstance(error, Py4JJavaError) else _telling(str(error))
    said = re.sub(r"^([\w.]+: )?\[[\w.]+\]\s*|\s*SQLSTATE: \w+", "", said)
    return said.rstrip(" .;") or type(error).__name__


def is_of_row(error: Exception) -> bool:
    """Whether Spark blames what a row holds: a value that does not fit what is done with it, or a
    function of the user's that failed."""
    if isinstance(error, PythonException):
        return True
    states = (text for cause in causes_in_jvm(error) if (text := sql_state(cause)))
    return any(state.startswith(_OF_ROWS) for state in states) or any(
        str(cause.getClass().getName()) == _PYTHON for cause in causes_in_jvm(error)
    )


def causes_in_jvm(error: BaseException) -> Iterator[Any]:
    """An error's counterpart in the JVM, if it has one, and what caused it."""
    cause: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while cause is not None:
        yield cause
        cause = cause.getCause()


def sql_state(cause: Any) -> str | None:
    """The SQLSTATE of an error in the JVM, if it is of a kind that has one."""
    try:
        return str(cause.getSqlState() or "") or None
    except Py4JError:
        return None


def _cause(error: Any) -> str:
    cause = error.java_exception
    where = ""
    while cause.getCause() is not None:
        file = re.search(r"reading file (\S+)\.", str(cause.getMessage()))
        where = f" (in {file[1]})" if file else where
        cause = cause.getCause()
    return _telling(str(cause.toString())) + where


def _telling(text: str) -> str:
    """The first line, or of Python's tracebacks the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "" if not lines else lines[-1] if "Traceback" in text else lines[0]
