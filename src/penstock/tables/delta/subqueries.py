"""Subqueries in expressions, decorrelated: EXISTS and IN are marks, scalars are grouped joins.

IN has a third value: it is unknown where nothing is equal but something could be, because it or the
value is NULL. A scalar subquery over nothing is NULL, and 0 where it counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from sqlglot import exp

from penstock.tables.delta.algebra import (
    Aggregate,
    Filter,
    Join,
    Mark,
    Node,
    OuterJoin,
    Project,
    used,
)
from penstock.tables.delta.block import (
    Block,
    Compiling,
    Cte,
    Relation,
    with_ctes,
    without_outer_not,
)
from penstock.tables.delta.functions import (
    NULL_OVER_NOTHING,
    ZERO_OVER_NOTHING,
    core,
    is_query,
    outermost,
)
from penstock.tables.delta.grouping import calls_of, check_call, grouped, is_grouped
from penstock.tables.delta.marks import key_pairs
from penstock.tables.delta.refusal import Cause, refusal
from penstock.tables.delta.scope import Scope


class Selects(Compiling, Protocol):
    """Compiles the queries inside an expression."""

    def query(
        self, tree: exp.Expr, ctes: Mapping[str, Cte], outer: Scope | None = None
    ) -> Relation:
        """Compile a whole query."""
        ...

    def block(self, select: exp.Select, ctes: Mapping[str, Cte], outer: Scope | None) -> Block:
        """Compile FROM and WHERE; conditions on columns of outer queries are left over."""
        ...

    def shaped(self, select: exp.Select, block: Block) -> Relation:
        """Compile what a SELECT does with the rows of its block."""
        ...


class _Inner(NamedTuple):
    """The rows of a subquery, its values, and the conditions that tie it to the outer query."""

    node: Node
    values: tuple[exp.Expr, ...]
    conditions: tuple[exp.Expr, ...]


def keep_where(lowering: Selects, block: Block, condition: exp.Expr) -> None:
    """Keep the rows of a block that meet a condition with subqueries."""
    negated = isinstance(condition, exp.Not)
    inner = condition.this.unnest() if negated else condition
    if isinstance(inner, exp.Exists):
        found = _inner(lowering, block, inner.this, is_exists=True)
        _mark(block, found.node, found.conditions, keep=not negated)
    elif isinstance(inner, exp.In) and inner.args.get("query") and not negated:
        _keep_in(lowering, block, inner)
    elif isinstance(inner, exp.In) and inner.args.get("query"):
        _keep_not_in(lowering, block, inner)
    else:
        text = lowered(lowering, block, condition)
        if not used(text) <= block.columns:
            raise refusal(Cause.CORRELATED, condition, "refers to a query around it from here")
        block.pending.append(text)


def lowered(lowering: Selects, block: Block, expression: exp.Expr) -> exp.Expr:
    """An expression whose subqueries have become columns of the block."""

    def step(node: exp.Expr) -> exp.Expr:
        if node in block.known:
            return block.replaced(node)
        if isinstance(node, exp.Exists):
            found = _inner(lowering, block, node.this, is_exists=True)
            return exp.column(_marked(lowering, block, found.node, found.conditions))
        negated = isinstance(node, exp.Not)
        inner = node.this.unnest() if negated else node
        if isinstance(inner, exp.In) and inner.args.get("query"):
            return _in(lowering, block, inner, negated=negated)
        if is_query(node):
            return _scalar(lowering, block, node)
        if isinstance(node, exp.All | exp.Any) and is_query(node.this):
            raise refusal(Cause.UNSUPPORTED, node, "ALL and ANY of a subquery have no rule")
        return block.replaced(node)

    inwards = expression.copy().transform(without_outer_not, copy=False)
    return inwards.transform(step, copy=False)


# EXISTS and IN -----------------------------------------------------------------------------------


def _mark(block: Block, right: Node, conditions: tuple[exp.Expr, ...], *, keep: bool) -> None:
    left = block.node
    _check_near(left, right, conditions)
    block.inputs[:] = [Mark(left, right, conditions, keep=keep)]


def _marked(lowering: Selects, block: Block, right: Node, conditions: tuple[exp.Expr, ...]) -> str:
    left, name = block.node, lowering.fresh()
    _check_near(left, right, conditions)
    block.inputs[:] = [Mark(left, right, conditions, keep=None, mark=name)]
    return name


def _check_near(left: Node, right: Node, conditions: Sequence[exp.Expr]) -> None:
    known = frozenset(left.columns) | frozenset(right.columns)
    for condition in conditions:
        if not used(condition) <= known:
            raise refusal(
                Cause.CORRELATED, "a subquery", "refers to a query further out than the next"
            )


def _inner(lowering: Selects, block: Block, query: exp.Expr, *, is_exists: bool = False) -> _Inner:
    """A subquery of which only matter its rows, not how many there are of each."""
    tree = query.unnest() if isinstance(query, exp.Subquery | exp.Paren) else query
    ctes = with_ctes(tree, block.ctes)
    limit = tree.args.get("limit")
    if is_exists and limit is not None and not tree.args.get("offset"):
        found = limit.expression
        if isinstance(found, exp.Literal) and found.name.isdigit() and int(found.name) > 0:
            limit = None  # one row is enough
    if not isinstance(tree, exp.Select) or limit is not None or _has_windows(tree):
        relation = lowering.query(tree, ctes, block.scope)
        return _Inner(relation.node, tuple(exp.column(c) for c in relation.node.columns), ())
    inner = lowering.block(tree, ctes, block.scope)
    projections = [projection.unalias() for projection in tree.expressions]
    if is_grouped(tree):
        return _inner_grouped(lowering, block, tree, inner)
    values = tuple(inner.lower(p) for p in projections if not isinstance(p, exp.Star))
    return _Inner(inner.node, values, tuple(inner.correlated))


def _inner_grouped(lowering: Selects, block: Block, tree: exp.Select, inner: Block) -> _Inner:
    """A subquery with GROUP BY: it is grouped for each of the outer values it depends on."""
    if inner.correlated and not tree.args.get("group"):
        raise refusal(Cause.CORRELATED, tree, "an aggregate of a correlated EXISTS or IN")
    domain = _domain(lowering, block, inner)
    groups = grouped(lowering, tree, inner, extra=tuple(domain))
    values = tuple(groups.lower(projection.unalias()) for projection in tree.expressions)
    ties = tuple(
        exp.NullSafeEQ(this=exp.column(outer), expression=exp.column(ours))
        for ours, outer in domain.items()
    )
    return _Inner(groups.node, values, ties)


def _domain(lowering: Selects, block: Block, inner: Block) -> dict[str, str]:
    """Join a subquery with the distinct outer values that it depends on; ours to the outer's."""
    if not inner.correlated:
        return {}
    outer = frozenset(block.columns)
    names = sorted({name for c in inner.correlated for name in used(c)} & outer)
    domain = {lowering.fresh(): name for name in names}
    keys = tuple(domain)
    child = Project(block.node, keys, tuple(exp.column(name) for name in names))
    inner.inputs.append(Aggregate(child, keys, (), (), is_global=False))
    back = {outer_name: ours for ours, outer_name in domain.items()}

    def step(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and node.name in back:
            return exp.column(back[node.name])
        return node

    inner.pending += [condition.transform(step) for condition in inner.correlated]
    inner.correlated.clear()
    return domain


def _operands(block: Block, node: exp.In, found: _Inner) -> list[exp.Expr]:
    """The values on the left of IN, as many as the subquery has columns."""
    pieces = node.this.expressions if isinstance(node.this, exp.Tuple) else [node.this]
    if len(pieces) != len(found.values):
        raise refusal(Cause.UNSUPPORTED, node, "its sides have different columns")
    return [block.lower(piece) for piece in pieces]


def _equalities(operands: Sequence[exp.Expr], found: _Inner) -> tuple[exp.Expr, ...]:
    pairs = zip(operands, found.values, strict=True)
    return tuple(exp.EQ(this=one.copy(), expression=two.copy()) for one, two in pairs)


def _keep_in(lowering: Selects, block: Block, node: exp.In) -> None:
    found = _inner(lowering, block, node.args["query"])
    operands = _operands(block, node, found)
    _mark(block, found.node, (*_equalities(operands, found), *found.conditions), keep=True)


def _keep_not_in(lowering: Selects, block: Block, node: exp.In) -> None:
    """NOT IN: nothing is equal, and nothing could be."""
    found = _inner(lowering, block, node.args["query"])
    operands = _operands(block, node, found)
    equal = _equalities(operands, found)
    _mark(block, found.node, (*equal, *found.conditions), keep=False)
    unknown = _unknown(lowering, block, node, operands)
    block.pending.append(exp.not_(exp.paren(unknown)))


def _in(lowering: Selects, block: Block, node: exp.In, *, negated: bool) -> exp.Expr:
    """IN and NOT IN as values: Spark's are false where they are unknown."""
    found = _inner(lowering, block, node.args["query"])
    operands = _operands(block, node, found)
    equal = exp.column(
        _marked(lowering, block, found.node, (*_equalities(operands, found), *found.conditions))
    )
    if not negated:
        return equal
    unknown = _unknown(lowering, block, node, operands)
    return exp.paren(exp.not_(exp.paren(exp.or_(equal, exp.paren(unknown)))))


def _unknown(
    lowering: Selects, block: Block, node: exp.In, operands: Sequence[exp.Expr]
) -> exp.Expr:
    """Whether something could be equal if NULLs were known.

    The subquery is compiled again for each mark, because no two operators share columns.
    """
    if len(operands) > 1:
        found = _inner(lowering, block, node.args["query"])
        equal = exp.and_(*_equalities(operands, found))
        could = exp.Coalesce(this=exp.paren(equal), expressions=[exp.true()])
        return exp.column(_marked(lowering, block, found.node, (could, *found.conditions)))
    found = _inner(lowering, block, node.args["query"])
    nulls = Filter(found.node, (exp.Is(this=found.values[0].copy(), expression=exp.null()),))
    has_null = _marked(lowering, block, nulls, found.conditions)
    found = _inner(lowering, block, node.args["query"])
    has_rows = _marked(lowering, block, found.node, found.conditions)
    is_null = exp.Is(this=operands[0].copy(), expression=exp.null())
    return exp.or_(exp.column(has_null), exp.and_(is_null, exp.column(has_rows)))


def _has_windows(select: exp.Select) -> bool:
    pieces = [
        *select.expressions,
        *([select.args["qualify"]] if select.args.get("qualify") else []),
    ]
    return any(True for piece in pieces for _ in outermost(piece, windows=True))


# scalars -----------------------------------------------------------------------------------------


def _scalar(lowering: Selects, block: Block, query: exp.Expr) -> exp.Expr:
    """A subquery as a value."""
    tree = query.unnest() if isinstance(query, exp.Subquery | exp.Paren) else query
    ctes = with_ctes(tree, block.ctes)
    if not isinstance(tree, exp.Select):
        return _single(lowering, block, lowering.query(tree, ctes, block.scope), False)
    inner = lowering.block(tree, ctes, block.scope)
    if not inner.correlated:
        always_one = is_grouped(tree) and not tree.args.get("group") and not tree.args.get("having")
        return _single(lowering, block, lowering.shaped(tree, inner), always_one)
    for key in ("group", "having", "limit", "offset", "distinct", "qualify"):
        if tree.args.get(key):
            raise refusal(
                Cause.CORRELATED, tree.args[key], f"{key.upper()} in a correlated scalar subquery"
            )
    if _has_windows(tree):
        raise refusal(Cause.CORRELATED, tree, "a window in a correlated scalar subquery")
    return _grouped_scalar(lowering, block, tree, inner)


def _single(lowering: Selects, block: Block, found: Relation, always_one: bool) -> exp.Expr:
    """A value of an uncorrelated subquery: one row, joined to every row."""
    if len(found.names) != 1:
        raise refusal(Cause.UNSUPPORTED, "a scalar subquery", "must have one column")
    node, (column,) = found.node, found.node.columns
    if always_one:
        block.inputs[:] = [Join((block.node, node), ())]
        return exp.column(column)
    value, rows = lowering.fresh(), lowering.fresh()
    calls = _value_and_rows(exp.column(column))
    one = Aggregate(node, (), (value, rows), calls, is_global=True)
    block.inputs[:] = [Join((block.node, one), ())]
    return _checked(value, rows)


def _grouped_scalar(lowering: Selects, block: Block, tree: exp.Select, inner: Block) -> exp.Expr:
    """A value of a correlated subquery: computed for each key, joined by it."""
    outer, right = block.node, inner.node
    pairs, rest = key_pairs(Mark(outer, right, tuple(inner.correlated), keep=True))
    on: list[exp.Expr]
    if rest:
        domain = _domain(lowering, block, inner)
        keys = tuple(domain)
        on = [
            exp.NullSafeEQ(this=exp.column(o), expression=exp.column(k)) for k, o in domain.items()
        ]
    else:
        keys = tuple(inner.column(pair.right.copy()) for pair in pairs)
        on = [
            (exp.NullSafeEQ if pair.null_safe else exp.EQ)(
                this=pair.left.copy(), expression=exp.column(key)
            )
            for pair, key in zip(pairs, keys, strict=True)
        ]
    keys = tuple(dict.fromkeys(keys))
    (projection,) = tree.expressions
    projection = projection.unalias()
    calls = list(dict.fromkeys(calls_of(tree)))
    if calls:
        texts = [_known_over_nothing(inner, call) for call in calls]
    else:
        texts = list(_value_and_rows(inner.lower(projection)))
    made = tuple(lowering.fresh() for _ in texts)
    groups = Aggregate(inner.node, keys, made, tuple(texts), is_global=False)
    block.inputs[:] = [OuterJoin(block.node, groups, tuple(on), full=False, single=True)]
    if not calls:
        return _checked(*made)
    values: dict[exp.Expr, exp.Expr] = {}
    for call, name in zip(calls, made, strict=True):
        is_count = isinstance(core(call), ZERO_OVER_NOTHING)
        zero = exp.Coalesce(this=exp.column(name), expressions=[exp.Literal.number(0)])
        values[call] = zero if is_count else exp.column(name)

    def step(node: exp.Expr) -> exp.Expr:
        return values[node].copy() if node in values else block.replaced(node)

    return exp.paren(projection.copy().transform(step, copy=False))


def _known_over_nothing(inner: Block, call: exp.Expr) -> exp.Expr:
    check_call(call)
    if not isinstance(core(call), (*ZERO_OVER_NOTHING, *NULL_OVER_NOTHING)):
        raise refusal(Cause.UNSUPPORTED, call, "its value over no rows is not known")
    return inner.lower_parts(call)


def _value_and_rows(value: exp.Expr) -> tuple[exp.Expr, exp.Expr]:
    return exp.AnyValue(this=value), exp.Count(this=exp.Star())


def _checked(value: str, rows: str) -> exp.Expr:
    """A value, or the error that Spark raises where there are several."""
    error = exp.Anonymous(
        this="raise_error",
        expressions=[exp.Literal.string("a subquery used as an expression has several rows")],
    )
    many = exp.GT(this=exp.column(rows), expression=exp.Literal.number(1))
    return exp.Case(ifs=[exp.If(this=many, true=error)], default=exp.column(value))
