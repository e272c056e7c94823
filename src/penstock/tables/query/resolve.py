"""Checks that the tables and columns a query names exist, without an engine.

Nothing that Spark accepts is rejected. A name is rejected only if everything that could provide it
is known. If something is not known (the output of a table function or a pivot, the name of an
expression without an alias), the query passes, and Spark decides.

>>> orders = {"orders": RelationShape(("id", "amount"))}
>>> resolve("SELECT o.*, amount * 2 AS twice FROM orders o", orders).names
('id', 'amount', 'twice')
>>> resolve("SELECT amuont FROM orders", orders)
Traceback (most recent call last):
...
penstock.protocol.errors.InvalidQuery: no column 'amuont' (line 1, column 8): did you mean \
'amount'? orders has id, amount
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from sqlglot import exp

from penstock.kernel.errors import Rejected
from penstock.protocol.errors import InvalidQuery, InvalidTable
from penstock.tables.query.names import (
    DEFAULT_SCHEMA,
    at_parts,
    did_you_mean,
    listed,
    nearest,
    not_there,
    relation_name,
    topic_of,
)
from penstock.tables.query.sources import parse_query, read_sources

_WITHOUT_PARENTHESES: Final = frozenset(
    {
        "current_catalog", "current_database", "current_date", "current_path", "current_schema",
        "current_time", "current_timestamp", "current_timezone", "current_user", "localtime",
        "localtimestamp", "now", "session_user", "user",
    }
)  # fmt: skip
"""Functions that Spark calls, or may in the future, without parentheses."""

_OF_SPARK: Final = frozenset(
    {"_metadata", "grouping__id", "session_window", "spark_grouping_id", "window"}
)
"""Columns that Spark sometimes adds itself."""

_UNITS: Final = frozenset(
    {
        "century", "day", "dayofweek", "dayofyear", "days", "decade", "doy", "dow", "epoch", "hour",
        "hours", "isodow", "isoweek", "isoyear", "microsecond", "microseconds", "millennium",
        "millisecond", "milliseconds", "minute", "minutes", "month", "months", "nanosecond",
        "quarter", "second", "seconds", "timezone", "week", "weekday", "weeks", "year", "years",
    }
)  # fmt: skip
"""Keywords that some functions take where a column could be: `timestampadd(HOUR, 1, at)`."""


_OF_RESULTS: Final = (
    exp.Order, exp.Sort, exp.Cluster, exp.Distribute, exp.Having, exp.Qualify, exp.Group,
)  # fmt: skip
"""Clauses in which a name may be a column of the result."""


@dataclass(frozen=True, slots=True)
class RelationShape:
    """The columns of a relation, in its own spelling. `open` means that there may be others.

    `unreadable` are columns that the engine cannot read, in lower case, each with its type.
    """

    names: tuple[str, ...] = ()
    open: bool = False
    unreadable: Mapping[str, str] = field(default_factory=dict)
    _lowered: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_lowered", frozenset(name.lower() for name in self.names))

    def has(self, name: str) -> bool:
        """Whether a column of that name may exist."""
        return self.open or name.lower() in self._lowered


UNKNOWN: Final = RelationShape(open=True)


def resolve(query: str, relations: Mapping[str, RelationShape]) -> RelationShape:
    """The columns of a query's result; `InvalidQuery` if it names something missing.

    `relations` are all readable ones, by the names that `read_sources` returns.
    """
    resolver = _Resolver(query, relations)
    try:
        found = resolver.query(parse_query(query), _Names({}, None))
    except RecursionError:
        found = UNKNOWN  # too deeply nested for us: left to Spark
    for name in read_sources(query):
        if name not in relations:
            raise resolver.no_table(name)
    for name, kind in found.unreadable.items():
        raise InvalidQuery(
            f"column {name!r} has the type {kind}, which cannot be read: leave it out by naming "
            f"the columns you need, or with * EXCEPT ({name})",
            column=name,
        )
    return found


def nearest_relation(name: str, known: Iterable[str]) -> str | None:
    """The relation that was probably meant, even if its schema was left out."""
    whole = list(known)
    short = {full.rpartition(".")[2]: full for full in reversed(whole)}
    return nearest(name, whole) or short.get(nearest(name, short) or "")


class _Source(NamedTuple):
    """An item of a FROM clause: its name and its columns."""

    alias: str
    shape: RelationShape
    path: tuple[str, ...] = ()
    text: str = ""


@dataclass(slots=True)
class _Scope:
    """What the expressions of one SELECT may reference."""

    outer: _Scope | None
    sources: list[_Source] = field(default_factory=list)
    aliases: set[str] = field(default_factory=set)
    is_plain: bool = False
    """Whether all its tables are seen everywhere, and no join makes one column of two."""

    def outwards(self) -> Iterator[_Scope]:
        scope: _Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.outer


class _Names(NamedTuple):
    """A query's surroundings: CTEs, and the SELECT that contains it as an expression."""

    ctes: Mapping[str, RelationShape]
    outer: _Scope | None


class _Resolver:
    def __init__(self, query: str, relations: Mapping[str, RelationShape]) -> None:
        self._query = query
        self._relations = relations

    def query(self, node: exp.Expr, around: _Names) -> RelationShape:
        """The columns of a query, after checking all its names."""
        around = self._with(node, around)
        if isinstance(node, exp.SetOperation):
            return self._set_operation(node, around)
        if isinstance(node, exp.Select):
            return self._select(node, around)
        if isinstance(node, exp.Subquery | exp.Paren):
            return self._wrapped(node, around)
        return UNKNOWN

    def _with(self, node: exp.Expr, around: _Names) -> _Names:
        clause = node.args.get("with_")
        if not isinstance(clause, exp.With):
            return around
        ctes = dict(around.ctes)
        for cte in clause.expressions:
            name = cte.alias.lower()
            seen = {**ctes, name: UNKNOWN} if clause.args.get("recursive") else ctes
            made = self.query(cte.this, around._replace(ctes=seen))
            ctes[name] = _renamed(made, cte.args.get("alias"))
        return around._replace(ctes=ctes)

    def _set_operation(self, node: exp.SetOperation, around: _Names) -> RelationShape:
        # UNIONs nest to the left; a loop keeps long ones off the stack.
        rights: list[tuple[exp.Expr, _Names]] = []
        tree: exp.Expr = node
        while isinstance(tree, exp.SetOperation):
            around = self._with(tree, around)
            rights.append((tree.expression, around))
            tree = tree.this
        shape = self.query(tree, around)
        for right, seen in rights:
            self.query(right, seen)
        scope = _Scope(around.outer, [_Source("", shape)])
        for key in ("order", "limit", "offset", "sort", "cluster", "distribute"):
            self._expressions(node.args.get(key), scope, around)
        return replace(shape, open=True) if node.args.get("by_name") else shape

    def _wrapped(self, node: exp.Expr, around: _Names) -> RelationShape:
        """A query in parentheses, which may have its own ORDER BY."""
        shape = self.query(node.this, around)
        scope = _Scope(around.outer, [_Source("", shape)])
        for key in ("order", "limit", "offset", "sort"):
            self._expressions(node.args.get(key), scope, around)
        is_plain = not any(node.args.get(key) for key in ("pivots", "laterals", "joins"))
        return shape if is_plain else UNKNOWN

    # SELECT --------------------------------------------------------------------------------------

    def _select(self, select: exp.Select, around: _Names) -> RelationShape:
        scope = _Scope(around.outer)
        clause = select.args.get("from_")
        items = [clause.this] if clause is not None else []
        items += [join.this for join in select.args.get("joins") or ()]
        items += select.args.get("laterals") or ()
        for item in items:
            scope.sources.extend(self._sources(item, scope, around))
        scope.is_plain = not any(_merges_or_hides(join) for join in select.find_all(exp.Join))
        for projection in select.expressions:
            scope.aliases |= {name.lower() for name in _aliases(projection)}
        for key, value in select.args.items():
            if key == "joins":
                for join in value or ():
                    self._join(join, scope, around)
            elif key not in ("with_", "from_", "hint", "laterals"):
                self._expressions(value, scope, around)
        for item in items:
            self._arguments(item, scope, around)
        return _output(select, scope)

    def _join(self, join: exp.Join, scope: _Scope, around: _Names) -> None:
        for key, value in join.args.items():
            if key not in ("this", "using"):
                self._expressions(value, scope, around)

    def _arguments(self, item: exp.Expr, scope: _Scope, around: _Names) -> None:
        """The arguments of a table function or LATERAL VIEW, which sees the items before it."""
        named = exp.Subquery if isinstance(item, exp.Lateral) else exp.Identifier | exp.Dot
        if isinstance(item, exp.Lateral | exp.Table) and not isinstance(item.this, named):
            self._expressions(item.this, scope, around)

    def _sources(self, item: exp.Expr, scope: _Scope, around: _Names) -> list[_Source]:
        """The sources of one FROM item; a join in parentheses has several."""
        alias = item.args.get("alias")
        name = item.alias.lower()
        if isinstance(item, exp.Table):
            found = [self._table(item, around)]
        elif isinstance(item, exp.Subquery) and isinstance(item.this, exp.Table):
            found = self._sources(item.this, scope, around)  # a join in parentheses
            if name:
                found = [_Source(name, _together(source.shape for source in found))]
        elif isinstance(item, exp.Subquery):
            found = [_Source(name, self.query(item, around))]
        elif isinstance(item, exp.Lateral):
            found = [_Source(name, self._lateral(item, scope, around))]
        else:
            found = [_Source(name, UNKNOWN)]
        found = [
            source._replace(shape=_renamed(source.shape, alias)) if index == 0 else source
            for index, source in enumerate(found)
        ]
        for join in item.args.get("joins") or ():
            found += self._sources(join.this, scope, around)
            inner = _Scope(_Scope(around.outer, scope.sources), found)
            self._join(join, inner, around)
        if item.args.get("pivots") or item.args.get("laterals"):
            return [*(source._replace(shape=UNKNOWN) for source in found), _Source("", UNKNOWN)]
        return found

    def _table(self, table: exp.Table, around: _Names) -> _Source:
        if not isinstance(table.this, exp.Identifier | exp.Dot):
            return _Source(table.alias.lower(), UNKNOWN)
        parts = [part.name for part in table.parts]
        lowered = tuple(part.lower() for part in parts)
        called = table.alias.lower() or lowered[-1]
        if len(parts) == 1 and lowered[0] in around.ctes:
            return _Source(called, around.ctes[lowered[0]], text=parts[0])
        relation = relation_name(parts)
        shape = self._relations.get(relation)
        if shape is None:
            raise self.no_table(relation, table.parts)
        return _Source(called, shape, () if table.alias else lowered, relation)

    def _lateral(self, lateral: exp.Lateral, scope: _Scope, around: _Names) -> RelationShape:
        if isinstance(lateral.this, exp.Subquery):
            return self.query(lateral.this, around._replace(outer=scope))
        return UNKNOWN

    # names ---------------------------------------------------------------------------------------

    def _expressions(self, value: object, scope: _Scope, around: _Names) -> None:
        """Check every name in expressions, and every query inside them."""
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, exp.Expr):
                continue
            inner = around._replace(outer=scope)
            for found in node.walk(prune=_is_pruned):
                if isinstance(found, exp.Select | exp.SetOperation | exp.Subquery):
                    self.query(found, inner)
                elif isinstance(found, exp.Column):
                    self._column(found, scope)

    def _column(self, column: exp.Column, scope: _Scope) -> None:
        parts = [part.name.lower() for part in column.parts]
        is_star = isinstance(column.this, exp.Star)
        if is_star:
            parts = parts[:-1]
        readable: list[bool] = []
        for level in scope.outwards():
            owners = []
            for source in level.sources:
                found = _found_in(source, parts, is_star)
                if found is not None:
                    readable.append(found not in source.shape.unreadable)
                    owners.append(source)
            if len(owners) > 1 and level.is_plain and len(parts) == 1:
                self._check_one(column, owners, level)
            if parts[0] in level.aliases:
                return
            if readable:
                break
        if any(readable) or (not readable and _is_no_column(column, parts)):
            return
        if readable:
            raise self._unreadable(column, parts, scope)
        raise self._no_column(column, parts, scope)

    def _check_one(self, column: exp.Column, owners: Sequence[_Source], level: _Scope) -> None:
        """Reject a name that two tables have, where it can mean nothing else."""
        name = column.name.lower()
        sure = [source for source in owners if not source.shape.open]
        if len(sure) < 2 or name in level.aliases or _is_no_column(column, [name]):
            return
        if name in _UNITS or isinstance(column.parent, exp.Kwarg | exp.PropertyEQ):
            return
        if column.find_ancestor(exp.Select, *_OF_RESULTS) is not column.find_ancestor(exp.Select):
            return
        which = " or ".join(f"{source.alias}.{column.name}" for source in sure if source.alias)
        raise InvalidQuery(
            f"column {column.name!r}{at_parts(self._query, column.parts)} is in several tables: "
            f"write {which or 'which one is meant'}",
            column=column.name,
        )

    def _unreadable(self, column: exp.Column, parts: list[str], scope: _Scope) -> InvalidQuery:
        kinds = [kind for level in scope.outwards() for source in level.sources
                 for name, kind in source.shape.unreadable.items() if name in parts]  # fmt: skip
        return InvalidQuery(
            f"column {column.name!r}{at_parts(self._query, column.parts)} has the type "
            f"{kinds[0]}, which cannot be read",
            column=column.name,
        )

    def no_table(self, relation: str, parts: Sequence[exp.Expr] = ()) -> Rejected:
        """The error for a missing relation."""
        place = at_parts(self._query, parts)
        known = list(self._relations)
        near = nearest_relation(relation, known)
        topic = topic_of(relation)
        if topic is not None:
            return InvalidTable(
                not_there(
                    f"topic {topic!r}{place} was not declared as a source", did_you_mean(near),
                    "say which columns it has with `penstock table source add "
                    f"{topic} --schema 'id BIGINT, …'`",
                ),
                topic=topic,
            )  # fmt: skip
        there = f"there are {listed(sorted(known))}" if known else "the lake has no tables yet"
        return InvalidQuery(
            not_there(f"no table {relation!r}{place}", did_you_mean(near), there), table=relation
        )

    def _no_column(self, column: exp.Column, parts: list[str], scope: _Scope) -> InvalidQuery:
        sources = [source for level in scope.outwards() for source in level.sources]
        owner = next((s for s in sources if len(parts) > 1 and s.alias == parts[0]), None)
        sources = sources if owner is None else [owner]
        named = column.parts[0 if owner is None else 1].name
        known = [name for source in sources for name in source.shape.names]
        word = "column"
        if owner is None and len(column.parts) > 1:
            word = "table" if isinstance(column.this, exp.Star) else "table or column"
            known += [source.alias for source in sources if source.alias]
        shown = [
            f"{source.text or source.alias or 'the query'} has {listed(source.shape.names)}"
            for source in sources[:3]
            if source.shape.names
        ]
        place = at_parts(self._query, column.parts)
        near = did_you_mean(nearest(named, known))
        return InvalidQuery(
            not_there(f"no {word} {named!r}{place}", near, "; ".join(dict.fromkeys(shown))),
            column=named,
        )


def _is_pruned(node: exp.Expr) -> bool:
    """Where the walk over an expression stops: nodes checked as a whole, or not at all."""
    return isinstance(
        node, exp.Select | exp.SetOperation | exp.Subquery | exp.Column | exp.Star | exp.Hint
    )


def _found_in(source: _Source, parts: list[str], is_star: bool) -> str | None:
    """The column of a source that a name may refer to; None if there is none."""
    if is_star:
        paths = ((source.alias,), source.path, (DEFAULT_SCHEMA, *source.path))
        if tuple(parts) in paths:
            return ""  # otherwise the fields of a struct
    if source.shape.has(parts[0]):
        return parts[0]  # or a field of it, at any depth
    if len(parts) > 1 and source.alias == parts[0] and source.shape.has(parts[1]):
        return parts[1]
    for path in (source.path, (DEFAULT_SCHEMA, *source.path)):
        rest = parts[len(path) :]
        if path and rest and tuple(parts[: len(path)]) == path and source.shape.has(rest[0]):
            return rest[0]
    return None


def _merges_or_hides(join: exp.Join) -> bool:
    """Whether a join makes one column of two, or its right side is not seen elsewhere."""
    is_named = (
        bool(join.args.get("using")) or str(join.args.get("method") or "").upper() == "NATURAL"
    )
    return is_named or join.kind.upper() in ("SEMI", "ANTI")


def check_result_names(query: str) -> None:
    """Reject a table whose columns have equal names, as far as they are written in the query."""
    tree: exp.Expr = parse_query(query)
    while isinstance(tree, exp.SetOperation | exp.Subquery | exp.Paren):
        tree = tree.this
    if not isinstance(tree, exp.Select):
        return
    seen: set[str] = set()
    for projection in tree.expressions:
        names = _aliases(projection)
        if not names and isinstance(projection, exp.Column) and not projection.is_star:
            names = [projection.name]
        for name in names:
            if name.lower() in seen:
                raise InvalidQuery(
                    f"a table needs columns of different names, and has {name} twice: give one "
                    f"another name, as in `{name} AS {name}_2`",
                    column=name,
                )
            seen.add(name.lower())


def _is_no_column(column: exp.Column, parts: list[str]) -> bool:
    """Whether something that looks like a column is something else."""
    if len(parts) == 1 and (parts[0] in _WITHOUT_PARENTHESES or parts[0] in _OF_SPARK):
        return True
    if parts[0] in _OF_SPARK or (len(parts) > 1 and parts[1] in _OF_SPARK):
        return True
    if parts[0] in _UNITS and isinstance(column.parent, exp.Func):
        return True
    node = column.parent
    while node is not None and not isinstance(node, exp.Select):
        if isinstance(node, exp.Lambda) and parts[0] in {e.name.lower() for e in node.expressions}:
            return True
        if isinstance(node, exp.Pivot | exp.MatchRecognize | exp.Kwarg | exp.QueryTransform):
            return not isinstance(node, exp.Kwarg) or node.this is column
        node = node.parent
    return False


def _aliases(projection: exp.Expr) -> list[str]:
    """The aliases of a projection."""
    if isinstance(projection, exp.Aliases):
        return [name.name for name in projection.expressions]
    if isinstance(projection, exp.Alias | exp.Subquery) and projection.alias:
        return [projection.alias]
    return []


def _output(select: exp.Select, scope: _Scope) -> RelationShape:
    """The columns of a SELECT whose names are all valid."""
    names: list[str] = []
    is_open = False
    unreadable: dict[str, str] = {}
    for projection in select.expressions:
        given = _aliases(projection)
        if given:
            names += given
        elif isinstance(projection, exp.Star) or (
            isinstance(projection, exp.Column) and isinstance(projection.this, exp.Star)
        ):
            shape = _starred(projection, scope)
            names += shape.names
            is_open |= shape.open
            unreadable |= shape.unreadable
        elif isinstance(projection, exp.Column):
            names.append(projection.name)
        elif isinstance(projection, exp.Dot) and isinstance(projection.expression, exp.Identifier):
            names.append(projection.expression.name)
        else:
            is_open = True  # Spark derives a name from the expression
    return RelationShape(tuple(names), is_open, unreadable)


def _starred(projection: exp.Expr, scope: _Scope) -> RelationShape:
    """The expansion of `*` or `t.*`."""
    if isinstance(projection, exp.Column):
        parts = tuple(part.name.lower() for part in projection.parts[:-1])
        star = projection.this
        sources = [
            source
            for level in scope.outwards()
            for source in level.sources
            if parts in ((source.alias,), source.path, (DEFAULT_SCHEMA, *source.path))
        ][:1]
        shape = sources[0].shape if sources else UNKNOWN  # the fields of a struct
    else:
        star = projection
        shape = _together(source.shape for source in scope.sources)
    if star.args.get("replace") or star.args.get("rename"):
        return replace(shape, open=True)
    gone = set()
    for column in star.args.get("except_") or ():
        if isinstance(column, exp.Column) and len(column.parts) > 2:
            return replace(shape, open=True)
        gone.add(column.name.lower())
    names = tuple(name for name in shape.names if name.lower() not in gone)
    left = {name: kind for name, kind in shape.unreadable.items() if name not in gone}
    return RelationShape(names, shape.open, left)


def _together(shapes: Iterable[RelationShape]) -> RelationShape:
    listed_shapes = list(shapes)
    unreadable: dict[str, str] = {}
    for shape in listed_shapes:
        unreadable |= shape.unreadable
    names = tuple(name for shape in listed_shapes for name in shape.names)
    return RelationShape(names, any(shape.open for shape in listed_shapes), unreadable)


def _renamed(shape: RelationShape, alias: exp.Expr | None) -> RelationShape:
    """A relation whose alias also renames its columns: `t(a, b)`."""
    columns = alias.args.get("columns") if alias is not None else None
    if not columns:
        return shape
    # A column is unreadable by its position, which is known only without stars.
    return RelationShape(tuple(column.name for column in columns))
