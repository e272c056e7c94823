"""Aggregates inside a query as tables of their own, which the rest of the query reads.

Whatever stands above an inner aggregate asks for its old rows and its changes. From its inputs the
old rows cost a computation of every group that changes; kept as sums and counts they are a table.
So an aggregate whose calls can be added up becomes a stage: a `Root` with the state of one, and a
relation in the rest of the query. What is equal is one stage, however often the query has it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Final, NamedTuple

from sqlglot import exp

from penstock.tables.delta.algebra import (
    Aggregate,
    Node,
    Scan,
    children,
    relations,
    with_children,
)
from penstock.tables.delta.compiler import Compiled
from penstock.tables.delta.rules import Texts
from penstock.tables.delta.state import Root, State, find_root
from penstock.tables.delta.writing import sql

MARK: Final = "#"
"""How the relations of stages begin; names in the lake do not."""
_PART_LENGTH: Final = 8

Types = Callable[[Root], Sequence[str] | None]
"""The types of a root's arguments, as Spark writes them; None if Spark cannot say."""


class Kept(NamedTuple):
    """An aggregate that is kept as sums and counts.

    `part` names its state among those of its table; the aggregate that ends a query has none.
    `state` follows the changes of what it reads, other stages too; `whole` reads inputs only.
    """

    part: str
    state: State
    whole: State

    @property
    def relation(self) -> str:
        """What the rest of the query reads it as."""
        return MARK + self.part


@dataclass(frozen=True, slots=True)
class Staged:
    """A query as stages, those first that others read, and the rest of it.

    `root` is the aggregate that ends it, if it is kept.
    """

    stages: tuple[Kept, ...]
    rest: Compiled
    root: Kept | None
    _reads: dict[frozenset[str], Mapping[str, int]] = field(
        default_factory=dict, compare=False, repr=False
    )

    def reads(self, changed: Collection[str]) -> Mapping[str, int]:
        """How often the changes of some relations make it read each relation's old rows.

        Every stage counts as changed of which an input is.
        """
        key = frozenset(changed)
        if key not in self._reads:
            moved, counts = set(changed), Counter[str]()
            for kept in self.stages:
                found = _times_read(kept.state.root.aggregate.child, moved)
                if found is not None:
                    counts.update(found)
                    moved.add(kept.relation)
            last = self.rest.node if self.root is None else self.root.state.root.aggregate.child
            counts.update(_times_read(last, moved) or {})
            self._reads[key] = counts
        return self._reads[key]

    @property
    def kept(self) -> tuple[Kept, ...]:
        """All that is kept."""
        return self.stages if self.root is None else (*self.stages, self.root)


class _Marks:
    """Names of views that are no part of each other."""

    def old(self, relation: str) -> str:
        return f"<old {relation}>"

    def delta(self, relation: str) -> str:
        return f"<new {relation}>"


def staged(compiled: Compiled, types: Types) -> Staged:
    """Take the inner aggregates that can be kept out of a query."""
    taking = _Taking(types)
    last = compiled.root
    node = taking.rest(compiled.node, None if last is None else last.aggregate)
    found = find_root(node, compiled.columns)
    rest = replace(compiled, node=node, relations=relations(node), root=found)
    root = None if last is None or found is None else _kept("", found, last, types(last))
    return Staged(tuple(taking.found.values()), rest, root)


def _kept(part: str, root: Root, whole: Root, types: Sequence[str] | None) -> Kept | None:
    state, filling = (None if types is None else each.bind(types) for each in (root, whole))
    return None if state is None or filling is None else Kept(part, state, filling)


def all_staged(compiled: Compiled) -> Staged:
    """The same with all that could be kept, before Spark says whether its types allow it."""
    return staged(compiled, lambda root: ("int",) * root.arguments)


def _times_read(node: Node, changed: Collection[str]) -> Mapping[str, int] | None:
    """How often the changes of an operator read old rows; None if it does not change."""
    texts = Texts(_Marks(), changed)
    text = texts.delta(node)
    return None if text is None else texts.times_read(text, relations(node))


class _Taking:
    """Goes through a query from below; `found` are the stages so far, by what they compute."""

    def __init__(self, types: Types) -> None:
        self._types = types
        self.found: dict[str, Kept] = {}

    def rest(self, node: Node, last: Aggregate | None) -> Node:
        """An operator in which the stages below it, or it itself, are relations."""
        root = inner_root(node) if node is not last else None
        known = self.found.get(_text(node)) if root is not None else None
        if known is None:
            below = [self.rest(child, last) for child in children(node)]
            made = with_children(node, below) if below else node
            if root is None:
                return made
            assert isinstance(made, Aggregate)
            known = self._taken(root, made)
            if known is None:
                return made
        assert isinstance(node, Aggregate)
        return Scan(known.relation, node.columns, known.state.root.columns)

    def _taken(self, root: Root, made: Aggregate) -> Kept | None:
        text = _text(root.aggregate)
        part = hashlib.sha256(text.encode()).hexdigest()[:_PART_LENGTH]
        kept = _kept(part, replace(root, aggregate=made), root, self._types(root))
        if kept is not None:
            self.found[text] = kept
        return kept


def inner_root(node: Node) -> Root | None:
    """An aggregate that could be a stage: of calls that are kept, over rows that may change."""
    if not isinstance(node, Aggregate) or not node.calls or not relations(node):
        return None
    return find_root(node, node.columns)


def _text(node: Node) -> str:
    """What an operator computes, whatever its columns are called."""
    names: dict[str, str] = {}

    def numbered(found: exp.Expr) -> exp.Expr:
        return exp.column(number(found.name)) if isinstance(found, exp.Column) else found

    def number(column: str) -> str:
        return names.setdefault(column, f"n{len(names)}")

    def told(name: str, value: object) -> str:
        if isinstance(value, tuple):
            return f"({', '.join(told(name, each) for each in value)})"
        if isinstance(value, exp.Expr):
            return sql(value.copy().transform(numbered, copy=False))
        if is_dataclass(value) and not isinstance(value, type):
            inner = [
                told(each.name, getattr(value, each.name))
                for each in fields(value)
                if each.name != "single"
            ]  # it says nothing more
            return f"{type(value).__name__}({', '.join(inner)})"
        return number(value) if name in _COLUMNS and isinstance(value, str) else repr(value)

    return told("", node)


_COLUMNS: Final = frozenset({"columns", "keys", "made", "mark"})
"""Fields of operators that hold our names of columns."""
