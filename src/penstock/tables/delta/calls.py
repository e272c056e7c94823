"""Aggregates that can be kept: which function of which arguments, and of which types.

What is added up must be taken back exactly. So sums are of integers and decimals, short enough for
what is kept of them; counts and extremes are of anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from sqlglot import exp

from penstock.tables.delta.functions import core
from penstock.tables.delta.moments import PAIRS, PRECISION_MAX, SCALE_MAX

INTEGERS: Final = frozenset({"tinyint", "smallint", "int", "bigint"})
DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(\d+)\)")
KEPT_SCALE: Final = 6
"""Spark keeps so many digits behind the point of a decimal whatever it is multiplied with."""
_SUM_PRECISION_MAX: Final = 26
"""A decimal of a larger scale must keep it when multiplied with a weight: p + 12 digits of 38."""
_AVG_PRECISION_MAX: Final = 18
_AVG_DIGITS_MAX: Final = 29
"""The mean of a decimal is found in whole numbers: its sum by its count is a BIGINT, and the mean
with its four digits more is a number of p + s + 9 digits on the way."""


class Call(NamedTuple):
    """An aggregate: what it does with which arguments (none for rows), and its column.

    One of two arguments looks at rows in which both are known.
    """

    function: str
    arguments: tuple[int, ...]
    column: str


def read_call(call: exp.Expr, column: str, arguments: list[exp.Expr]) -> Call | None:
    """An aggregate as a sum, count or extreme of an argument; None if it is another."""
    inner = core(call)
    function = _FUNCTIONS.get(type(inner))
    if function is None or inner.args.get("expressions") or isinstance(inner.this, exp.Distinct):
        return None
    if call is not inner and not (isinstance(call, exp.Filter) and call.this is inner):
        return None
    found = _arguments(inner, function)
    if isinstance(call, exp.Filter):
        one = [exp.Literal.number(1)]
        found = [_only_if(call.expression.this, each) for each in found or one]
    for each in found:
        if each not in arguments:
            arguments.append(each)
    return Call(function, tuple(arguments.index(each) for each in found), column)


def _arguments(call: exp.Expr, function: str) -> list[exp.Expr]:
    """What a function is computed from; nothing if it counts rows."""
    one = call.this
    if isinstance(call, exp.CountIf):
        return [_only_if(one, exp.Literal.number(1))]
    if function in PAIRS:
        other = call.expression
        return [_only_if(_is_known(other), one), _only_if(_is_known(one), other)]
    return [] if isinstance(one, exp.Star) else [one]


def _is_known(value: exp.Expr) -> exp.Expr:
    return exp.not_(exp.Is(this=exp.paren(value.copy()), expression=exp.null()))


def _only_if(condition: exp.Expr, value: exp.Expr) -> exp.Expr:
    return exp.Case(ifs=[exp.If(this=condition.copy(), true=value.copy())])


_FUNCTIONS: Final[dict[type[exp.Expr], str]] = {
    exp.Count: "count",
    exp.CountIf: "count",
    exp.Sum: "sum",
    exp.Avg: "avg",
    exp.Min: "min",
    exp.Max: "max",
    exp.VariancePop: "var_pop",
    exp.Variance: "var_samp",
    exp.StddevPop: "stddev_pop",
    exp.Stddev: "stddev_samp",
    exp.StddevSamp: "stddev_samp",
    exp.CovarPop: "covar_pop",
    exp.CovarSamp: "covar_samp",
    exp.Corr: "corr",
}


def is_kept(call: Call, types: Sequence[str]) -> bool:
    """Whether a call over arguments of these types can be taken back exactly."""
    if call.function in ("count", "min", "max"):
        return True
    return all(_is_added_up(call.function, types[place]) for place in call.arguments)


def _is_added_up(function: str, kind: str) -> bool:
    found = DECIMAL.fullmatch(kind)
    if found is None:
        return kind in INTEGERS
    digits, scale = int(found[1]), int(found[2])
    if function == "sum":
        return digits <= _SUM_PRECISION_MAX or scale <= KEPT_SCALE
    if function == "avg":
        return digits <= _AVG_PRECISION_MAX and digits + scale <= _AVG_DIGITS_MAX
    return digits <= PRECISION_MAX and scale <= SCALE_MAX
