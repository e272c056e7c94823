"""The final ORDER BY of a query, as columns of its result: the order in which rows are shown.

Stored rows have no order. A sort key can only be applied if it is in the result: a column, its
ordinal, or the exact expression that a column is made from.

>>> final_order("SELECT k, count(*) AS n FROM t GROUP BY k ORDER BY count(*) DESC, k", ["k", "n"])
(SortKey(column='n', descending=True, nulls_first=False), \
SortKey(column='k', descending=False, nulls_first=True))
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from penstock.tables.query.sources import parse_query


class SortKey(NamedTuple):
    """One column to sort by, with Spark's rules: NaN is larger than every number."""

    column: str
    descending: bool
    nulls_first: bool


def final_order(query: str, columns: Sequence[str]) -> tuple[SortKey, ...]:
    """The keys of a query's last ORDER BY, as far as they are columns of its result."""
    return _final_order(query, tuple(columns))


@lru_cache(maxsize=256)
def _final_order(query: str, columns: tuple[str, ...]) -> tuple[SortKey, ...]:
    tree: exp.Expr = parse_query(query)
    while isinstance(tree, exp.Subquery | exp.Paren) and tree.args.get("order") is None:
        tree = tree.this
    order = tree.args.get("order")
    keys: list[SortKey] = []
    for ordered in order.expressions if order is not None else ():
        found = _columns_of(ordered.this, _select_of(tree), columns)
        if not found:
            break  # later keys only break ties of this one
        how = bool(ordered.args.get("desc")), bool(ordered.args.get("nulls_first"))
        keys += [SortKey(name, *how) for name in found]
    return tuple(keys)


def sorted_places(rows: pa.Table, keys: Iterable[SortKey]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The indices that sort the rows by the keys; the sort is stable."""
    columns: dict[str, Any] = {}
    for key in keys:
        values = rows.column(key.column)
        columns[f"{len(columns)}"] = (_ranks(values, key), "ascending")
        columns[f"{len(columns)}"] = (
            _sortable(values), "descending" if key.descending else "ascending",
        )  # fmt: skip
    columns["place"] = (pa.chunked_array([np.arange(rows.num_rows, dtype=np.int64)]), "ascending")
    table = pa.table({name: values for name, (values, _) in columns.items()})
    found = pc.sort_indices(table, sort_keys=[(name, how) for name, (_, how) in columns.items()])
    return np.asarray(found, dtype=np.int64)


def _select_of(tree: exp.Expr) -> exp.Expr:
    """The SELECT that names the columns: the first one of a UNION."""
    while isinstance(tree, exp.SetOperation | exp.Subquery | exp.Paren):
        tree = tree.this
    return tree


def _columns_of(wanted: exp.Expr, select: exp.Expr, columns: tuple[str, ...]) -> list[str]:
    """The result columns that an ORDER BY expression refers to."""
    if isinstance(wanted, exp.Var) and wanted.name.upper() == "ALL":
        return list(columns)
    if isinstance(wanted, exp.Literal) and not wanted.is_string and wanted.name.isdigit():
        return [columns[int(wanted.name) - 1]] if 0 < int(wanted.name) <= len(columns) else []
    spelled = {name.lower(): name for name in columns}
    is_name = isinstance(wanted, exp.Column) and len(wanted.parts) == 1
    if is_name and wanted.name.lower() in spelled:
        return [spelled[wanted.name.lower()]]
    text = _normal(wanted)
    for projection in select.expressions:
        name = projection.alias_or_name.lower()
        if _normal(projection.unalias()) == text and name in spelled:
            return [spelled[name]]
    has_star = any(
        isinstance(p, exp.Star) or isinstance(p.this, exp.Star) for p in select.expressions
    )
    if isinstance(wanted, exp.Column) and has_star and wanted.name.lower() in spelled:
        return [spelled[wanted.name.lower()]]
    return []


def _normal(expression: exp.Expr) -> str:
    return expression.sql(dialect="spark", comments=False).lower().replace("`", "")


def _ranks(values: pa.ChunkedArray, key: SortKey) -> pa.ChunkedArray:
    """Sort ranks of NULL and NaN, which Arrow itself always puts last."""
    nan, value = (1, 2) if key.descending else (2, 1)
    ranks = pa.chunked_array([np.full(len(values), value, dtype=np.int8)])
    if pa.types.is_floating(values.type):
        is_nan = pc.fill_null(pc.is_nan(values), False)
        ranks = pc.if_else(is_nan, pa.scalar(nan, pa.int8()), ranks)
    return pc.if_else(pc.is_null(values), pa.scalar(0 if key.nulls_first else 3, pa.int8()), ranks)


def _sortable(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values that Arrow can sort: unchanged, or ranks for nested ones."""
    kind = values.type
    if not (pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType)):
        return values
    texts = [_comparable(value) for value in values.to_pylist()]
    places = {text: place for place, text in enumerate(sorted(set(texts)))}
    return pa.chunked_array([pa.array([places[text] for text in texts], pa.int64())])


def _comparable(value: Any) -> tuple[Any, ...]:
    """A value comparable with others of its type: NULL sorts first."""
    if value is None:
        return (0,)
    if isinstance(value, dict):
        return (1, *(_comparable(part) for part in value.values()))
    if isinstance(value, list):
        return (1, *(_comparable(part) for part in value))
    return (2, "") if value != value else (1, value)  # only NaN is not equal to itself
