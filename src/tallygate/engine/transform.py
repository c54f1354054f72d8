"""From the frames of the sources to the frame of the result: SQL, functions, and declared steps.

Every source, static side and named step is a view of its name; the step before, if it has none, is
the view `previous`. What is wrong with a step is said with the step's place in the file.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from tallygate.errors import ConfigError
from tallygate.settings import nearest
from tallygate.spark.error_text import reason
from tallygate.spark.expressions import is_one_call
from tallygate.spec import Join, PipelineSpec, Pivot, Step, Window
from tallygate.spec.functions import is_reference, referred
from tallygate.spec.pipeline import PREVIOUS


def transformed(
    spark: SparkSession, spec: PipelineSpec, views: Mapping[str, DataFrame]
) -> DataFrame:
    """The result of the pipeline's transform over these views."""
    spark.catalog.dropTempView(PREVIOUS)  # of another pipeline in this session
    for name, frame in views.items():
        frame.createOrReplaceTempView(name)
    return _Transform(spark, spec, dict(views)).result()


class _Transform:
    def __init__(
        self, spark: SparkSession, spec: PipelineSpec, views: dict[str, DataFrame]
    ) -> None:
        self._spark, self._spec, self._views = spark, spec, views

    def result(self) -> DataFrame:
        made, first = self._spec.transform, next(iter(self._views.values()))
        if made is None:
            return first
        if callable(made):
            with self._locate_errors("transform"):
                return self._apply(made)
        if isinstance(made, str):
            with self._locate_errors("transform"):
                return self._apply(referred(made)) if is_reference(made) else self._sql(made)
        frame = first
        for number, step in enumerate(made):
            with self._locate_errors("transform", number):
                begin = frame if step.from_ is None else self._view(step.from_)
                frame = self._done(step, begin)
                self._call(step.name or PREVIOUS, frame)
        return frame

    def _call(self, name: str, frame: DataFrame) -> None:
        """Make it a view. What was `previous` is no longer, and must not be taken for it."""
        self._views.pop(PREVIOUS, None)
        self._spark.catalog.dropTempView(PREVIOUS)
        frame.createOrReplaceTempView(name)
        self._views[name] = frame

    @contextmanager
    def _locate_errors(self, *place: str | int) -> Iterator[None]:
        try:
            yield
        except PySparkException as error:
            raise ConfigError(f"{self._spec.where(*place)}: {_why(error)}") from None
        except ConfigError as error:
            raise ConfigError(f"{self._spec.where(*place)}: {error}") from None
        except Exception as error:  # of a function of the user's
            said = f"{type(error).__name__}: {error}"
            raise ConfigError(f"{self._spec.where(*place)}: the function failed: {said}") from error

    def _view(self, name: str) -> DataFrame:
        if name not in self._views:
            raise ConfigError(f"there is no view {name!r}{nearest(name, self._views)}")
        return self._views[name]

    def _sql(self, text: str) -> DataFrame:
        return self._spark.sql(text, args=dict(self._spec.parameters) or None)

    def _apply(self, function: Callable[..., Any], begin: DataFrame | None = None) -> DataFrame:
        """A function of one frame gets the source's, or the step's before; one of several gets
        the views that its parameters name."""
        names = list(_parameters(function))
        if begin is None and len(names) > 1:
            frame = function(*(self._view(name) for name in names))
        else:
            frame = function(begin if begin is not None else next(iter(self._views.values())))
        if not isinstance(frame, DataFrame):
            said = type(frame).__name__
            raise ConfigError(f"the function returned a {said}; it must return a DataFrame.")
        return frame

    def _done(self, step: Step, begin: DataFrame) -> DataFrame:
        if step.sql is not None:
            return self._sql(step.sql)
        if step.function is not None:
            made = step.function
            return self._apply(referred(made) if isinstance(made, str) else made, begin)
        if step.watermark is not None:
            ((column, delay),) = step.watermark.items()
            _check_time(begin, column)
            return begin.withWatermark(column, delay)
        if step.dedup:
            return begin.dropDuplicatesWithinWatermark(list(step.dedup))
        if step.join is not None:
            return self._joined(begin, step.from_ or self._name_of(begin), step.join)
        groups = [*_windows(begin, step.window), *(f.expr(name) for name in step.group_by)]
        grouped = begin.groupBy(*groups)
        columns = self._pivoted(step.pivot) if step.pivot else _aggregates(step.aggregate)
        return _flat(grouped.agg(*columns))

    def _pivoted(self, pivot: Pivot) -> list[Column]:
        """One column for each value, by a filter: so the columns never change."""
        listed = ", ".join(_literal(value) for value in pivot.values)
        columns = [(value, f"({pivot.on}) = {_literal(value)}") for value in pivot.values]
        if pivot.other:
            rest = f"({pivot.on}) IS NULL OR ({pivot.on}) NOT IN ({listed})"
            columns.append(("other", rest))
        return [self._filtered(pivot, rows).alias(name) for name, rows in columns]

    def _filtered(self, pivot: Pivot, rows: str) -> Column:
        """The aggregate of some rows. A filter belongs to the last call of an expression, so the
        aggregate must be that call and nothing else."""
        text = f"{pivot.aggregate} FILTER (WHERE {rows})"
        if not is_one_call(self._spark, pivot.aggregate, text):
            raise ConfigError(
                f"pivot.aggregate {pivot.aggregate!r} is more than one call of an aggregate "
                "function, so a filter for each value would not hold for all of it. Write one "
                "call, as sum(amount - fee), and compute with the columns in a step after."
            )
        return f.expr(text)

    def _name_of(self, frame: DataFrame) -> str:
        return next(name for name, each in self._views.items() if each is frame)

    def _joined(self, left: DataFrame, name: str, join: Join) -> DataFrame:
        right = self._view(join.with_)
        if join.how in ("right", "full"):
            raise ConfigError(_OUTER.format(how=join.how))
        mine = [f"`{name}`.`{column}`" for column in left.columns]
        new = [column for column in right.columns if column not in left.columns]
        theirs = [f"`{join.with_}`.`{column}`" for column in new]
        left.createOrReplaceTempView(name)
        return self._sql(
            f"SELECT {', '.join(mine + theirs)} FROM `{name}` "
            f"{join.how.upper()} JOIN `{join.with_}` ON {join.on}"
        )


_OUTER = (
    "a {how} join would have to give out every row of the other side that no record ever "
    "matches, and a stream does not end, so that is never known. Use inner or left, with the "
    "stream on the left."
)


def _windows(frame: DataFrame, window: Window | None) -> list[Column]:
    if window is None:
        return []
    _check_time(frame, window.on)
    if window.gap is not None:
        return [f.session_window(window.on, window.gap).alias("window")]
    assert window.size is not None
    made = (
        f.window(window.on, window.size)
        if window.slide is None
        else f.window(window.on, window.size, window.slide)
    )
    return [made.alias("window")]


def _check_time(frame: DataFrame, column: str) -> None:
    kinds = {field.name: field.dataType for field in frame.schema.fields}
    if column not in kinds:
        raise ConfigError(f"there is no column {column!r}{nearest(column, kinds)}")
    if not isinstance(kinds[column], t.TimestampType | t.TimestampNTZType):
        raise ConfigError(
            f"column {column!r} is {kinds[column].simpleString()}, and event time must be a "
            f"timestamp; make it one in a step before, as CAST({column} AS timestamp)."
        )


def _aggregates(columns: Mapping[str, str]) -> list[Column]:
    return [f.expr(text).alias(name) for name, text in columns.items()]


def _literal(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _flat(frame: DataFrame) -> DataFrame:
    """A window as two columns, which any store can take."""
    if "window" not in frame.columns:
        return frame
    ends = ("window.start AS window_start", "window.end AS window_end")
    rest = (f"`{name}`" for name in frame.columns if name != "window")
    return frame.selectExpr(*ends, *rest)


def _parameters(function: Callable[..., Any]) -> list[str]:
    try:
        given = inspect.signature(function).parameters.values()
        return [each.name for each in given if each.default is inspect.Parameter.empty]
    except (TypeError, ValueError):
        return []


_ACTIONS = (
    "this would have to read the stream to its end, which it does not have: count(), collect(), "
    "show(), or a pivot whose columns are left open. Aggregate instead, and name the values of the "
    "pivot: a stream cannot add columns later."
)


def _why(error: PySparkException) -> str:
    if re.search("pivot is not supported|must be executed with writeStream", str(error)):
        return _ACTIONS
    return reason(error)
