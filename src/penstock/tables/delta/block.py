"""The rows of one SELECT while its clauses are compiled one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from sqlglot import exp

from penstock.tables.delta.algebra import Filter, Join, Node, Project, used
from penstock.tables.delta.functions import is_query
from penstock.tables.delta.refusal import Cause, refusal
from penstock.tables.delta.scope import Scope


class Relation(NamedTuple):
    """A compiled query: its operator, and the names of the operator's columns in the query."""

    node: Node
    names: tuple[str, ...]

    @property
    def columns(self) -> dict[str, str]:
        """Our names of the columns by those of the query."""
        return dict(zip(self.names, self.node.columns, strict=True))


class Cte(NamedTuple):
    """A query of a WITH clause, and the CTEs that it sees itself."""

    tree: exp.Expr
    alias: exp.TableAlias | None
    ctes: Mapping[str, Cte]


class Compiling(Protocol):
    """What a block asks of the compilation that it is part of."""

    def fresh(self) -> str:
        """A column name that no other operator has."""
        ...

    def keep_where(self, block: Block, condition: exp.Expr) -> None:
        """Keep the rows of a block that meet a condition with subqueries."""
        ...

    def with_queries(self, block: Block, expression: exp.Expr) -> exp.Expr:
        """An expression whose subqueries become part of the block."""
        ...


_AROUND_CALLS: Final = (
    exp.Window, exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls,
)  # fmt: skip
"""What stands around the call of an aggregate or a window function."""


@dataclass(slots=True)
class Block:
    """The rows that a SELECT works on while its clauses are compiled one after the other."""

    lowering: Compiling
    ctes: Mapping[str, Cte]
    scope: Scope
    inputs: list[Node] = field(default_factory=list)
    pending: list[exp.Expr] = field(default_factory=list)
    correlated: list[exp.Expr] = field(default_factory=list)
    known: dict[exp.Expr, str] = field(default_factory=dict)
    """Expressions that have become columns: aggregates, group keys, window functions."""

    @property
    def node(self) -> Node:
        """Everything so far as one operator."""
        if len(self.inputs) > 1 or self.pending:
            self.inputs[:] = [joined(self.inputs, self.pending)]
            self.pending.clear()
        return self.inputs[0]

    @property
    def has_cross(self) -> bool:
        """Whether several inputs have been put side by side."""
        return len(self.inputs) > 1

    @property
    def columns(self) -> frozenset[str]:
        """The columns of the inputs so far."""
        return frozenset(name for child in self.inputs for name in child.columns)

    def where(self, conditions: Iterable[exp.Expr], *, later: bool = False) -> None:
        """Keep the rows that meet conditions, which may hold subqueries.

        With `later` a condition may name columns of inputs that are still to come.
        """
        hard: list[exp.Expr] = []
        for condition in conditions:
            if has_query(condition):
                hard.append(condition)
                continue
            text = self.lower_plain(condition)
            if used(text) <= self.columns or later:
                self.pending.append(text)
            else:
                self.correlated.append(text)
        for condition in hard:
            self.lowering.keep_where(self, condition)

    def settle(self) -> None:
        """All inputs are there: what other conditions of joins name is of an outer query."""
        ours = self.columns
        self.correlated += [c for c in self.pending if not used(c) <= ours]
        self.pending[:] = [c for c in self.pending if used(c) <= ours]

    def lower(self, expression: exp.Expr) -> exp.Expr:
        """An expression over our columns; its subqueries become part of this block."""
        if has_query(expression) and expression not in self.known:
            return self.lowering.with_queries(self, expression)
        return self.lower_plain(expression)

    def lower_plain(self, expression: exp.Expr) -> exp.Expr:
        """An expression without subqueries over our columns."""
        return expression.copy().transform(self.replaced, copy=False)

    def lower_parts(self, expression: exp.Expr) -> exp.Expr:
        """The same for an expression that is not itself looked up among the known ones.

        Nor is the function of a window: `sum(sum(n)) OVER (…)` is a sum of what is known.
        """
        found = expression.copy()
        for key, value in list(found.args.items()):
            if isinstance(value, exp.Expr):
                of_window = key == "this" and isinstance(found, _AROUND_CALLS)
                found.set(key, self.lower_parts(value) if of_window else self.lower(value))
            elif isinstance(value, list):
                found.set(key, [self.lower(v) if isinstance(v, exp.Expr) else v for v in value])
        return found

    def replaced(self, node: exp.Expr) -> exp.Expr:
        """One step of lowering: a known expression or a column becomes one of our columns."""
        name = self.known.get(node)
        if name is not None:
            return exp.column(name)
        if isinstance(node, exp.Column) and not isinstance(node.this, exp.Star):
            found = self.scope.find(node)
            if found is None:
                raise refusal(Cause.UNRESOLVED, node, "does not name one column here")
            return exp.column(found)
        return node

    def column(self, expression: exp.Expr) -> str:
        """An expression over our columns as one of them."""
        if isinstance(expression, exp.Column):
            return expression.name
        node, name = self.node, self.lowering.fresh()
        kept = tuple(exp.column(column) for column in node.columns)
        self.inputs[:] = [Project(node, (*node.columns, name), (*kept, expression))]
        return name


def joined(inputs: Sequence[Node], conditions: Sequence[exp.Expr]) -> Node:
    """An inner join, whose conditions on one input alone are met before it."""
    rest = list(conditions)
    nodes: list[Node] = []
    for child in inputs:
        mine = [c for c in rest if used(c) and used(c) <= frozenset(child.columns)]
        rest = [c for c in rest if not any(c is found for found in mine)]
        nodes.append(Filter(child, tuple(mine)) if mine else child)
    if len(nodes) == 1:
        return Filter(nodes[0], tuple(rest)) if rest else nodes[0]
    constants = [c for c in rest if not used(c)]
    node: Node = Join(tuple(nodes), tuple(c for c in rest if used(c)))
    return Filter(node, tuple(constants)) if constants else node


def with_ctes(tree: exp.Expr, ctes: Mapping[str, Cte]) -> Mapping[str, Cte]:
    """The CTEs that a query sees: those around it, and its own."""
    clause = tree.args.get("with_")
    for cte in clause.expressions if clause is not None else ():
        ctes = {**ctes, cte.alias: Cte(cte.this, cte.args.get("alias"), ctes)}
    return ctes


def without_outer_not(condition: exp.Expr) -> exp.Expr:
    """A condition whose NOT stands before no AND, OR or NOT.

    Spark moves it inwards too, so that `NOT (x IN (…) OR y)` is a NOT IN with its third value.
    """
    if not isinstance(condition, exp.Not):
        return condition
    inner = condition.this.unnest()
    if isinstance(inner, exp.Not):
        return without_outer_not(inner.this.unnest())
    if not isinstance(inner, exp.And | exp.Or):
        return condition
    sides = [without_outer_not(exp.not_(side)) for side in (inner.this, inner.expression)]
    return exp.paren((exp.or_ if isinstance(inner, exp.And) else exp.and_)(*sides))


def conjuncts(condition: exp.Expr) -> list[exp.Expr]:
    """The conditions that an AND joins."""
    condition = without_outer_not(condition.unnest()).unnest()
    if isinstance(condition, exp.And):
        return [*conjuncts(condition.this), *conjuncts(condition.expression)]
    return [condition]


def has_query(expression: exp.Expr) -> bool:
    """Whether an expression holds a subquery."""
    return any(is_query(node) for node in expression.walk())
