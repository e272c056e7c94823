"""Whether a query can be refreshed incrementally, and what to report if it cannot.

A table is DIFFERENTIAL only if every operator of its query has a rule in `RULES`. Operators without
a rule are reported: at creation if DIFFERENTIAL is requested, in the history of each refresh under
AUTO. Volatile functions rule it out in any case.

>>> volatile_functions("SELECT uuid() AS id, current_timestamp() AS at, abs(n) AS n FROM raw")
('current_timestamp', 'uuid')
>>> differentiation("SELECT day, sum(n) AS n FROM raw GROUP BY day").text
'cannot be differentiated: no rule for aggregate, projection'
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from sqlglot import exp

from penstock.protocol.errors import NotDifferentiable
from penstock.tables.core.history import ReasonCode
from penstock.tables.core.model import Mode, TableDefinition
from penstock.tables.query.sources import parse_query
from penstock.tables.query.volatile import volatile_functions

RULES: Final[frozenset[str]] = frozenset()
"""The operators, as named by `operators`, through which changes can be propagated."""


class Differentiation(NamedTuple):
    """Whether a query can be differentiated; if not, why: a code for programs and a text."""

    possible: bool
    reason: ReasonCode = ReasonCode.AS_CONFIGURED
    text: str = ""


@lru_cache(maxsize=1_024)
def differentiation(query: str, rules: frozenset[str] = RULES) -> Differentiation:
    """Whether a query can be refreshed from changes alone."""
    functions = volatile_functions(query)
    if functions:
        names = ", ".join(f"{name}()" for name in functions)
        text = f"cannot be differentiated: {names} may answer differently each time"
        return Differentiation(False, ReasonCode.VOLATILE, text)
    missing = sorted(operators(query) - rules)
    if missing:
        text = f"cannot be differentiated: no rule for {', '.join(missing)}"
        return Differentiation(False, ReasonCode.NOT_DIFFERENTIABLE, text)
    return Differentiation(True)


def check_differential(tables: Iterable[TableDefinition]) -> None:
    """Reject tables configured as DIFFERENTIAL that cannot be."""
    for table in tables:
        if table.mode is Mode.DIFFERENTIAL:
            found = differentiation(table.query)
            if not found.possible:
                raise NotDifferentiable(
                    f"expected a query that changes can be carried through, for mode DIFFERENTIAL, "
                    f"found that {table.name} {found.text}",
                    table=table.name,
                )


def operators(query: str) -> frozenset[str]:
    """The operators in a query, by the names shown to people."""
    return frozenset(_operators(parse_query(query)))


def _operators(tree: exp.Query) -> Iterator[str]:
    for node in tree.walk():
        name = _SIMPLE.get(type(node))
        if name is not None:
            yield name
        elif isinstance(node, exp.With) and node.args.get("recursive"):
            yield "recursive CTE"
        elif isinstance(node, exp.Join):
            yield _join(node)
        elif isinstance(node, exp.SetOperation):
            yield _set_operation(node)
        elif isinstance(node, exp.AggFunc) and not isinstance(node.parent, exp.Window):
            yield "aggregate"


_SIMPLE: Final[dict[type[exp.Expr], str]] = {
    exp.Select: "projection",
    exp.Where: "filter",
    exp.Group: "aggregate",
    exp.Having: "HAVING",
    exp.Distinct: "DISTINCT",
    exp.Window: "window function",
    exp.Limit: "LIMIT",
    exp.Lateral: "LATERAL VIEW",
    exp.Subquery: "subquery",
    exp.Exists: "EXISTS",
    exp.Pivot: "PIVOT",
    exp.TableSample: "TABLESAMPLE",
}


def _join(join: exp.Join) -> str:
    words = [str(join.args.get(part) or "").lower() for part in ("side", "kind")]
    named = " ".join(word for word in words if word and word not in ("outer", "inner"))
    return f"{named or 'inner'} join"


def _set_operation(node: exp.SetOperation) -> str:
    every = "" if node.args.get("distinct", True) else " ALL"
    return f"{node.key.upper()}{every}"
