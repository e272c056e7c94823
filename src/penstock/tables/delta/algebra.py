"""The operators that a query is compiled to before it is differentiated.

Every operator names its output columns, and no two operators of a query share a column name, so
expressions refer to columns without saying where they come from. Expressions are sqlglot's and hold
no subqueries: these have become operators.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from sqlglot import exp


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """The rows of a relation. `columns` are our names, `fields` those of the relation."""

    relation: str
    columns: tuple[str, ...]
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """Rows that no relation has a part in: VALUES, range(…), a SELECT without FROM."""

    sql: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Filter:
    """The rows of `child` for which every condition is true."""

    child: Node
    conditions: tuple[exp.Expr, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return self.child.columns


@dataclass(frozen=True, slots=True, eq=False)
class Project:
    """One expression per column, row by row."""

    child: Node
    columns: tuple[str, ...]
    expressions: tuple[exp.Expr, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Generate:
    """LATERAL VIEW: every row of `child` with each row that a generator makes of it."""

    child: Node
    function: exp.Expr
    made: tuple[str, ...]
    outer: bool

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.child.columns, *self.made)


@dataclass(frozen=True, slots=True, eq=False)
class Join:
    """The inner join of any number of inputs; with no conditions, their product."""

    inputs: tuple[Node, ...]
    conditions: tuple[exp.Expr, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(column for child in self.inputs for column in child.columns)


@dataclass(frozen=True, slots=True, eq=False)
class OuterJoin:
    """A LEFT or FULL join. A RIGHT join is a LEFT join with its sides exchanged.

    With `single` it stands for a correlated scalar subquery: the right are its groups, of which a
    row of the left has at most one.
    """

    left: Node
    right: Node
    conditions: tuple[exp.Expr, ...]
    full: bool
    single: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.left.columns, *self.right.columns)


@dataclass(frozen=True, slots=True, eq=False)
class Mark:
    """EXISTS: whether some row of `right` meets the conditions.

    `keep` None adds the answer as the column `mark`; True keeps the rows that have a match (a semi
    join), False those that have none (an anti join).
    """

    left: Node
    right: Node
    conditions: tuple[exp.Expr, ...]
    keep: bool | None
    mark: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.left.columns, self.mark) if self.keep is None else self.left.columns


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate:
    """Aggregates by group. `keys` are columns of `child`; without any there is always one row."""

    child: Node
    keys: tuple[str, ...]
    made: tuple[str, ...]
    calls: tuple[exp.Expr, ...]
    is_global: bool

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.keys, *self.made)


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Window functions with a common PARTITION BY, whose keys are columns of `child`."""

    child: Node
    keys: tuple[str, ...]
    made: tuple[str, ...]
    calls: tuple[exp.Window, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.child.columns, *self.made)


@dataclass(frozen=True, slots=True, eq=False)
class TopN:
    """The first rows in an order that leaves no ties: ORDER BY … LIMIT … OFFSET."""

    child: Node
    order: tuple[exp.Ordered, ...]
    limit: int | None
    offset: int

    @property
    def columns(self) -> tuple[str, ...]:
        return self.child.columns


@dataclass(frozen=True, slots=True, eq=False)
class Union:
    """UNION ALL; columns correspond by position."""

    inputs: tuple[Node, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SetOperation:
    """INTERSECT or EXCEPT, `every` with ALL; columns correspond by position."""

    left: Node
    right: Node
    columns: tuple[str, ...]
    kind: str
    every: bool


Node: TypeAlias = (
    Scan
    | Constant
    | Filter
    | Project
    | Generate
    | Join
    | OuterJoin
    | Mark
    | Aggregate
    | Window
    | TopN
    | Union
    | SetOperation
)


def children(node: Node) -> tuple[Node, ...]:
    """The inputs of an operator."""
    match node:
        case Scan() | Constant():
            return ()
        case Join() | Union():
            return node.inputs
        case OuterJoin() | Mark() | SetOperation():
            return (node.left, node.right)
        case _:
            return (node.child,)


def with_children(node: Node, below: Sequence[Node]) -> Node:
    """The same operator over other inputs, which have the same columns."""
    match node:
        case Scan() | Constant():
            return node
        case Join() | Union():
            return replace(node, inputs=tuple(below))
        case OuterJoin() | Mark() | SetOperation():
            return replace(node, left=below[0], right=below[1])
        case _:
            return replace(node, child=below[0])


def walk(node: Node) -> Iterator[Node]:
    """An operator and all below it."""
    yield node
    for child in children(node):
        yield from walk(child)


def relations(node: Node) -> frozenset[str]:
    """The relations that an operator reads."""
    return frozenset(found.relation for found in walk(node) if isinstance(found, Scan))


def expressions(node: Node) -> tuple[exp.Expr, ...]:
    """The expressions that an operator computes from the columns of its inputs."""
    match node:
        case Filter() | Join() | OuterJoin() | Mark():
            return node.conditions
        case Project():
            return node.expressions
        case Generate():
            return (node.function,)
        case Aggregate() | Window():
            return node.calls
        case TopN():
            return node.order
        case _:
            return ()


def used(expression: exp.Expr) -> frozenset[str]:
    """The columns that an expression refers to."""
    return frozenset(column.name for column in expression.find_all(exp.Column))


def is_row_by_row(node: Node) -> bool:
    """Whether each row of an operator is made of one row of a relation."""
    while isinstance(node, Filter | Project):
        node = node.child
    return isinstance(node, Scan)
