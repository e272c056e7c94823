"""Keys of two types: matches that the types of both sides make of values which differ.

Rows are matched by key: the rows of the right are counted or summed up by their own key, and then
joined with the left. Where Spark casts a side to compare it, values that differ may become equal:
'1' and '01' both match the number 1. Counted by key, a row of the left would then have two counts.
So a pair of keys whose types may do that is a condition like others, looked at row by row, and a
correlated subquery is summed up by the keys of the left.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from penstock.tables.delta.algebra import (
    Aggregate,
    Join,
    Mark,
    Node,
    OuterJoin,
    Project,
    children,
    walk,
    with_children,
)
from penstock.tables.delta.compiler import Compiled
from penstock.tables.delta.marks import KeyPair, key_pairs
from penstock.tables.delta.rules import Texts
from penstock.tables.delta.state import find_root
from penstock.tables.delta.writing import Names, listed, named

_INTEGERS: Final = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
"""The digits that Spark gives integers when it makes decimals of them."""
_FLOATS: Final = frozenset({"float", "double"})
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_DIGITS_MAX: Final = 38


def key_types_sql(compiled: Compiled, names: Names) -> str | None:
    """A query of the keys of all matches, the left and the right of each, for their types.

    None if the query has no such keys.
    """
    texts = Texts(names, ())
    sides: list[str] = []
    shown: list[str] = []
    for node, _, pair in _keys(compiled.node):
        for side, key in ((node.left, pair.left), (node.right, pair.right)):
            shown.append(f"k{len(shown)}")
            keys = listed(named([key], shown[-1:]))
            sides.append(f"(SELECT {keys} FROM ({texts.rows(side)}) AS rows) AS s{len(sides)}")
    if not sides:
        return None
    return texts.complete(f"SELECT {listed(shown)} FROM {' CROSS JOIN '.join(sides)}")


def with_safe_keys(compiled: Compiled, types: Sequence[str]) -> Compiled:
    """The same query, in which keys match by key only where equal ones have been equal before.

    `types` are those of the columns of `key_types_sql`, as Spark writes them.
    """
    found = list(_keys(compiled.node))
    if len(types) != 2 * len(found):
        raise ValueError(f"expected {2 * len(found)} types, found {len(types)}")
    sides = zip(types[::2], types[1::2], strict=True)
    unsafe = {
        id(condition)
        for (_, condition, _), (left, right) in zip(found, sides, strict=True)
        if not keeps_apart(left, right)
    }
    if not unsafe:
        return compiled
    node = _rewritten(compiled.node, unsafe)
    return replace(compiled, node=node, root=find_root(node, compiled.columns))


def keeps_apart(one: str, other: str) -> bool:
    """Whether values of each type stay different when Spark compares them with the other's.

    >>> keeps_apart("int", "bigint"), keeps_apart("decimal(10,2)", "int")
    (True, True)
    >>> keeps_apart("string", "int"), keeps_apart("bigint", "double")
    (False, False)
    """
    if one == other or {one, other} <= _FLOATS:
        return True
    ours, theirs = _digits(one), _digits(other)
    if ours is None or theirs is None:
        return False
    return max(ours[0], theirs[0]) + max(ours[1], theirs[1]) <= _DIGITS_MAX


def _digits(kind: str) -> tuple[int, int] | None:
    """The digits before and behind the point; None if a type has not so many exactly."""
    if kind in _INTEGERS:
        return _INTEGERS[kind], 0
    found = _DECIMAL.fullmatch(kind)
    return None if found is None else (int(found[1]) - int(found[2]), int(found[2]))


def _keys(node: Node) -> Iterator[tuple[Mark | OuterJoin, exp.Expr, KeyPair]]:
    """The pairs of keys in a query, with the conditions that they are."""
    for found in walk(node):
        if isinstance(found, Mark | OuterJoin):
            for condition in found.conditions:
                pairs, _ = key_pairs(Mark(found.left, found.right, (condition,), keep=True))
                if pairs:
                    yield found, condition, pairs[0]


def _rewritten(node: Node, unsafe: Collection[int]) -> Node:
    below = [_rewritten(child, unsafe) for child in children(node)]
    made = with_children(node, below) if below else node
    if not isinstance(made, Mark | OuterJoin) or not {*map(id, made.conditions)} & {*unsafe}:
        return made
    if isinstance(made, OuterJoin) and made.single:
        return _by_left_keys(made)
    conditions = tuple(
        exp.paren(each) if id(each) in unsafe else each  # in parentheses it is no pair of keys
        for each in made.conditions
    )
    return replace(made, conditions=conditions)


def _by_left_keys(node: OuterJoin) -> OuterJoin:
    """Groups that are joined by their keys, made for each key of the left instead."""
    groups = node.right
    assert isinstance(groups, Aggregate)
    pairs, rest = key_pairs(Mark(node.left, groups, node.conditions, keep=True))
    assert not rest
    keys = tuple(f"{groups.keys[0]}_{place}" for place in range(len(pairs)))
    values = Project(node.left, keys, tuple(pair.left.copy() for pair in pairs))
    domain = Aggregate(values, keys, (), (), is_global=False)
    met = tuple(
        (exp.NullSafeEQ if pair.null_safe else exp.EQ)(
            this=exp.column(key), expression=pair.right.copy()
        )
        for key, pair in zip(keys, pairs, strict=True)
    )
    on = tuple(
        exp.NullSafeEQ(this=pair.left.copy(), expression=exp.column(key))
        for key, pair in zip(keys, pairs, strict=True)
    )
    return replace(
        node,
        right=replace(groups, child=Join((groups.child, domain), met), keys=keys),
        conditions=on,
    )
