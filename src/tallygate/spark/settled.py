"""Which columns are the same, to the last bit, whenever Spark computes a batch again.

After a shuffle the rows of a group come in any order. A sum of doubles in another order differs in
its last digit, and of rows that are dropped as duplicates another one may stay. A stream with the
same offsets gives the same groups all the same. So what an aggregate gives is **unsettled**, and so
is all that is made of it; the columns by which rows are grouped, and those of the records, are
settled.

What a function of the user's makes of a group cannot be seen. It counts as unsettled too, under a
name of its own: its user may know better.
"""

from typing import Any

from pyspark.sql import DataFrame

from tallygate.spark.plan import analyzed, list_of, name_of

AGGREGATE = "an aggregate"
FUNCTION = "a function of groups"
_BY_KEYS = {"Deduplicate", "DeduplicateWithinWatermark"}
_OF_GROUPS = {
    "FlatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState",
    "TransformWithState",
    "TransformWithStateInPandas",
    "TransformWithStateInPySpark",
}


def unsettled_columns(frame: DataFrame) -> dict[str, str]:
    """The columns of the frame that may differ, and what each of them is made by."""
    root = analyzed(frame)
    jvm: Any = frame.sparkSession._jvm
    search = _Search(jvm.org.apache.spark.sql.catalyst.trees.TreePattern.AGGREGATE_EXPRESSION())
    search.go_through(root)
    return {
        attribute.name(): search.made[attribute.exprId().id()]
        for attribute in list_of(root.output())
        if attribute.exprId().id() in search.made
    }


class _Search:
    """From the sources up, which attributes are unsettled."""

    def __init__(self, aggregate: Any) -> None:
        self._aggregate = aggregate
        """Spark's mark of expressions that an aggregate is in."""
        self.made: dict[int, str] = {}
        """By an attribute's id, what it is made by."""
        self._defined: dict[int, Any] = {}
        """The columns of each query that is defined by WITH."""

    def go_through(self, node: Any) -> None:
        for child in list_of(node.children()):
            self.go_through(child)
        name = name_of(node)
        if name == "Project":
            self._mark_each(node.projectList())
        elif name == "Aggregate":
            self._mark_each(node.aggregateExpressions())
        elif name == "Union":
            for child in list_of(node.children()):
                self._hand_on(child.output(), node.output())
        elif name == "CTERelationDef":
            self._defined[node.id()] = node.output()
        elif name == "CTERelationRef":
            self._hand_on(self._defined[node.cteId()], node.output())
        elif name in _BY_KEYS:
            keys = _ids(node.keys())
            self._mark(_ids(node.output()) - keys, AGGREGATE)
        elif name in _OF_GROUPS:
            self._mark(self._new(node), FUNCTION)
        else:
            reasons = map(self._reason, list_of(node.expressions()))
            found = next(filter(None, reasons), None)
            if found is not None:
                self._mark(self._new(node), found)

    def _mark_each(self, named: Any) -> None:
        for expression in list_of(named):
            reason = self._reason(expression)
            if reason is not None:
                self._mark({expression.exprId().id()}, reason)

    def _mark(self, ids: set[int], reason: str) -> None:
        for each in ids:
            self.made.setdefault(each, reason)

    def _new(self, node: Any) -> set[int]:
        """What the node adds to the columns that come from below."""
        below = [_ids(child.output()) for child in list_of(node.children())]
        return _ids(node.output()).difference(*below)

    def _hand_on(self, below: Any, above: Any) -> None:
        """The same columns under ids of their own."""
        for one, other in zip(list_of(below), list_of(above), strict=True):
            reason = self.made.get(one.exprId().id())
            if reason is not None:
                self._mark({other.exprId().id()}, reason)

    def _reason(self, expression: Any) -> str | None:
        if expression.containsPattern(self._aggregate):
            return AGGREGATE
        read = list_of(expression.references().toSeq())
        return next(filter(None, (self.made.get(each.exprId().id()) for each in read)), None)


def _ids(attributes: Any) -> set[int]:
    return {int(attribute.exprId().id()) for attribute in list_of(attributes)}
