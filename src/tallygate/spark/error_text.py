"""What Spark said: of an error in one line that a reader can use, of a query how far it is."""

import json
import re
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql.streaming.query import StreamingQuery


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
