"""Expressions that give another value each time: the clock, and chance.

The stream evaluated them once and the audit evaluates them again, so what they gave cannot be
compared. Where they stand decides what that costs:

**In a column that is selected**, and in what is made of it, only that column is left out.

**In a condition, a group or a function of rows**, it depends on them which rows there are, so any
difference may be theirs.

What a function of Python does inside cannot be seen.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame

from tallygate.spark.plan import list_of, name_of, walk

_HARMLESS = {"RepartitionByExpression", "RebalancePartitions", "Sort"}
"""Operators whose expressions change neither the rows nor what is in them."""


@dataclass(frozen=True)
class Unsteady:
    columns: Mapping[str, str] = field(default_factory=dict)
    """The columns of the result that cannot be compared, and the expression that is why."""
    rows: str | None = None
    """The expression on which it depends which rows there are, if there is one."""


def unsteady_in(frame: DataFrame) -> Unsteady:
    """What of a frame would be another one the next time."""
    root = frame._jdf.queryExecution().analyzed()
    jvm: Any = frame.sparkSession._jvm
    search = _Search(jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE())
    if not search.is_unsteady(root):
        return Unsteady()
    search.go_through(root)
    columns = {
        attribute.name(): search.made[attribute.exprId().id()]
        for attribute in list_of(root.output())
        if attribute.exprId().id() in search.made
    }
    return Unsteady(columns, search.rows)


class _Search:
    """From the sources up, which attributes carry a value that would be another one."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        """Spark's mark of expressions that stand for the current time, or the current user."""
        self.made: dict[int, str] = {}
        """By an attribute's id, the expression that it comes from."""
        self.rows: str | None = None
        self._defined: dict[int, Any] = {}
        """The columns of each query that is defined by WITH."""

    def is_unsteady(self, tree: Any) -> bool:
        return not tree.deterministic() or bool(tree.containsPattern(self._clock))

    def go_through(self, node: Any) -> None:
        for child in list_of(node.children()):
            self.go_through(child)
        name = name_of(node)
        if name == "Project":
            self._mark(node.projectList())
        elif name == "Aggregate":
            self._mark(node.aggregateExpressions())
            self._depend(node.groupingExpressions())
        elif name == "Union":
            for child in list_of(node.children()):
                self._hand_on(child.output(), node.output())
        elif name == "CTERelationDef":
            self._defined[node.id()] = node.output()
        elif name == "CTERelationRef":
            self._hand_on(self._defined[node.cteId()], node.output())
        elif name not in _HARMLESS:
            self._depend(node.expressions())

    def _mark(self, named: Any) -> None:
        for expression in list_of(named):
            reason = self._reason(expression)
            if reason is not None:
                self.made[expression.exprId().id()] = reason

    def _depend(self, expressions: Any) -> None:
        for expression in list_of(expressions):
            self.rows = self.rows or self._reason(expression)

    def _hand_on(self, below: Any, above: Any) -> None:
        """The same columns under ids of their own."""
        for one, other in zip(list_of(below), list_of(above), strict=True):
            reason = self.made.get(one.exprId().id())
            if reason is not None:
                self.made[other.exprId().id()] = reason

    def _reason(self, expression: Any) -> str | None:
        if self.is_unsteady(expression):
            return f"{self._innermost(expression).prettyName()}()"
        read = list_of(expression.references().toSeq())
        return next(filter(None, (self.made.get(each.exprId().id()) for each in read)), None)

    def _innermost(self, expression: Any) -> Any:
        found: Iterator[Any] = (each for each in walk(expression) if self.is_unsteady(each))
        return list(found)[-1]
