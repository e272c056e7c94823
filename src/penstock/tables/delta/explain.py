"""How a query would be brought up to date: its operators as a tree, each with its strategy.

>>> from penstock.tables.delta.compiler import compile_query
>>> query = "SELECT c, sum(amt) AS s FROM orders WHERE amt > 5 GROUP BY c"
>>> print(explain(compile_query(query, {"orders": ["id", "c", "amt"]})).text())
SELECT c, SUM(amt): linear
└─ GROUP BY c: state (rows, SUM(amt)), or key-local where a sum cannot be taken back
   └─ WHERE amt > 5: linear
      └─ orders: its changes, and its old rows for the keys that changed
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import sqlglot
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
)
from penstock.tables.delta.compiler import Compiled
from penstock.tables.delta.marks import key_pairs
from penstock.tables.delta.stages import all_staged, inner_root
from penstock.tables.delta.state import Root
from penstock.tables.delta.writing import quoted
from penstock.tables.query.dialect import ExactSpark

_LABEL_MAX: Final = 80
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One operator: what it is in the query, and how its changes are found."""

    operator: str
    strategy: str
    inputs: tuple[PlanStep, ...] = ()

    def text(self) -> str:
        """The tree for people, one operator per line."""
        return "\n".join(self._lines("", ""))

    def as_dict(self) -> dict[str, Any]:
        """The tree for programs."""
        return {
            "operator": self.operator,
            "strategy": self.strategy,
            "inputs": [step.as_dict() for step in self.inputs],
        }

    def _lines(self, first: str, rest: str) -> Iterable[str]:
        yield f"{first}{self.operator}: {self.strategy}"
        for place, step in enumerate(self.inputs):
            last = place == len(self.inputs) - 1
            yield from step._lines(
                f"{rest}{'└─ ' if last else '├─ '}", rest + ("   " if last else "│  ")
            )


def explain(compiled: Compiled) -> PlanStep:
    """The tree of a compiled query."""
    root = None if compiled.root is None else compiled.root.aggregate
    return _Explaining(root).step(compiled.node, is_key_local=False)


def facts(compiled: Compiled) -> dict[str, Any]:
    """All that the compiler knows of a query, as JSON takes it."""
    tree = explain(compiled)
    return {
        "columns": list(compiled.columns),
        "relations": sorted(compiled.relations),
        "breaks_ties": compiled.breaks_ties,
        "tree": tree.as_dict(),
        "text": tree.text(),
        "state": None if compiled.root is None else _state(compiled.root),
        "stages": [_state(kept.whole.root) for kept in all_staged(compiled).stages],
        "delta_sql": compiled.delta(compiled.relations, PlainNames()) or "",
    }


def pretty_sql(text: str) -> str:
    """SQL with line breaks and indentation."""
    return sqlglot.parse_one(text, read=ExactSpark).sql(dialect="spark", pretty=True)


class PlainNames:
    """Names of views for people: `orders@old` and `orders@changes`."""

    def old(self, relation: str) -> str:
        """The rows of a relation before the changes."""
        return quoted(f"{relation}@old")

    def delta(self, relation: str) -> str:
        """The changes of a relation."""
        return quoted(f"{relation}@changes")


def _state(root: Root) -> dict[str, Any]:
    """What is kept of an aggregate, before Spark says its types."""
    node = root.aggregate
    labels = _labels(node.child)
    return {
        "keys": [labels.get(key, key) for key in node.keys],
        "kept": ["rows", *(_shown(call, labels) for call in node.calls)],
    }


class _Explaining:
    def __init__(self, root: Aggregate | None) -> None:
        self._root = root

    def step(self, node: Node, *, is_key_local: bool) -> PlanStep:
        """One operator; `is_key_local` says that an operator above reads old rows by key."""
        labels: dict[str, str] = {}
        for child in children(node):
            labels |= _labels(child)
        operator, strategy = self._told(node, labels, is_key_local)
        reads_old = is_key_local or not isinstance(node, Filter | Project | Generate | Union)
        inputs = tuple(self.step(child, is_key_local=reads_old) for child in children(node))
        if isinstance(node, Project) and not operator:
            return inputs[0]
        return PlanStep(operator, strategy, inputs)

    def _told(self, node: Node, labels: Labels, is_key_local: bool) -> tuple[str, str]:
        match node:
            case Scan():
                also = ", and its old rows for the keys that changed" if is_key_local else ""
                return node.relation, f"its changes{also}"
            case Constant():
                return "constant rows", "never changes"
            case Filter():
                return f"WHERE {_all(node.conditions, labels)}", "linear"
            case Project():
                return _selected(node, labels), "linear"
            case Generate():
                return f"LATERAL VIEW {_shown(node.function, labels)}", "linear"
            case Union():
                return "UNION ALL", "linear"
            case _:
                return self._told_of_keys(node, labels)

    def _told_of_keys(self, node: Node, labels: Labels) -> tuple[str, str]:
        match node:
            case Join():
                return _on("JOIN", node.conditions, labels), "join, a term per changed input"
            case OuterJoin():
                word = "FULL JOIN" if node.full else "LEFT JOIN"
                return _on(word, node.conditions, labels), "join, and a mark for rows without match"
            case Mark():
                return _mark(node, labels)
            case Aggregate():
                return self._aggregate(node, labels)
            case Window():
                keys = _listed(labels.get(key, key) for key in node.keys)
                return f"WINDOW PARTITION BY {keys}", "key-local"
            case TopN():
                order = _listed(_shown(key, labels) for key in node.order)
                limit = "" if node.limit is None else f" LIMIT {node.limit}"
                return f"ORDER BY {order}{limit}", "key-local, all rows are one key"
            case SetOperation():
                return f"{node.kind}{' ALL' if node.every else ''}", "key-local by whole rows"
        raise AssertionError(node)

    def _aggregate(self, node: Aggregate, labels: Labels) -> tuple[str, str]:
        keys = _listed(labels.get(key, key) for key in node.keys)
        name = f"GROUP BY {keys}" if keys else "GROUP BY nothing: one row"
        if not node.calls:
            name = f"DISTINCT {keys}"
        if node is not self._root and inner_root(node) is None:
            return name, "key-local"
        word = "state" if node is self._root else "stage"
        kept = _listed(["rows", *(_shown(call, labels) for call in node.calls)])
        return name, f"{word} ({kept}), or key-local where a sum cannot be taken back"


def _mark(node: Mark, labels: Labels) -> tuple[str, str]:
    words = {None: "EXISTS as a column", True: "SEMI JOIN", False: "ANTI JOIN"}
    pairs, residual = key_pairs(node)
    how = "counted by row" if residual else "counted by key" if pairs else "counted once"
    return _on(words[node.keep], node.conditions, labels), f"mark, {how}"


def _selected(node: Project, labels: Labels) -> str:
    """The expressions of a projection; nothing if it only passes columns on or renames them."""
    plain = all(isinstance(expression, exp.Column) for expression in node.expressions)
    if plain and not isinstance(node.child, Aggregate):
        return ""
    return f"SELECT {_listed(_shown(expression, labels) for expression in node.expressions)}"


def _labels(node: Node) -> dict[str, str]:
    """What people call the columns of an operator."""
    match node:
        case Scan():
            return dict(zip(node.columns, node.fields, strict=True))
        case Project():
            below = _labels(node.child)
            pairs = zip(node.columns, node.expressions, strict=True)
            return {name: _shown(expression, below) for name, expression in pairs}
        case Aggregate() | Window():
            below = _labels(node.child)
            pairs = zip(node.made, node.calls, strict=True)
            return below | {name: _shown(call, below) for name, call in pairs}
        case Union() | SetOperation():
            first = children(node)[0]
            below = _labels(first)
            pairs_of = zip(node.columns, first.columns, strict=True)
            return {name: below.get(theirs, theirs) for name, theirs in pairs_of}
        case _:
            found: dict[str, str] = {}
            for child in children(node):
                found |= _labels(child)
            return found


def _shown(expression: exp.Expr, labels: Labels) -> str:
    def step(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and node.name in labels:
            return exp.Var(this=labels[node.name])
        return node

    text = expression.copy().transform(step, copy=False).sql(dialect="spark", comments=False)
    return text if len(text) <= _LABEL_MAX else f"{text[: _LABEL_MAX - 1]}…"


def _on(word: str, conditions: Iterable[exp.Expr], labels: Labels) -> str:
    text = _all(conditions, labels)
    return f"{word} ON {text}" if text else word


def _all(conditions: Iterable[exp.Expr], labels: Labels) -> str:
    return " AND ".join(_shown(condition, labels) for condition in conditions)


def _listed(texts: Iterable[str]) -> str:
    return ", ".join(texts)
