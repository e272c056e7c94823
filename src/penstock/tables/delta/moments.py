"""Means of decimals, variances and what is made of them, from sums that changes are added to.

Kept are the number of values, their sum, and the sum of products of pairs of them. All of it is
exact: values are whole numbers of their last digits, and only the last division is a float's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations_with_replacement
from typing import Final

PAIRS: Final = frozenset({"covar_pop", "covar_samp", "corr"})
MOMENTS: Final = PAIRS | {"var_pop", "var_samp", "stddev_pop", "stddev_samp"}

PRECISION_MAX: Final = 15
SCALE_MAX: Final = 6
"""Up to here Spark makes a decimal a whole number without rounding, and a double of it too."""

Scale = Callable[[int], int]
"""How many digits behind the point an argument has."""


def products(function: str, arguments: Sequence[int]) -> list[tuple[int, int]]:
    """The pairs of arguments whose products a function needs."""
    if function not in MOMENTS:
        return []
    found = list(combinations_with_replacement(sorted(arguments), 2))
    return [found[1]] if function.startswith("covar") and len(found) > 1 else found


def whole(text: str, scale: int) -> str:
    """A decimal as a whole number of its last digits."""
    return f"({text}) * CAST({10**scale} AS DECIMAL({scale + 1}, 0))" if scale else f"({text})"


def decimal_mean(total: str, number: str, digits: int, scale: int) -> str:
    """A sum by a count with four digits more, rounded half away from zero, as Spark's AVG is."""
    count = f"CAST({number} AS DECIMAL(19, 0))"
    units = f"CAST({whole(total, scale)} AS DECIMAL(38, 0))"
    quotient = f"CAST({units} DIV {count} AS DECIMAL(19, 0))"
    rest = f"CAST({units} - {quotient} * {count} AS DECIMAL(19, 0)) * 10000"
    last = f"CAST((2 * ABS({rest}) + {count}) DIV (2 * {count}) AS DECIMAL(5, 0))"
    found = f"{quotient} * 10000 + IF({total} < 0, -{last}, {last})"
    unit = f"CAST('1E-{scale + 4}' AS DECIMAL({scale + 4}, {scale + 4}))"
    return (
        f"CAST(CAST({found} AS DECIMAL({digits + 4}, 0)) * {unit} "
        f"AS DECIMAL({digits + 4}, {scale + 4}))"
    )


def moment(function: str, arguments: Sequence[int], scale: Scale) -> str:
    """The value of a function, from the columns `n0`, `s0`, `p0_0` of its arguments."""
    one, other = arguments[0], arguments[-1]
    number, spread = f"n{one}", _spread(one, other, scale)
    if function == "corr":
        both = f"SQRT({_spread(one, one, scale)} * {_spread(other, other, scale)})"
        return f"IF({number} > 1, {spread} / NULLIF({both}, 0), NULL)"
    less = int(function.endswith("_samp"))
    value = f"{spread} / ({number} - {less})"
    value = f"SQRT({value})" if function.startswith("stddev") else value
    return f"IF({number} > {less}, {value}, NULL)"


def _spread(one: int, other: int, scale: Scale) -> str:
    """The sum of products of two arguments' distances from their means.

    They are shifted by whole numbers near the means first, so that no number grows long.
    """
    sums = [f"CAST({whole(f's{place}', scale(place))} AS DECIMAL(38, 0))" for place in (one, other)]
    number = f"CAST(n{one} AS DECIMAL(19, 0))"
    near = [f"CAST(ROUND(CAST({total} AS DOUBLE) / n{one}) AS DECIMAL(19, 0))" for total in sums]
    shifted = (
        f"p{min(one, other)}_{max(one, other)} - {near[0]} * {sums[1]} - {near[1]} * {sums[0]} "
        f"+ {number} * {near[0]} * {near[1]}"
    )
    left = [
        f"CAST({total} - {number} * {mean} AS DOUBLE)"
        for total, mean in zip(sums, near, strict=True)
    ]
    unit = 10 ** (scale(one) + scale(other))
    spread = f"CAST({shifted} AS DOUBLE) - {left[0]} * {left[1]} / n{one}"
    return f"(({spread}) / CAST({unit} AS DOUBLE))"
