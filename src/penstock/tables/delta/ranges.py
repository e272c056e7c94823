"""Ranges of changed keys: which rows of the other side can meet a change at all.

A join of changes with a large table reads the table whole, unless it is told where to look: Spark
does not carry what it learns of one side over to the files of the other. So where a column must
equal one of the changes, the least and greatest value of these become a condition, by which whole
files and row groups are passed over. Changes of late lie close together; those all over the table
have a range that excludes nothing.

>>> Range("int64", 3, 9).joined(Range("int64", 7, 12, has_null=True))
Range(kind='int64', low=3, high=12, has_null=True, of=())
>>> Range("int64", 3, 9).joined(Range("int32", 7, 12)) is None
True
>>> Range("int64", 3, 9).condition("c1"), Range("date32", date(2024, 1, 2), None).condition("c2")
('c1 BETWEEN 3 AND 9', None)
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple, Protocol

from sqlglot import exp

from penstock.tables.delta.algebra import (
    Aggregate,
    Filter,
    Generate,
    Join,
    Mark,
    Node,
    OuterJoin,
    Project,
    Scan,
    TopN,
    Window,
    children,
)

FLOATS: Final = frozenset({"float32", "float64"})
"""The types of the lake whose values have a sign at zero."""

_TEXT_MAX: Final = 200
"""Longer texts are no bounds: they would be most of the query."""


class Range(NamedTuple):
    """The least and the greatest of some values of one type, and whether NULL is among them.

    Without any value but NULL, both are None. `of` are the columns of changes, as relation and
    field, that have all of the values; empty where that is not known.
    """

    kind: str
    low: Any
    high: Any
    has_null: bool = False
    of: tuple[tuple[str, str], ...] = ()

    def joined(self, other: Range | None) -> Range | None:
        """The range of the values of both; None if nothing can be said."""
        if other is None or other.kind != self.kind:
            return None
        lows = [each.low for each in (self, other) if each.low is not None]
        highs = [each.high for each in (self, other) if each.high is not None]
        has_null = self.has_null or other.has_null
        of = (*self.of, *other.of) if self.of and other.of else ()
        return Range(self.kind, min(lows, default=None), max(highs, default=None), has_null, of)

    def condition(self, column: str) -> str | None:
        """What a column must meet to be among the values; None if it cannot be written."""
        low, high = _literal(self.low), _literal(self.high)
        if low is None or high is None:
            return None
        text = f"{column} BETWEEN {low} AND {high}"
        return f"({text} OR {column} IS NULL)" if self.has_null else text


class Ranges(Protocol):
    """What is known of the changes of relations, and of the types of their columns."""

    def kind(self, relation: str, field: str) -> str | None:
        """The type of a column, as a text; None if it is not known."""
        ...

    def changed_range(self, relation: str, field: str) -> Range | None:
        """The range of a column in the changes of its relation; None if it is not known."""
        ...

    def leaving(self, relation: str) -> int | None:
        """How many rows of a relation leave with its changes; None if it is not known."""
        ...

    def near(self, relation: str, field: str, found: Range, fields: tuple[str, ...]) -> str | None:
        """A view of some fields of the old rows with values of a range in a field.

        None if they are not at hand: then all old rows are read.
        """
        ...


class NoRanges:
    """For texts that are read by people, or made before the changes are known."""

    def kind(self, relation: str, field: str) -> str | None:
        return None

    def changed_range(self, relation: str, field: str) -> Range | None:
        return None

    def leaving(self, relation: str) -> int | None:
        return None

    def near(self, relation: str, field: str, found: Range, fields: tuple[str, ...]) -> str | None:
        return None


def source_of(node: Node, column: str) -> tuple[str, str] | None:
    """The relation and the field whose values a column of an operator has, or NULL."""
    while not isinstance(node, Scan):
        match node:
            case Project():
                expression = node.expressions[node.columns.index(column)]
                if not isinstance(expression, exp.Column):
                    return None
                node, column = node.child, expression.name
            case (
                Filter()
                | Generate()
                | Aggregate()
                | Window()
                | TopN()
                | Join()
                | Mark()
                | (OuterJoin())
            ):
                below = [child for child in _passed_on(node) if column in child.columns]
                if not below:
                    return None
                node = below[0]
            case _:
                return None
    return node.relation, node.fields[node.columns.index(column)]


def read_as_is(node: Node, column: str) -> tuple[str, str] | None:
    """The relation and the field that a column is, where nothing has compared its values yet."""
    while not isinstance(node, Scan):
        if isinstance(node, Project):
            expression = node.expressions[node.columns.index(column)]
            if not isinstance(expression, exp.Column):
                return None
            node, column = node.child, expression.name
            continue
        if not isinstance(node, Filter | Generate | Join):
            return None
        below = [child for child in children(node) if column in child.columns]
        if not below:
            return None
        node = below[0]
    return node.relation, node.fields[node.columns.index(column)]


def bounded_below(node: Node, column: str, changed: Mapping[int, bool]) -> Node | None:
    """The input of an operator whose changes have all values of a column in its own changes.

    `changed` says of each input, by its identity, whether it has changes.
    """
    below = [child for child in children(node) if changed[id(child)]]
    if len(below) != 1 or column not in below[0].columns:
        return None
    match node:
        case Filter() | Generate() | Join():
            return below[0]
        case Aggregate() | Window():
            return below[0] if column in node.keys else None
        case Mark():
            return below[0] if below[0] is node.left else None
        case OuterJoin():
            return below[0] if below[0] is node.left and not node.full else None
        case _:
            return None


def _passed_on(node: Node) -> tuple[Node, ...]:
    """The inputs whose columns an operator passes on as they are."""
    return (node.left,) if isinstance(node, Mark) else children(node)


def _literal(value: Any) -> str | None:
    """A value in SQL; None if it has no short one."""
    match value:
        case bool() | datetime():
            return None
        case int():
            return str(value)
        case Decimal():
            return _decimal(value)
        case date():
            return f"CAST('{value.isoformat()}' AS DATE)"
        case str() if len(value) <= _TEXT_MAX and value.isprintable():
            return exp.Literal.string(value).sql(dialect="spark")
        case _:
            return None


def _decimal(value: Decimal) -> str | None:
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or exponent > 0:
        return None
    scale = -exponent
    return f"CAST('{value:f}' AS DECIMAL({max(len(digits), scale + 1)}, {scale}))"
