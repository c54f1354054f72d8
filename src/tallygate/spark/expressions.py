"""Texts that Spark reads by rules of its own, read by its own parsers."""

from typing import Any

from pyspark.sql import SparkSession

from tallygate.spark.plan import name_of

DAY = 24 * 60 * 60 * 1000


def interval_milliseconds(spark: SparkSession, text: str) -> int | None:
    """How long an interval is; None if Spark does not take the text for one."""
    jvm: Any = spark._jvm
    given = jvm.org.apache.spark.unsafe.types.UTF8String.fromString(text)
    found = jvm.org.apache.spark.sql.catalyst.util.IntervalUtils.safeStringToInterval(given)
    if found is None:
        return None
    days, rest = found.extractAsPeriod().getDays(), found.extractAsDuration().toMillis()
    return int(days) * DAY + int(rest)


def is_one_call(spark: SparkSession, expression: str, filtered: str) -> bool:
    """Whether an expression is one call of a function, and the filter of `filtered`, which is the
    same with a FILTER behind it, belongs to that."""
    parser: Any = spark._jsparkSession.sessionState().sqlParser()
    if name_of(parser.parseExpression(expression)) != "UnresolvedFunction":
        return False
    return bool(parser.parseExpression(filtered).filter().isDefined())
