"""Which columns of a query's result identify a row, where the query says so.

A GROUP BY or DISTINCT that ends a query has a key, and so have rows that are passed on one by one
from a keyed topic or from a table with a key.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from penstock.tables.delta.algebra import Aggregate, Filter, Project, Scan
from penstock.tables.delta.compiler import Compiled


def key_columns(
    compiled: Compiled, known: Mapping[str, tuple[str, ...] | None]
) -> tuple[int, ...] | None:
    """The places of the key's columns in the result; empty if there is one row only.

    `known` are the keys of the relations that it reads. None: the rows have no key.
    """
    node = compiled.node
    shown = {column: place for place, column in reversed(list(enumerate(node.columns)))}
    while isinstance(node, Filter | Project):
        if isinstance(node, Project):
            passed = zip(node.columns, node.expressions, strict=True)
            shown = {
                expression.name: shown[column]
                for column, expression in passed
                if column in shown and isinstance(expression, exp.Column)
            }
        node = node.child
    if isinstance(node, Aggregate):
        wanted: tuple[str, ...] = node.keys
    elif isinstance(node, Scan) and known.get(node.relation) is not None:
        ours = {
            field.lower(): column for field, column in zip(node.fields, node.columns, strict=True)
        }
        wanted = tuple(ours.get(name.lower(), "") for name in known[node.relation] or ())
    else:
        return None
    return tuple(shown[name] for name in wanted) if all(name in shown for name in wanted) else None
