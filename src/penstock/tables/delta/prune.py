"""Leaves out columns that nothing above uses, so that keys and whole rows are compared narrowly."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import assert_never

from sqlglot import exp

from penstock.tables.delta.algebra import (
    Aggregate,
    Constant,
    Filter,
    Generate,
    Join,
    Mark,
    Node,
    OuterJoin,
    Project,
    Scan,
    SetOperation,
    TopN,
    Union,
    Window,
    used,
)
from penstock.tables.delta.functions import makes_rows


def pruned(node: Node, needed: Collection[str]) -> Node:  # noqa: C901 - one case per operator
    """An operator whose inputs have the columns that it needs and few others.

    The result may keep columns that were not asked for; those that were, it has.
    """
    match node:
        case Scan():
            return _scan(node, needed)
        case Constant():
            return node
        case Filter():
            below = pruned(node.child, {*needed, *_used(node.conditions)})
            return replace(node, child=below)
        case Project():
            return _project(node, needed)
        case Generate():
            keep = (set(needed) - set(node.made)) | used(node.function)
            return replace(node, child=pruned(node.child, keep))
        case Join():
            keep = {*needed, *_used(node.conditions)}
            return replace(node, inputs=tuple(pruned(child, keep) for child in node.inputs))
        case OuterJoin():
            keep = {*needed, *_used(node.conditions)}
            return replace(node, left=pruned(node.left, keep), right=pruned(node.right, keep))
        case Mark():
            on = _used(node.conditions)
            left = pruned(node.left, {*needed, *on})
            return replace(node, left=left, right=pruned(node.right, on))
        case Aggregate():
            return _aggregate(node, needed)
        case Window():
            return _window(node, needed)
        case TopN():
            return replace(node, child=_exactly(node.child, {*needed, *_used(node.order)}))
        case Union():
            return _union(node, needed)
        case SetOperation():
            left = pruned(node.left, node.left.columns)
            return replace(node, left=left, right=pruned(node.right, node.right.columns))
        case _:
            assert_never(node)


def _scan(node: Scan, needed: Collection[str]) -> Scan:
    pairs = zip(node.columns, node.fields, strict=True)
    kept = [pair for pair in pairs if pair[0] in needed]
    kept = kept or [(node.columns[0], node.fields[0])]  # rows are counted by some column
    return Scan(node.relation, tuple(c for c, _ in kept), tuple(f for _, f in kept))


def _project(node: Project, needed: Collection[str]) -> Project:
    pairs = list(zip(node.columns, node.expressions, strict=True))
    # What makes rows of its own must stay, even if its column is not used.
    kept = [pair for pair in pairs if pair[0] in needed or makes_rows(pair[1])] or pairs[:1]
    below = pruned(node.child, _used(expression for _, expression in kept))
    return Project(below, tuple(c for c, _ in kept), tuple(e for _, e in kept))


def _aggregate(node: Aggregate, needed: Collection[str]) -> Aggregate:
    pairs = [p for p in zip(node.made, node.calls, strict=True) if p[0] in needed]
    if node.calls and not pairs and node.is_global:
        pairs = [(node.made[0], node.calls[0])]
    calls = tuple(call for _, call in pairs)
    below = _exactly(node.child, {*node.keys, *_used(calls)})
    return replace(node, child=below, made=tuple(name for name, _ in pairs), calls=calls)


def _window(node: Window, needed: Collection[str]) -> Node:
    pairs = [p for p in zip(node.made, node.calls, strict=True) if p[0] in needed]
    calls = tuple(call for _, call in pairs)
    keep = (set(needed) - set(node.made)) | set(node.keys) | _used(calls)
    if not calls:
        return pruned(node.child, keep)
    made = tuple(name for name, _ in pairs)
    return replace(node, child=_exactly(node.child, keep), made=made, calls=calls)


def _union(node: Union, needed: Collection[str]) -> Union:
    places = [p for p, name in enumerate(node.columns) if name in needed] or [0]
    inputs = []
    for child in node.inputs:
        wanted = tuple(child.columns[place] for place in places)
        below = pruned(child, wanted)
        if below.columns != wanted:
            below = Project(below, wanted, tuple(exp.column(name) for name in wanted))
        inputs.append(below)
    return Union(tuple(inputs), tuple(node.columns[place] for place in places))


def _exactly(node: Node, needed: Collection[str]) -> Node:
    """An operator with the needed columns and no others: whole rows of it will be compared."""
    below = pruned(node, needed)
    wanted = tuple(name for name in below.columns if name in needed) or below.columns[:1]
    if wanted == below.columns:
        return below
    # Fresh names are not needed: a column that is passed on keeps its name.
    return Project(below, wanted, tuple(exp.column(name) for name in wanted))


def _used(expressions: Iterable[exp.Expr]) -> set[str]:
    return {name for expression in expressions for name in used(expression)}
