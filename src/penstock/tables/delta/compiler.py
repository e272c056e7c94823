"""Compiles a query so that it can be brought up to date from the changes of what it reads.

Pure: text in, text out. Spark decides on types, nullability and validity; here a query is only
taken apart (`front`, `lower`), narrowed (`prune`) and written again in terms of old rows and
changes (`rules`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from penstock.kernel.errors import PenstockError
from penstock.protocol.errors import NotDifferentiable
from penstock.tables.delta.algebra import (
    Node,
    children,
    expressions,
    is_row_by_row,
    relations,
    used,
    walk,
)
from penstock.tables.delta.front import RESERVED, qualified
from penstock.tables.delta.lower import Lowering
from penstock.tables.delta.prune import pruned
from penstock.tables.delta.ranges import Ranges
from penstock.tables.delta.refusal import Cause, refusal, shown
from penstock.tables.delta.rules import Texts
from penstock.tables.delta.state import Root, find_root
from penstock.tables.delta.writing import WEIGHT, Names, quoted

_log = logging.getLogger(__name__)

SUM_OF_WEIGHTS: Final = f"SUM({WEIGHT})"
_RESERVED: Final = frozenset({WEIGHT, "_penstock_weight"})
"""Columns of changes and of the change feed."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A query that can be differentiated.

    `columns` are those of its result, in order. With `breaks_ties`, rows that the query's own
    ORDER BY leaves open (in a window, or before LIMIT) are put into a total order: contents must
    then come from `full`, because the query's text may choose others. `root` is the aggregate that
    ends the query, if it may be kept as sums and counts.
    """

    query: str
    columns: tuple[str, ...]
    relations: frozenset[str]
    breaks_ties: bool
    root: Root | None
    node: Node

    def full(self, names: Names) -> str:
        """The whole query, compiled, over the views that `names.old` names."""
        texts = Texts(names, ())
        text = texts.rows(self.node)
        return texts.complete(f"SELECT {self._shown()} FROM ({text}) AS result")

    def delta(
        self,
        changed: Collection[str],
        names: Names,
        *,
        broadcast: bool = True,
        ranges: Ranges | None = None,
        consolidate: bool = True,
    ) -> str | None:
        """One SELECT of the result's columns and `__w`: every row that changes, once.

        None if no relation that it reads is among those changed. With `broadcast`, hints tell
        Spark that changes are small; `ranges` narrow what is read of the other sides of joins.
        Without `consolidate` a row may come several times, where that saves work: if the result has
        no more rows than the changes have.
        """
        texts = Texts(names, changed, broadcast=broadcast, ranges=ranges)
        text = texts.delta(self.node)
        if text is None:
            return None
        inner = ", ".join(self.node.columns)
        if consolidate or not is_row_by_row(self.node):
            text = (
                f"SELECT {inner}, {SUM_OF_WEIGHTS} AS {WEIGHT} FROM ({text}) AS changes "
                f"GROUP BY {inner} HAVING SUM({WEIGHT}) <> 0"
            )
        return texts.complete(f"SELECT {self._shown()}, {WEIGHT} FROM ({text}) AS result")

    def _shown(self) -> str:
        pairs = zip(self.node.columns, self.columns, strict=True)
        return ", ".join(f"{ours} AS {quoted(name)}" for ours, name in pairs)


def compile_query(
    query: str, columns: Mapping[str, Sequence[str]], output: Sequence[str] | None = None
) -> Compiled:
    """Compile a query; `NotDifferentiable` names the piece of it that has no rule.

    `columns` are those of each relation that it reads, by the names of `read_sources`. `output` are
    the names of the result's columns if they are known: Spark names expressions without an alias.
    Compiling takes milliseconds, and a refresh asks several times: the last thousand are kept.
    """
    known = tuple((name, tuple(columns[name])) for name in sorted(columns))
    found = _compiled(query, known, None if output is None else tuple(output))
    if isinstance(found, Compiled):
        return found
    raise NotDifferentiable(found.message, **found.detail)


@lru_cache(maxsize=1_024)
def _compiled(
    query: str, columns: tuple[tuple[str, tuple[str, ...]], ...], output: tuple[str, ...] | None
) -> Compiled | NotDifferentiable:
    try:
        return _compile(query, dict(columns), output)
    except NotDifferentiable as error:
        return error.with_traceback(None)
    except PenstockError:
        raise
    except Exception as error:  # a query that cannot be compiled can still be run
        _log.warning("the compiler failed on %s", shown(query), exc_info=True)
        why = f"the compiler failed ({type(error).__name__}: {error})"
        return refusal(Cause.UNSUPPORTED, "the query", why)


def _compile(
    query: str, columns: Mapping[str, Sequence[str]], output: Sequence[str] | None
) -> Compiled:
    source = qualified(query, columns)
    lowering = Lowering(source)
    found = lowering.query(source.tree, {})
    _check_closed(found.node)
    wanted = found.node.columns
    node = pruned(found.node, wanted)
    assert node.columns == wanted
    names = tuple(output) if output is not None else source.names
    if len(names) != len(wanted):
        raise refusal(Cause.UNRESOLVED, "the query", f"has {len(wanted)} columns, not {len(names)}")
    for name in names:
        if name.lower() in _RESERVED:
            raise refusal(Cause.UNSUPPORTED, name, RESERVED.format(name))
    return Compiled(query, names, relations(node), lowering.ties, find_root(node, names), node)


def _check_closed(node: Node) -> None:
    """Reject operators that name a column which their inputs do not have."""
    for found in walk(node):
        known = frozenset(name for child in children(found) for name in child.columns)
        for expression in expressions(found):
            if not used(expression) <= known:
                raise refusal(
                    Cause.CORRELATED, "a subquery", "refers to a query around it from a place that "
                    "has no rule",
                )  # fmt: skip
