"""GROUP BY, HAVING and aggregates: from a block of rows to a block of groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, product
from typing import Final

from sqlglot import exp

from penstock.tables.delta.algebra import Aggregate, Node, Project, Union
from penstock.tables.delta.block import Block, Compiling, conjuncts
from penstock.tables.delta.functions import depends_on_order, is_query, outermost
from penstock.tables.delta.refusal import Cause, refusal
from penstock.tables.delta.scope import Scope

_SETS_MAX: Final = 64


def is_grouped(select: exp.Select) -> bool:
    """Whether a SELECT aggregates."""
    if select.args.get("group") or select.args.get("having"):
        return True
    return any(True for _ in calls_of(select))


def calls_of(select: exp.Select) -> Iterator[exp.Expr]:
    """The aggregates that a SELECT calls, in any clause."""
    for key in ("expressions", "having", "order", "qualify"):
        value = select.args.get(key)
        for piece in value if isinstance(value, list) else [value]:
            if isinstance(piece, exp.Expr):
                yield from outermost(piece, windows=False)


def grouped(
    lowering: Compiling, select: exp.Select, block: Block, extra: Sequence[str] = ()
) -> Block:
    """The groups of a block, with HAVING met. `extra` are columns that are keys too."""
    calls = list(dict.fromkeys(calls_of(select)))
    for call in calls:
        check_call(call)
    group = select.args.get("group")
    keys, sets = _grouping_sets(select, group)
    is_global = group is None
    if sets is not None and not keys:
        if len(sets) > 1:
            raise refusal(Cause.UNSUPPORTED, "GROUPING SETS ((), ())", "groups by nothing twice")
        sets, is_global = None, True
    texts = [block.lower(key) for key in keys]
    lowered = [block.lower_parts(call) for call in calls]
    names = tuple(lowering.fresh() for _ in keys)
    made = tuple(lowering.fresh() for _ in calls)
    build = _Groups(lowering, block.node, tuple(extra), names, texts, made, lowered)
    known = dict(zip(keys, names, strict=True)) | dict(zip(calls, made, strict=True))
    if sets is None:
        node = build.plain(is_global=is_global)
    else:
        node, flags = build.union(sets)
        known |= _groupings(select, keys, flags)
    result = Block(lowering, block.ctes, _narrowed(block.scope, keys, names), [node])
    result.known = known
    having = select.args.get("having")
    if having is not None:
        result.where(conjuncts(having.this))
    return result


def check_call(call: exp.Expr) -> None:
    """Reject an aggregate that rows in another order would change."""
    if depends_on_order(call):
        raise refusal(
            Cause.ORDER_DEPENDENT, call, "depends on the order of rows, which is not defined"
        )


class _Groups:
    """Builds the aggregate, or the union of aggregates, of one GROUP BY."""

    def __init__(
        self,
        lowering: Compiling,
        child: Node,
        extra: tuple[str, ...],
        names: tuple[str, ...],
        texts: Sequence[exp.Expr],
        made: tuple[str, ...],
        calls: Sequence[exp.Expr],
    ) -> None:
        self._lowering, self._child, self._extra = lowering, child, extra
        self._names, self._texts, self._made, self._calls = names, texts, made, tuple(calls)

    def plain(self, *, is_global: bool) -> Node:
        """One grouping."""
        keys = (*self._extra, *self._names)
        child = self._projected(self._names, self._texts)
        return Aggregate(child, keys, self._made, self._calls, is_global and not keys)

    def union(self, sets: Sequence[frozenset[int]]) -> tuple[Node, tuple[str, ...]]:
        """One grouping per set of keys; the others are NULL, and a flag per key says so."""
        flags = tuple(self._lowering.fresh() for _ in self._names)
        branches: list[Node] = []
        for chosen in sets:
            texts = [
                text if place in chosen else _typed_null(text)
                for place, text in enumerate(self._texts)
            ]
            marks = [_flag(place not in chosen) for place in range(len(self._names))]
            child = self._projected((*self._names, *flags), (*texts, *marks))
            keys = (*self._extra, *self._names, *flags)
            branches.append(Aggregate(child, keys, self._made, self._calls, is_global=False))
        columns = branches[0].columns
        fresh = {name: self._lowering.fresh() for name in columns}
        node: Node = Union(tuple(branches), tuple(fresh.values()))
        back = tuple(exp.column(fresh[name]) for name in columns)
        return Project(node, columns, back), flags

    def _projected(self, names: tuple[str, ...], texts: Sequence[exp.Expr]) -> Node:
        kept = self._child.columns
        passed = tuple(exp.column(name) for name in kept)
        return Project(self._child, (*kept, *names), (*passed, *texts))


def _typed_null(text: exp.Expr) -> exp.Expr:
    """NULL of the type of an expression, whatever Spark makes that."""
    return exp.Case(ifs=[exp.If(this=exp.false(), true=text.copy())])


def _flag(is_aggregated: bool) -> exp.Expr:
    return exp.cast(exp.Literal.number(int(is_aggregated)), "tinyint", dialect="spark")


def _groupings(
    select: exp.Select, keys: Sequence[exp.Expr], flags: Sequence[str]
) -> dict[exp.Expr, str]:
    """What `grouping(…)` of each key has become."""
    known: dict[exp.Expr, str] = {}
    for node in list(select.walk(prune=lambda found: is_query(found) and found is not select)):
        if isinstance(node, exp.GroupingId):
            node.replace(_spelled_out(node, keys))
    for node in select.walk(prune=lambda found: is_query(found) and found is not select):
        if isinstance(node, exp.Grouping):
            (key,) = node.expressions
            known[node] = flags[keys.index(key)]
    return known


def _spelled_out(call: exp.GroupingId, keys: Sequence[exp.Expr]) -> exp.Expr:
    """`grouping_id(a, b)` as the bits that `grouping(a)` and `grouping(b)` are."""
    found: exp.Expr = exp.cast(exp.Literal.number(0), "bigint")
    for key in call.expressions or keys:
        doubled = exp.Mul(this=exp.paren(found), expression=exp.Literal.number(2))
        found = exp.Add(this=doubled, expression=exp.Grouping(expressions=[key.copy()]))
    return exp.paren(found)


def _narrowed(scope: Scope, keys: Sequence[exp.Expr], names: Sequence[str]) -> Scope:
    """A scope in which only the columns that are group keys can be named."""
    result = Scope(scope.outer)
    found = dict(zip(keys, names, strict=True))
    hidden = set()
    for alias, columns in scope.sources.items():
        for name, ours in columns.items():
            key = found.get(exp.column(name, table=alias, quoted=True))
            result.sources.setdefault(alias, {})[name] = key or ours
            if key is None:
                hidden.add(ours)
    result.hidden = frozenset(hidden) - frozenset(names)
    return result


# GROUPING SETS, ROLLUP, CUBE ---------------------------------------------------------------------


def _grouping_sets(
    select: exp.Select, group: exp.Group | None
) -> tuple[list[exp.Expr], list[frozenset[int]] | None]:
    """The keys of a GROUP BY, and the sets of them to group by if there is more than one."""
    if group is None:
        return [], None
    if group.args.get("all"):
        whole = [projection.unalias() for projection in select.expressions]
        return [key for key in whole if not any(outermost(key, windows=False))], None
    keys: list[exp.Expr] = []
    parts: list[list[frozenset[int]]] = []
    special = False
    for piece in group.expressions:
        sets = _sets_of(piece)
        special |= sets is not None
        parts.append([_places(chosen, keys) for chosen in (sets or [[piece]])])
    for word, expand in (("rollup", _rollup), ("cube", _cube)):
        for piece in group.args.get(word) or ():
            inner = piece.expressions or list(group.expressions)
            if not piece.expressions:  # `GROUP BY a, b WITH ROLLUP`
                parts = []
            special = True
            parts.append([_places(chosen, keys) for chosen in expand(inner)])
    for piece in group.args.get("grouping_sets") or ():
        special = True
        parts.append([_places(chosen, keys) for chosen in _sets_of(piece) or []])
    if not special:
        return keys, None
    every = [frozenset().union(*chosen) for chosen in product(*parts)]
    if len(every) > _SETS_MAX:
        raise refusal(Cause.TOO_LARGE, group, f"has more than {_SETS_MAX} groupings")
    return keys, every


def _sets_of(piece: exp.Expr) -> list[list[exp.Expr]] | None:
    """The sets of keys that a piece of GROUP BY stands for; None if it is a plain key."""
    if isinstance(piece, exp.Rollup):
        return _rollup(piece.expressions)
    if isinstance(piece, exp.Cube):
        return _cube(piece.expressions)
    if not isinstance(piece, exp.GroupingSets):
        return None
    found: list[list[exp.Expr]] = []
    for inner in piece.expressions:
        found += _sets_of(inner) or [_members(inner)]
    return found


def _members(piece: exp.Expr) -> list[exp.Expr]:
    return list(piece.expressions) if isinstance(piece, exp.Tuple) else [piece.unnest()]


def _rollup(pieces: Sequence[exp.Expr]) -> list[list[exp.Expr]]:
    return [_flat(pieces[:size]) for size in range(len(pieces), -1, -1)]


def _cube(pieces: Sequence[exp.Expr]) -> list[list[exp.Expr]]:
    return [
        _flat(chosen)
        for size in range(len(pieces), -1, -1)
        for chosen in combinations(pieces, size)
    ]


def _flat(pieces: Iterable[exp.Expr]) -> list[exp.Expr]:
    return [key for piece in pieces for key in _members(piece)]


def _places(chosen: Iterable[exp.Expr], keys: list[exp.Expr]) -> frozenset[int]:
    """The places of keys in the list of all, to which new ones are added."""
    places = set()
    for key in chosen:
        if key not in keys:
            keys.append(key)
        places.add(keys.index(key))
    return frozenset(places)
