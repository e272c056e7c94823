"""What must be known of Spark's functions to differentiate a query that calls them."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Final

from sqlglot import exp

_SKETCHES: Final = frozenset(
    {
        "approx_top_k_accumulate", "approx_top_k_combine", "collect_union", "kll_merge_agg_bigint",
        "kll_merge_agg_double", "kll_merge_agg_float", "kll_sketch_agg_bigint",
        "kll_sketch_agg_double", "kll_sketch_agg_float", "theta_intersection_agg",
        "theta_sketch_agg", "theta_union_agg", "tuple_intersection_agg_double",
        "tuple_intersection_agg_integer", "tuple_sketch_agg_double", "tuple_sketch_agg_integer",
        "tuple_union_agg_double", "tuple_union_agg_integer",
    }
)  # fmt: skip
"""Aggregates whose bytes depend on the order of rows."""

_AGGREGATES: Final = _SKETCHES | frozenset(
    {
        "any", "approx_top_k", "bit_and", "bit_or", "bit_xor", "bitmap_construct_agg",
        "bitmap_or_agg", "count_min_sketch", "every", "histogram_numeric", "hll_sketch_agg",
        "hll_union_agg", "kurtosis", "mean", "percentile", "percentile_cont", "percentile_disc",
        "regr_avgx", "regr_avgy", "regr_count", "regr_intercept", "regr_r2", "regr_slope",
        "regr_sxx", "regr_sxy", "regr_syy", "skewness", "some", "std", "try_avg", "try_sum",
        "first_value", "last_value", "listagg", "string_agg", "any_value", "array_agg",
        "collect_list", "collect_set", "max_by", "min_by", "mode", "schema_of_json_agg",
        "schema_of_variant_agg", "bool_and", "bool_or", "approx_percentile", "percentile_approx",
        "bitmap_and_agg", "vector_avg", "vector_sum",
    }
)  # fmt: skip
"""Aggregates of Spark that the parser may know by name only."""

_NOT_AGGREGATES: Final = (exp.Grouping, exp.GroupingId, exp.Lag, exp.Lead, exp.RowNumber)
"""Functions that the parser counts among aggregates, although they aggregate nothing."""

ZERO_OVER_NOTHING: Final = (exp.Count, exp.CountIf, exp.ApproxDistinct, exp.RegrCount)
"""Aggregates that are 0 over no rows; those of NULL_OVER_NOTHING are NULL."""

NULL_OVER_NOTHING: Final = (
    exp.Sum, exp.Avg, exp.Min, exp.Max, exp.Stddev, exp.StddevPop, exp.StddevSamp, exp.Variance,
    exp.VariancePop, exp.Median, exp.LogicalAnd, exp.LogicalOr, exp.Corr, exp.CovarPop,
    exp.CovarSamp, exp.AnyValue, exp.ArgMax, exp.ArgMin,
)  # fmt: skip

_BY_ORDER: Final = (
    exp.First, exp.Last, exp.FirstValue, exp.LastValue, exp.NthValue, exp.AnyValue, exp.ArrayAgg,
    exp.ArrayUniqueAgg, exp.GroupConcat, exp.Mode, exp.ApproxQuantile, exp.ApproxTopK, exp.ArgMax,
    exp.ArgMin, exp.ParameterizedAgg,
)  # fmt: skip
_BY_ORDER_NAMES: Final = _SKETCHES | frozenset(
    {
        "first", "last", "first_value", "last_value", "any_value", "array_agg", "collect_list",
        "collect_set", "listagg", "string_agg", "mode", "approx_percentile", "percentile_approx",
        "histogram_numeric", "approx_top_k", "max_by", "min_by",
    }
)  # fmt: skip
_SORTS: Final = (exp.ArraySort, exp.ArraySize)
_SORTS_NAMES: Final = frozenset({"array_sort", "sort_array", "size", "cardinality", "array_size"})

_UNBOUNDED: Final = "UNBOUNDED"
_FRAMELESS: Final = (exp.RowNumber, exp.Lag, exp.Lead, exp.Ntile)
"""They look at the order of a partition, whatever the frame."""

_TIED_WINDOWS: Final = (
    exp.FirstValue, exp.LastValue, exp.NthValue, exp.First, exp.Last,
)  # fmt: skip


def is_query(node: exp.Expr) -> bool:
    """Whether an expression is a query inside another expression."""
    return isinstance(node, exp.Query)


def is_aggregate(node: exp.Expr) -> bool:
    """Whether an expression calls an aggregate, other than as a window function."""
    if isinstance(node, _NOT_AGGREGATES):
        return False
    named = isinstance(node, exp.Anonymous) and node.name.lower() in _AGGREGATES
    return named or isinstance(node, exp.AggFunc)


def outermost(node: exp.Expr, *, windows: bool) -> Iterator[exp.Expr]:
    """The outermost aggregates of an expression (or, with `windows`, its window functions).

    An aggregate comes with its FILTER or WITHIN GROUP. Subqueries are left out: what they call is
    theirs.
    """
    if is_query(node):
        return
    if isinstance(node, exp.Window):
        if windows:
            yield node
            return
        yield from _inside_window(node)
        return
    if not windows and (is_aggregate(node) or (_wraps(node) and is_aggregate(core(node)))):
        yield node
        return
    for child in node.iter_expressions():
        yield from outermost(child, windows=windows)


def _inside_window(node: exp.Window) -> Iterator[exp.Expr]:
    """The aggregates that a window function is computed over: `rank() OVER (ORDER BY sum(x))`."""
    around = [child for child in node.iter_expressions() if child is not node.this]
    for child in (*around, *core(node.this).iter_expressions()):
        yield from outermost(child, windows=False)


def _wraps(node: exp.Expr) -> bool:
    return isinstance(node, exp.Filter | exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls)


def core(node: exp.Expr) -> exp.Expr:
    """The function that is called, without FILTER, WITHIN GROUP or IGNORE NULLS."""
    while _wraps(node):
        node = node.this
    return node


def makes_rows(expression: exp.Expr) -> bool:
    """Whether an expression decides how many rows there are: a generator, or `window(…)`.

    A sliding window is a row of its own for each copy, and a row without a time has none.
    """
    return any(
        isinstance(node, exp.UDTF)
        or (isinstance(node, exp.Anonymous) and node.name.lower() in _GENERATORS)
        for node in expression.walk()
    )


_GENERATORS: Final = frozenset(
    {
        "explode", "explode_outer", "inline", "inline_outer", "json_tuple", "parse_url_tuple",
        "posexplode", "posexplode_outer", "session_window", "sql_keywords", "stack",
        "variant_explode", "variant_explode_outer", "window",
    }
)  # fmt: skip


def depends_on_order(call: exp.Expr) -> bool:
    """Whether an aggregate's result depends on the order of rows, which a group does not have."""
    inner = core(call)
    named = isinstance(inner, exp.Anonymous) and inner.name.lower() in _BY_ORDER_NAMES
    if not named and not isinstance(inner, _BY_ORDER):
        return False
    if _is_ordered(call):
        return False
    around = call.parent
    sorted_after = isinstance(around, _SORTS) or (
        isinstance(around, exp.Anonymous) and around.name.lower() in _SORTS_NAMES
    )
    return not sorted_after


def _is_ordered(call: exp.Expr) -> bool:
    """Whether a text is joined in an order that leaves only equal pieces open."""
    while isinstance(call, exp.Filter):
        call = call.this
    inner = core(call)
    if not isinstance(call, exp.WithinGroup) or inner.name.lower() not in _JOINED:
        return False
    keys = [key.this for key in call.expression.expressions]
    pieces = inner.expressions[0]
    return pieces in keys or all(column in keys for column in pieces.find_all(exp.Column))


_JOINED: Final = frozenset({"listagg", "string_agg"})


class Ties(StrEnum):
    """What must be done so that rows which an ORDER BY leaves equal cannot be told apart."""

    NONE = "none"
    """Nothing: the function does not tell them apart."""
    ORDER = "order"
    """The order is completed by all columns."""
    WHOLE = "whole"
    """The order is completed, and the frame, which is the whole partition, is by rows."""
    OPEN = "open"
    """There is no way: equal rows share a frame, and an order that tells them apart changes it."""


def ties_of(window: exp.Window) -> Ties:
    """How a window function depends on the order of rows that its ORDER BY leaves equal."""
    inner = core(window.this)
    if isinstance(inner, _FRAMELESS):
        return Ties.ORDER
    kind, start, end = _frame(window)
    is_whole = start == end == _UNBOUNDED
    named = isinstance(inner, exp.Anonymous) and inner.name.lower() in _BY_ORDER_NAMES
    if not named and not isinstance(inner, (*_TIED_WINDOWS, *_BY_ORDER)):
        return Ties.ORDER if kind == "ROWS" and not is_whole else Ties.NONE
    if is_whole:
        return Ties.WHOLE
    is_first = isinstance(inner, exp.First | exp.FirstValue) and not _skips_nulls(window.this)
    return Ties.ORDER if kind == "ROWS" or (is_first and start == _UNBOUNDED) else Ties.OPEN


def _frame(window: exp.Window) -> tuple[str, str, str]:
    """Kind, start and end of a window's frame; without one it ends with the row and its equals."""
    spec = window.args.get("spec")
    if spec is None:
        ordered = window.args.get("order") is not None
        return "RANGE", _UNBOUNDED, "CURRENT ROW" if ordered else _UNBOUNDED
    start, end = (str(spec.args.get(key) or "CURRENT ROW").upper() for key in ("start", "end"))
    return str(spec.args.get("kind") or "RANGE").upper(), start, end


def _skips_nulls(call: exp.Expr) -> bool:
    return isinstance(call, exp.IgnoreNulls) or len(core(call).args.get("expressions") or ()) > 0
