"""The four rules: from operators to the SQL of their rows and of their weighted changes.

`Texts.rows` is an operator over the old rows of its relations. `Texts.delta` is what must be added
to them: rows with a weight `__w`, negative where they leave; not consolidated, so a row may come
several times. New rows are never read: they are the old ones and the changes. See
docs/internals/differential.md.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final, assert_never

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
    children,
    is_row_by_row,
    walk,
)
from penstock.tables.delta.joins import join_delta, join_rows
from penstock.tables.delta.key_local import (
    aggregate_delta,
    set_operation_delta,
    top_delta,
    top_rows,
    total_windows,
    window_delta,
)
from penstock.tables.delta.marks import mark_delta, mark_rows
from penstock.tables.delta.outer import outer_delta
from penstock.tables.delta.ranges import (
    FLOATS,
    NoRanges,
    Range,
    Ranges,
    bounded_below,
    read_as_is,
    source_of,
)
from penstock.tables.delta.writing import (
    NONE,
    WEIGHT,
    Names,
    all_of,
    listed,
    named,
    quoted,
    renamed,
    sql,
)

__all__ = ["WEIGHT", "Names", "Texts"]


class Texts:
    """Writes operators as SQL, for one set of changed relations."""

    def __init__(
        self,
        names: Names,
        changed: Collection[str],
        *,
        broadcast: bool = True,
        ranges: Ranges | None = None,
    ) -> None:
        self._names, self._changed, self._broadcast = names, frozenset(changed), broadcast
        self._ranges: Ranges = ranges or NoRanges()
        self._aliases = 0
        self._with: dict[str, str] = {}
        self._known: dict[tuple[str, int], tuple[Node, str | None]] = {}

    def complete(self, text: str) -> str:
        """A text with the definitions of the operators that it refers to."""
        if not self._with:
            return text
        return f"WITH {listed(f'{name} AS ({made})' for name, made in self._with.items())} {text}"

    def times_read(self, text: str, relations: Collection[str]) -> dict[str, int]:
        """How often a text reads the old rows of relations: Spark writes definitions out."""
        views = {relation: self._names.old(relation) for relation in relations}
        counts: dict[str, dict[str, int]] = {}
        for name, made in (*self._with.items(), ("", text)):
            below = [counts[used] for used in _DEFINED.findall(made)]
            counts[name] = {
                relation: made.count(view) + sum(each[relation] for each in below)
                for relation, view in views.items()
            }
        return counts[""]

    def rows(self, node: Node) -> str:
        """The old rows of an operator, without weights."""
        found = self._known.get(("o", id(node)))
        text = self._defined("o", node, self._rows(node)) if found is None else found[1]
        assert text is not None
        return text

    def delta(self, node: Node) -> str | None:
        """The weighted changes of an operator, or None if nothing that it reads has changed."""
        found = self._known.get(("d", id(node)))
        return self._defined("d", node, self._delta(node)) if found is None else found[1]

    def _defined(self, kind: str, node: Node, text: str | None) -> str | None:
        """What to write for an operator: a name, defined once, unless it is simple.

        A rule needs the changes below it twice, for the keys and for the rows; with the text in
        both places it would double with every level.
        """
        if text is not None and not _is_simple(node):
            name = f"__{kind}{len(self._known)}"
            self._with[name] = text
            weight = (WEIGHT,) if kind == "d" else ()
            text = f"SELECT {listed((*node.columns, *weight))} FROM {name}"
        self._known[kind, id(node)] = (node, text)
        return text

    # rows ----------------------------------------------------------------------------------------

    def _rows(self, node: Node) -> str:  # noqa: C901 - one case per operator
        match node:
            case Scan():
                return f"SELECT {_scanned(node)} FROM {self._names.old(node.relation)}"
            case Constant():
                return node.sql
            case Filter() | Project() | Generate():
                return self.linear(node, self.rows(node.child), ())
            case Join():
                return join_rows(self, node)
            case OuterJoin():
                side = "FULL OUTER" if node.full else "LEFT"
                left, right = self.alias(), self.alias()
                return (
                    f"SELECT {listed(node.columns)} FROM ({self.rows(node.left)}) AS {left} "
                    f"{side} JOIN ({self.rows(node.right)}) AS {right} ON {all_of(node.conditions)}"
                )
            case Mark():
                return mark_rows(self, node)
            case Aggregate():
                shown = listed((*node.keys, *named(node.calls, node.made)))
                group = f" GROUP BY {listed(node.keys)}" if node.keys else ""
                return f"SELECT {shown} FROM ({self.rows(node.child)}) AS {self.alias()}{group}"
            case Window():
                shown = listed((*node.child.columns, *named(total_windows(node), node.made)))
                return f"SELECT {shown} FROM ({self.rows(node.child)}) AS {self.alias()}"
            case TopN():
                return top_rows(self, node)
            case Union():
                return " UNION ALL ".join(
                    f"SELECT {renamed(child.columns, node.columns)} "
                    f"FROM ({self.rows(child)}) AS {self.alias()}"
                    for child in node.inputs
                )
            case SetOperation():
                word = f"{node.kind} ALL" if node.every else node.kind
                return (
                    f"SELECT {renamed(node.left.columns, node.columns)} "
                    f"FROM ({self.rows(node.left)}) AS {self.alias()} {word} "
                    f"SELECT {renamed(node.right.columns, node.columns)} "
                    f"FROM ({self.rows(node.right)}) AS {self.alias()}"
                )
            case _:
                assert_never(node)

    # changes -------------------------------------------------------------------------------------

    def _delta(self, node: Node) -> str | None:  # noqa: C901 - one case per operator
        match node:
            case Scan():
                if node.relation not in self._changed:
                    return None
                view = self._names.delta(node.relation)
                return f"SELECT {_scanned(node)}, {WEIGHT} FROM {view}"
            case Constant():
                return None
            case Filter() | Project() | Generate():
                below = self.delta(node.child)
                return None if below is None else self.linear(node, below, (WEIGHT,))
            case Join():
                return join_delta(self, node)
            case OuterJoin():
                return outer_delta(self, node)
            case Mark():
                return mark_delta(self, node)
            case Aggregate():
                return aggregate_delta(self, node)
            case Window():
                return window_delta(self, node)
            case TopN():
                return top_delta(self, node)
            case Union():
                return self._union(node)
            case SetOperation():
                return set_operation_delta(self, node)
            case _:
                assert_never(node)

    def linear(self, node: Filter | Project | Generate, below: str, also: Sequence[str]) -> str:
        """Rule 1: an operator that looks at one row at a time, with or without weights."""
        child = f"({below}) AS {self.alias()}"
        match node:
            case Filter():
                shown = listed((*node.columns, *also))
                return f"SELECT {shown} FROM {child} WHERE {all_of(node.conditions)}"
            case Project():
                shown = listed((*named(node.expressions, node.columns), *also))
                return f"SELECT {shown} FROM {child}"
            case Generate():
                kind = "LATERAL VIEW OUTER" if node.outer else "LATERAL VIEW"
                return (
                    f"SELECT {listed((*node.columns, *also))} FROM {child} {kind} "
                    f"{sql(node.function)} {self.alias()} AS {listed(node.made)}"
                )

    def _union(self, node: Union) -> str | None:
        deltas = [self.delta(child) for child in node.inputs]
        if all(delta is None for delta in deltas):
            return None
        terms = []
        for child, delta in zip(node.inputs, deltas, strict=True):
            shown = renamed(child.columns, node.columns)
            if delta is not None:
                terms.append(f"SELECT {shown}, {WEIGHT} FROM ({delta}) AS {self.alias()}")
            else:  # its types count, its rows do not
                terms.append(
                    f"SELECT {shown}, {NONE} AS {WEIGHT} FROM ({self.rows(child)}) "
                    f"AS {self.alias()} WHERE FALSE"
                )
        return " UNION ALL ".join(terms)

    # ranges --------------------------------------------------------------------------------------

    def within(self, node: Node, ranges: Mapping[str, Range]) -> str:
        """The old rows of an operator, without those out of the ranges of some columns."""
        conditions = []
        known = {}
        for column, found in ranges.items():
            source = source_of(node, column)
            if source is not None and self._ranges.kind(*source) == found.kind:
                conditions.append(found.condition(column))
                known[source[1]] = found
        near = self._near(node, known)
        if near is not None:
            return near
        where = " AND ".join(text for text in conditions if text is not None)
        rows = self.rows(node)
        if not where:
            return rows
        return f"SELECT {listed(node.columns)} FROM ({rows}) AS {self.alias()} WHERE {where}"

    def _near(self, node: Node, known: Mapping[str, Range]) -> str | None:
        """The rows of an operator made of the few old rows that can matter, if they are at hand."""
        if not is_row_by_row(node):
            return None
        (scan,) = (found for found in walk(node) if isinstance(found, Scan))
        for field, found in known.items():
            view = self._ranges.near(scan.relation, field, found, scan.fields)
            if view is not None:
                return self._over(node, view)
        return None

    def _over(self, node: Node, view: str) -> str:
        """The rows that filters and projections make of a view instead of their relation."""
        if isinstance(node, Scan):
            return f"SELECT {_scanned(node)} FROM {view}"
        assert isinstance(node, Filter | Project)
        return self.linear(node, self._over(node.child, view), ())

    def range_of(self, node: Node, column: str) -> Range | None:
        """The range of a column in the changes of an operator; None if it is not known."""
        while not isinstance(node, Scan):
            if isinstance(node, Project):
                expression = node.expressions[node.columns.index(column)]
                if not isinstance(expression, exp.Column):
                    return None
                node, column = node.child, expression.name
                continue
            changed = {id(child): self.delta(child) is not None for child in children(node)}
            below = bounded_below(node, column, changed)
            if below is None:
                return None
            node = below
        return self._ranges.changed_range(node.relation, node.fields[node.columns.index(column)])

    def leaving(self, node: Node) -> int | None:
        """How many rows at most leave an operator with its changes; None if it is not known."""
        while isinstance(node, Filter | Project):
            node = node.child
        return self._ranges.leaving(node.relation) if isinstance(node, Scan) else None

    def floats(self, node: Node) -> tuple[str, ...]:
        """The columns of an operator that are known to be floats of a relation, as they are."""
        sources = ((column, read_as_is(node, column)) for column in node.columns)
        return tuple(
            column
            for column, source in sources
            if source is not None and self._ranges.kind(*source) in FLOATS
        )

    # names ---------------------------------------------------------------------------------------

    def alias(self) -> str:
        """A table alias that nothing else has."""
        self._aliases += 1
        return f"t{self._aliases}"

    def hint(self, alias: str) -> str:
        """A hint that a side of a join is small."""
        return f"/*+ BROADCAST({alias}) */ " if self._broadcast else ""


_DEFINED: Final = re.compile(r"\b__[od]\d+\b")
"""What `_defined` calls definitions."""


def _is_simple(node: Node) -> bool:
    """Whether an operator is as short as its name: a relation, filtered and projected."""
    while isinstance(node, Filter | Project):
        node = node.child
    return isinstance(node, Scan | Constant)


def _scanned(scan: Scan) -> str:
    pairs = zip(scan.fields, scan.columns, strict=True)
    return listed(f"{quoted(field)} AS {column}" for field, column in pairs)
