"""From a qualified query to operators: FROM, WHERE, GROUP BY, windows, SELECT, ORDER BY … LIMIT.

Subqueries in expressions are decorrelated on the way (`subqueries`); what has no rule is refused,
and so is everything that is not known here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count
from typing import Final

from sqlglot import exp

from penstock.tables.delta import grouping, subqueries
from penstock.tables.delta.algebra import (
    Aggregate,
    Constant,
    Generate,
    Mark,
    Node,
    OuterJoin,
    Project,
    Scan,
    SetOperation,
    TopN,
    Union,
    Window,
    used,
)
from penstock.tables.delta.block import Block, Cte, Relation, conjuncts, has_query, with_ctes
from penstock.tables.delta.front import Qualified
from penstock.tables.delta.functions import Ties, is_query, outermost, ties_of
from penstock.tables.delta.refusal import Cause, refusal, shown
from penstock.tables.delta.scope import Scope


class Lowering:
    """Compiles the parts of one query. `ties` says that an order was completed to be total."""

    def __init__(self, source: Qualified) -> None:
        self._source = source
        self._numbers = count(1)
        self._taken = {
            variable.name.lower()
            for each in source.tree.find_all(exp.Lambda)
            for variable in each.expressions
        }
        self.ties = False

    def fresh(self) -> str:
        """A column name that no other operator has, and no variable of a function."""
        return next(name for n in self._numbers if (name := f"c{n}") not in self._taken)

    def keep_where(self, block: Block, condition: exp.Expr) -> None:
        """Keep the rows of a block that meet a condition with subqueries."""
        subqueries.keep_where(self, block, condition)

    def with_queries(self, block: Block, expression: exp.Expr) -> exp.Expr:
        """An expression whose subqueries become part of the block."""
        return subqueries.lowered(self, block, expression)

    def query(
        self, tree: exp.Expr, ctes: Mapping[str, Cte], outer: Scope | None = None
    ) -> Relation:
        """Compile a whole query, which may be a SELECT, a set operation or one in parentheses."""
        ctes = with_ctes(tree, ctes)
        if isinstance(tree, exp.Select):
            return self.select(tree, ctes, outer)
        if isinstance(tree, exp.SetOperation):
            return self._set_operation(tree, ctes, outer)
        if isinstance(tree, exp.Subquery | exp.Paren):
            inner = self.query(tree.this, ctes, outer)
            return self._ordered(tree, inner)
        if isinstance(tree, exp.Table):
            if tree.args.get("joins"):
                raise refusal(Cause.UNSUPPORTED, tree, "a join in parentheses with a name")
            return self._from_table(tree, ctes)[0]
        if isinstance(tree, exp.Values):
            return self._values(tree)
        raise refusal(Cause.UNSUPPORTED, tree, f"{tree.key.upper()} has no rule")

    # SELECT --------------------------------------------------------------------------------------

    def select(self, select: exp.Select, ctes: Mapping[str, Cte], outer: Scope | None) -> Relation:
        """Compile one SELECT."""
        block = self.block(select, ctes, outer)
        if block.correlated:
            raise refusal(
                Cause.CORRELATED, block.correlated[0], "refers to a query around it from here"
            )
        return self.shaped(select, block)

    def block(self, select: exp.Select, ctes: Mapping[str, Cte], outer: Scope | None) -> Block:
        """Compile FROM and WHERE; conditions on columns of outer queries are left over."""
        for key in ("sort", "cluster", "distribute", "connect", "match", "prewhere", "into"):
            if select.args.get(key):
                raise refusal(Cause.UNSUPPORTED, select.args[key], "has no rule")
        block = Block(self, ctes, Scope(outer))
        clause = select.args.get("from_")
        if clause is None:
            column = self.fresh()
            block.inputs.append(Constant(f"SELECT 1 AS {column}", (column,)))
        else:
            self._item(clause.this, block)
        for join in select.args.get("joins") or ():
            self._joined(join, block)
        for lateral in select.args.get("laterals") or ():
            self._lateral(lateral, block)
        block.settle()
        where = select.args.get("where")
        if where is not None:
            block.where(conjuncts(where.this))
        return block

    def shaped(self, select: exp.Select, block: Block) -> Relation:
        """Compile what a SELECT does with the rows of its block."""
        if grouping.is_grouped(select):
            block = grouping.grouped(self, select, block)
        qualify = select.args.get("qualify")
        projections = [projection.unalias() for projection in select.expressions]
        ordered = (select.args.get("order") or exp.Order(expressions=[])).expressions
        filters = [] if qualify is None else conjuncts(qualify.this)
        self._windows(block, [*projections, *ordered, *filters], select)
        block.where(filters)
        names = tuple(select.named_selects)
        columns = tuple(self.fresh() for _ in names)
        for projection in projections:
            check_single(projection)
        texts = tuple(block.lower(projection) for projection in projections)
        if select.args.get("distinct"):
            if select.args["distinct"].args.get("on"):
                raise refusal(Cause.UNSUPPORTED, select.args["distinct"], "DISTINCT ON has no rule")
            node: Node = Project(block.node, columns, texts)
            node = Aggregate(node, columns, (), (), is_global=False)
            return self._ordered(select, Relation(node, names))
        if not is_limited(select):
            return Relation(Project(block.node, columns, texts), names)
        return self._limited(select, block, Relation(Project(block.node, columns, texts), names))

    def _limited(self, select: exp.Select, block: Block, result: Relation) -> Relation:
        """ORDER BY … LIMIT over columns of the result and of the block below it."""
        node = result.node
        assert isinstance(node, Project)
        scope = Scope(sources={"": result.columns})
        keys: list[exp.Ordered] = []
        hidden: dict[str, exp.Expr] = {}
        known = {name for names in block.scope.sources.values() for name in names}
        for ordered in _order_of(select, result.names, known):
            found = ordered.this
            place = scope.here(found) if isinstance(found, exp.Column) and not found.table else None
            if place is None:
                text = block.lower(found)
                place = self.fresh()
                hidden[place] = text
            key = ordered.copy()
            key.set("this", exp.column(place))
            keys.append(key)
        if hidden:
            node = Project(
                block.node, (*node.columns, *hidden), (*node.expressions, *hidden.values())
            )
        top = self._top(select, node, keys)
        if hidden:
            shown_columns = result.node.columns
            top = Project(top, shown_columns, tuple(exp.column(name) for name in shown_columns))
        return Relation(top, result.names)

    def _ordered(self, tree: exp.Expr, result: Relation) -> Relation:
        """ORDER BY … LIMIT over the columns of a result."""
        if not is_limited(tree):
            return result
        scope = Scope(sources={"": result.columns})
        keys = []
        for ordered in _order_of(tree, result.names):
            found = ordered.this
            place = scope.here(exp.column(found.name)) if isinstance(found, exp.Column) else None
            if place is None:
                raise refusal(Cause.UNSUPPORTED, ordered, "ORDER BY must name a column here")
            key = ordered.copy()
            key.set("this", exp.column(place))
            keys.append(key)
        return Relation(self._top(tree, result.node, keys), result.names)

    def _top(self, tree: exp.Expr, node: Node, keys: Sequence[exp.Ordered]) -> Node:
        limit, offset = _number(tree, "limit"), _number(tree, "offset") or 0
        if not keys:
            words = f"LIMIT {limit}" if limit is not None else f"OFFSET {offset}"
            raise refusal(
                Cause.ORDER_DEPENDENT, words, "without ORDER BY any rows may be the first"
            )
        self.ties = True
        return TopN(node, tuple(keys), limit, offset)

    def _windows(self, block: Block, pieces: Iterable[exp.Expr], select: exp.Select) -> None:
        """Add the window functions of expressions to a block, by their PARTITION BY."""
        named = {found.name.lower(): found for found in select.args.get("windows") or ()}
        groups: dict[tuple[str, ...], list[tuple[exp.Expr, exp.Window]]] = {}
        for piece in pieces:
            for call in outermost(piece, windows=True):
                if call in block.known or not isinstance(call, exp.Window):
                    continue
                whole = _whole_window(call, named)
                if not whole.args.get("partition_by"):
                    raise refusal(
                        Cause.WHOLE_WINDOW,
                        call,
                        "a window without PARTITION BY is computed from all rows",
                    )
                keys = tuple(block.column(block.lower(key)) for key in whole.args["partition_by"])
                lowered = block.lower_parts(whole)
                lowered.set("partition_by", [exp.column(key) for key in keys])
                assert isinstance(lowered, exp.Window)
                self._note_ties(call, lowered)
                groups.setdefault(tuple(sorted(set(keys))), []).append((call, lowered))
        for keys, calls in groups.items():
            made = tuple(self.fresh() for _ in calls)
            node = block.node
            block.inputs[:] = [Window(node, keys, made, tuple(call for _, call in calls))]
            for name, (call, _) in zip(made, calls, strict=True):
                block.known[call] = name

    def _note_ties(self, call: exp.Expr, lowered: exp.Window) -> None:
        found = ties_of(lowered)
        if found is Ties.OPEN:
            raise refusal(
                Cause.ORDER_DEPENDENT,
                call,
                "rows of an equal order share a RANGE frame, in which any may be the last",
            )
        self.ties |= found is not Ties.NONE

    # FROM ----------------------------------------------------------------------------------------

    def _item(self, item: exp.Expr, block: Block) -> None:
        """Add one item of a FROM clause to a block, with the joins inside its parentheses."""
        if isinstance(item, exp.Lateral):
            self._lateral(item, block)
            return
        block.inputs.append(self._source_of(item, block))
        for lateral in item.args.get("laterals") or ():
            self._lateral(lateral, block)

    def _source_of(self, item: exp.Expr, block: Block) -> Node:
        """The operator of a FROM item; its columns are added to the scope."""
        if item.args.get("sample") or item.args.get("pivots"):
            raise refusal(Cause.UNSUPPORTED, item, "has no rule")
        if isinstance(item, exp.Subquery) and isinstance(item.this, exp.Table) and not item.alias:
            return self._source_of(item.this, block)  # a join in parentheses
        if isinstance(item, exp.Table):
            found, name = self._from_table(item, block.ctes)
            if item.args.get("joins"):
                inner = Block(self, block.ctes, block.scope)
                block.scope.add(name, found.columns)
                inner.inputs.append(found.node)
                for join in item.args["joins"]:
                    self._joined(join, inner)
                return inner.node
        elif isinstance(item, exp.Subquery):
            found, name = self.query(item, block.ctes, block.scope.outer), item.alias
            found = _realiased(found, item.args.get("alias"))
        elif isinstance(item, exp.Values):
            found, name = self._values(item), item.alias
        else:
            raise refusal(Cause.UNSUPPORTED, item, f"{item.key.upper()} in FROM has no rule")
        block.scope.add(name, found.columns)
        return found.node

    def _from_table(self, table: exp.Table, ctes: Mapping[str, Cte]) -> tuple[Relation, str]:
        if not isinstance(table.this, exp.Identifier):
            return self._table_function(table), table.alias
        name, alias = table.name, table.args.get("alias")
        if name in self._source.relations:
            fields = self._source.fields[name]
            node = Scan(self._source.relations[name], tuple(self.fresh() for _ in fields), fields)
            found = Relation(node, tuple(field.lower() for field in fields))
        elif name in ctes:
            cte = ctes[name]
            found = _realiased(self.query(cte.tree, cte.ctes), cte.alias)
        else:
            raise refusal(Cause.UNRESOLVED, table, "is not known")
        return _realiased(found, alias), table.alias_or_name

    def _table_function(self, table: exp.Table) -> Relation:
        function = table.this
        is_range = isinstance(function, exp.Anonymous) and function.name.lower() == "range"
        if not is_range or used(function):
            raise refusal(Cause.UNSUPPORTED, function, "this table function has no rule")
        column = self.fresh()
        text = function.sql(dialect="spark")
        node = Constant(f"SELECT id AS {column} FROM {text}", (column,))
        return _realiased(Relation(node, ("id",)), table.args.get("alias"))

    def _values(self, values: exp.Values) -> Relation:
        rows = [
            row.expressions if isinstance(row, exp.Tuple) else [row] for row in values.expressions
        ]
        if any(used(cell) or is_query(cell) for row in rows for cell in row):
            raise refusal(Cause.UNSUPPORTED, values, "VALUES must be constants")
        columns = tuple(self.fresh() for _ in rows[0])
        text = " UNION ALL ".join(
            "SELECT "
            + ", ".join(
                f"{cell.sql(dialect='spark')} AS {name}"
                for cell, name in zip(row, columns, strict=True)
            )
            for row in rows
        )
        names = tuple(f"col{place}" for place in range(1, len(columns) + 1))
        return _realiased(Relation(Constant(text, columns), names), values.args.get("alias"))

    def _lateral(self, lateral: exp.Lateral, block: Block) -> None:
        """LATERAL VIEW: rows that a function makes of each row."""
        function = lateral.this
        if is_query(function) or isinstance(function, exp.Subquery):
            raise refusal(Cause.CORRELATED, lateral, "a LATERAL query has no rule")
        alias = lateral.args.get("alias")
        names = [column.name for column in (alias.args.get("columns") if alias else None) or ()]
        names = names or _generated(function)
        made = tuple(self.fresh() for _ in names)
        text = block.lower(function)
        block.inputs[:] = [Generate(block.node, text, made, bool(lateral.args.get("outer")))]
        block.scope.add(lateral.alias, dict(zip(names, made, strict=True)))

    def _joined(self, join: exp.Join, block: Block) -> None:
        """Add a JOIN to a block."""
        kind = str(join.args.get("kind") or "").upper()
        side = str(join.args.get("side") or "").upper()
        if join.args.get("using") or str(join.args.get("method") or "").upper() not in (
            "",
            "NATURAL",
        ):
            raise refusal(Cause.UNSUPPORTED, join, "this join has no rule")
        on = conjuncts(join.args["on"]) if join.args.get("on") else []
        if side == "" and kind in ("", "INNER", "CROSS"):
            self._item(join.this, block)
            block.where(on, later=True)
            return
        if side in ("RIGHT", "FULL") and block.has_cross:
            # `a, b RIGHT JOIN c` and `a CROSS JOIN b RIGHT JOIN c` differ, the parser's trees not.
            raise refusal(Cause.UNSUPPORTED, join, f"a {side} join after a comma has no rule")
        if any(has_query(condition) for condition in on):
            what = " ".join(("the condition of a", side, kind, "JOIN")).replace("  ", " ")
            raise refusal(Cause.CORRELATED, what, "a subquery has no rule there")
        left = block.node
        hidden = {name: dict(names) for name, names in block.scope.sources.items()}
        right = self._source_of(join.this, block)
        conditions = tuple(block.lower_plain(condition) for condition in on)
        for condition, text in zip(on, conditions, strict=True):
            if not used(text) <= {*left.columns, *right.columns}:
                raise refusal(Cause.CORRELATED, condition, "refers to a query around it from here")
        if kind in ("SEMI", "ANTI"):
            block.inputs[:] = [Mark(left, right, conditions, keep=kind == "SEMI")]
            block.scope.sources = hidden  # the right side is not seen outside
        elif kind not in ("", "OUTER"):
            raise refusal(Cause.UNSUPPORTED, join, "this join has no rule")
        elif side == "RIGHT":
            block.inputs[:] = [OuterJoin(right, left, conditions, full=False)]
        else:
            block.inputs[:] = [OuterJoin(left, right, conditions, full=side == "FULL")]

    # set operations ------------------------------------------------------------------------------

    def _set_operation(
        self, tree: exp.SetOperation, ctes: Mapping[str, Cte], outer: Scope | None
    ) -> Relation:
        if tree.args.get("by_name") or tree.args.get("side") or tree.args.get("on"):
            raise refusal(Cause.UNSUPPORTED, tree, "has no rule")
        rights: list[exp.SetOperation] = []
        left: exp.Expr = tree
        while isinstance(left, exp.SetOperation) and (left is tree or not _has_tail(left)):
            rights.append(left)
            left = left.this
        result = self.query(left, ctes, outer)
        for step in reversed(rights):
            right = self.query(step.expression, ctes, outer)
            if len(right.names) != len(result.names):
                raise refusal(Cause.UNRESOLVED, step, "its sides have different columns")
            columns = tuple(self.fresh() for _ in result.names)
            every = not step.args.get("distinct", True)
            if isinstance(step, exp.Union):
                node: Node = Union((result.node, right.node), columns)
                if not every:
                    node = Aggregate(node, columns, (), (), is_global=False)
            else:
                kind = "INTERSECT" if isinstance(step, exp.Intersect) else "EXCEPT"
                node = SetOperation(result.node, right.node, columns, kind, every)
            result = Relation(node, result.names)
        return self._ordered(tree, result)


def check_single(projection: exp.Expr) -> None:
    """Reject what stands for several columns in a SELECT list."""
    if projection.is_star and not isinstance(projection, exp.Count):
        raise refusal(Cause.UNRESOLVED, projection, "its columns are not known")
    named = isinstance(projection, exp.Anonymous) and projection.name.lower() in _SEVERAL
    if named or isinstance(projection, exp.Posexplode | exp.Inline | exp.Stack):
        raise refusal(
            Cause.UNSUPPORTED, projection, "has several columns; use LATERAL VIEW … AS a, b"
        )


_SEVERAL: Final = frozenset(
    {"inline_outer", "posexplode_outer", "json_tuple", "stack", "parse_url_tuple", "inline"}
)


def is_limited(tree: exp.Expr) -> bool:
    """Whether a query takes only some of its rows."""
    if tree.args.get("limit") is not None and not isinstance(tree.args["limit"], exp.Limit):
        raise refusal(Cause.UNSUPPORTED, tree.args["limit"], "has no rule")
    return bool(tree.args.get("limit") or tree.args.get("offset"))


def _order_of(
    tree: exp.Expr, names: Sequence[str], known: Collection[str] = ()
) -> list[exp.Ordered]:
    """The keys of ORDER BY; ALL stands for every column of the result, `names`.

    A column of that name, there or in a table (`known`), comes first with Spark.
    """
    clause = tree.args.get("order")
    keys = list(clause.expressions) if clause is not None else []
    if len(keys) != 1 or not isinstance(keys[0].this, exp.Var):
        return keys
    if "all" in (*names, *known):
        raise refusal(Cause.UNSUPPORTED, "ORDER BY ALL", "there is a column of that name as well")
    whole = []
    for name in names:
        key = keys[0].copy()
        key.set("this", exp.column(name))
        whole.append(key)
    return whole


def _has_tail(tree: exp.Expr) -> bool:
    return any(tree.args.get(key) for key in ("order", "limit", "offset", "with_"))


def _number(tree: exp.Expr, key: str) -> int | None:
    clause = tree.args.get(key)
    if clause is None:
        return None
    found = clause.expression
    if isinstance(found, exp.Literal) and not found.is_string and found.name.isdigit():
        return int(found.name)
    if found.name.lower() == "all":
        return None
    raise refusal(Cause.UNSUPPORTED, clause, "must be a number")


def _whole_window(call: exp.Window, named: Mapping[str, exp.Expr]) -> exp.Window:
    """A window function with the parts of the named window that it refers to."""
    name = call.args.get("alias")
    if name is None:
        return call
    found = named.get(name.name.lower())
    if found is None:
        raise refusal(Cause.UNRESOLVED, call, f"there is no window {name.name}")
    whole = call.copy()
    whole.set("alias", None)
    for key in ("partition_by", "order", "spec"):
        if found.args.get(key) and not whole.args.get(key):
            value = found.args[key]
            whole.set(key, [v.copy() for v in value] if isinstance(value, list) else value.copy())
    return whole


def _generated(function: exp.Expr) -> list[str]:
    """The columns of a generator that the query did not name."""
    if isinstance(function, exp.Posexplode):
        return ["pos", "col"]
    if isinstance(function, exp.Explode):
        return ["col"]
    raise refusal(Cause.UNSUPPORTED, function, "name the columns: LATERAL VIEW … t AS a, b")


def _realiased(found: Relation, alias: exp.Expr | None) -> Relation:
    """A relation whose alias also names its columns: `t(a, b)`."""
    columns = alias.args.get("columns") if alias is not None else None
    if not columns:
        return found
    if len(columns) != len(found.names):
        raise refusal(Cause.UNRESOLVED, shown(alias or ""), "names not as many columns as it has")
    return Relation(found.node, tuple(column.name.lower() for column in columns))
