"""Columns that USING and NATURAL joins merge, as Spark merges them.

After `a JOIN b USING (k)` the column `k` is that of the left; after a RIGHT join that of the right,
and after a FULL join whichever is there. The next join by `k` compares with that column. sqlglot
takes the first of all tables that is not NULL, and compares with the first table: after a FULL
join, rows of the right alone would find no partner.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from sqlglot import exp

from penstock.tables.delta.refusal import Cause, refusal

_USING: Final = "penstock_using"
_DONE: Final = "penstock_merged"


def mark_using(tree: exp.Expr) -> None:
    """Remember which joins are by columns of equal names, before names are resolved."""
    for select in tree.find_all(exp.Select):
        direct = select.args.get("joins") or []
        joins = list(_joins(select))
        for join in joins:
            if join.args.get("using") or str(join.args.get("method") or "").upper() == "NATURAL":
                join.meta[_USING] = True
                if len(joins) > 1 and not any(join is found for found in direct):
                    raise refusal(Cause.UNSUPPORTED, join, "has no rule in parentheses")


def merge_using(tree: exp.Expr) -> None:
    """Put the columns that Spark takes in place of those that sqlglot has put there."""
    for select in reversed(list(tree.find_all(exp.Select))):
        merged: dict[str, exp.Expr] = {}
        for join in _joins(select):
            condition = join.args.get("on")
            if condition is None:
                continue
            if join.meta.get(_USING):
                join.set("on", exp.and_(*_met(join, condition, merged), copy=False))
            else:
                _replace(condition, merged)
        if merged:
            _replace(select, merged)


def _joins(select: exp.Select) -> list[exp.Join]:
    """The joins of a SELECT, but not those of queries inside it."""
    clause = select.args.get("from_")
    items = [clause, *(select.args.get("joins") or ())]
    return [
        found
        for item in items
        if item is not None
        for found in item.walk(bfs=False, prune=lambda node: isinstance(node, exp.Select))
        if isinstance(found, exp.Join)
    ]


def _met(join: exp.Join, condition: exp.Expr, merged: dict[str, exp.Expr]) -> list[exp.Expr]:
    """The conditions of a join by equal names; `merged` is what its columns are afterwards."""
    conditions: list[exp.Expr] = []
    for equal in list(_equalities(condition)):
        ours = equal.expression
        theirs = merged.get(ours.name)
        if theirs is None:
            theirs = equal.this.this if isinstance(equal.this, exp.Coalesce) else equal.this
        conditions.append(exp.EQ(this=theirs.copy(), expression=ours.copy()))
        side = str(join.args.get("side") or "").upper()
        if side == "RIGHT":
            merged[ours.name] = ours.copy()
        elif side == "FULL":
            both = exp.Coalesce(this=theirs.copy(), expressions=[ours.copy()])
            both.meta[_DONE] = True
            merged[ours.name] = both
        else:
            merged[ours.name] = theirs.copy()
    return conditions


def _equalities(condition: exp.Expr) -> Iterator[exp.Expr]:
    condition = condition.unnest()
    if isinstance(condition, exp.And):
        yield from _equalities(condition.this)
        yield from _equalities(condition.expression)
    else:
        yield condition


def _replace(tree: exp.Expr, merged: Mapping[str, exp.Expr]) -> None:
    """Replace what sqlglot made of merged columns; a COALESCE of the query is a call by name."""
    for node in list(tree.find_all(exp.Coalesce)):
        if node.meta.get(_DONE) or not isinstance(node.this, exp.Column):
            continue
        found = merged.get(node.this.name)
        if found is not None:
            node.replace(found.copy())
