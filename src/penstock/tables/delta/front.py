"""From the text of a query to a tree in which every name is resolved.

sqlglot parses and qualifies, nothing more: types, validity and meaning are Spark's. Relations get
plain names on the way, because sqlglot wants every table to be named with as many parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify

from penstock.tables.delta.functions import is_aggregate, outermost
from penstock.tables.delta.refusal import Cause, refusal
from penstock.tables.delta.using import mark_using, merge_using
from penstock.tables.delta.writing import WEIGHT
from penstock.tables.query.names import relation_name
from penstock.tables.query.sources import parse_query, volatile_functions

RESERVED: Final = "refreshes from changes need the name {} themselves; rename the column"


class Qualified(NamedTuple):
    """A query whose columns all say which table they come from.

    `relations` are the real names of the tables, `fields` their columns, both by the names in
    `tree`; `names` are the columns of the result as the query spells them.
    """

    tree: exp.Query
    relations: Mapping[str, str]
    fields: Mapping[str, tuple[str, ...]]
    names: tuple[str, ...]


def qualified(query: str, columns: Mapping[str, Sequence[str]]) -> Qualified:
    """Parse a query and resolve its names; `NotDifferentiable` if it cannot be."""
    volatile = volatile_functions(query)
    if volatile:
        called = ", ".join(f"{name}()" for name in volatile)
        cause = Cause.SAMPLED if volatile == ("tablesample",) else Cause.VOLATILE
        raise refusal(cause, called, "may answer differently each time")
    tree = parse_query(query)
    _refuse_early(tree)
    spelled = [projection.output_name for projection in tree.selects]
    plain = _PlainNames(columns)
    plain.rename(tree, frozenset())
    _check_reserved(plain)
    for select in tree.find_all(exp.Select):
        _settle_order(select)
    _name_windows(tree, plain)
    _rename_partners(tree)
    named = tree.transform(_named_struct, copy=False)
    mark_using(named)
    schema: dict[str, object] = {
        name: dict.fromkeys((field.lower() for field in fields), "unknown")
        for name, fields in plain.fields.items()
    }
    try:
        done = qualify(named, schema=schema, dialect="spark", quote_identifiers=True)
    except SqlglotError as error:
        raise refusal(Cause.UNRESOLVED, "the query", f"a name is not resolved ({error})") from None
    assert isinstance(done, exp.Query)
    merge_using(done)
    names = _names(done, spelled, plain)
    return Qualified(done, plain.relations, plain.fields, names)


_PARTNER: Final = "penstock_partner_"

_REFUSED_NAMES: Final = {
    "collate": "texts that are equal by a collation may be different rows",
    "session_window": "a row may join or extend the windows of other rows, whatever their keys",
}


def _refuse_early(tree: exp.Query) -> None:
    """Reject what no rule covers before names are resolved, which might rewrite it."""
    for node in tree.walk():
        if isinstance(node, exp.With) and node.args.get("recursive"):
            name = ", ".join(cte.alias for cte in node.expressions)
            raise refusal(
                Cause.RECURSIVE,
                f"WITH RECURSIVE {name}",
                "recursive queries are recomputed in full",
            )
        if isinstance(node, exp.TableSample):
            raise refusal(Cause.SAMPLED, node, "a sample is redrawn each time")
        if isinstance(node, exp.Pivot):
            raise refusal(Cause.UNSUPPORTED, node, "PIVOT and UNPIVOT have no rule")
        _refuse_call(node)
        if isinstance(node, exp.DataType) and node.this is exp.DType.TIME:
            raise refusal(Cause.UNSUPPORTED, "TIME", "the parser takes it for a TIMESTAMP")


def _refuse_call(node: exp.Expr) -> None:
    """Reject functions and operators that no rule covers."""
    if isinstance(node, exp.Star):
        _check_star(node)
    if isinstance(node, exp.Collate):
        raise refusal(Cause.UNSUPPORTED, node, _REFUSED_NAMES["collate"])
    if isinstance(node, exp.Anonymous) and node.name.lower() in _REFUSED_NAMES:
        raise refusal(Cause.UNSUPPORTED, node, _REFUSED_NAMES[node.name.lower()])
    if isinstance(node, exp.JSONExtract):
        raise refusal(Cause.UNSUPPORTED, "v:path", "has no rule; use variant_get(v, '$.path')")
    if _is_window(node):
        _check_window(node)
    if isinstance(node, exp.Aliases):
        raise refusal(Cause.UNSUPPORTED, node, "has several columns; use LATERAL VIEW … AS a, b")


def _check_star(star: exp.Star) -> None:
    """Reject `hash(*)` and `count(DISTINCT *)`: columns that nothing else uses are left out."""
    place: exp.Expr = star
    if isinstance(place.parent, exp.Column):
        place = place.parent
    elif isinstance(place.parent, exp.Count) and place.arg_key == "this":
        return
    around = place.parent
    if around is not None and not isinstance(around, exp.Select):
        raise refusal(Cause.UNSUPPORTED, around, "name the columns instead of *")


def _settle_order(select: exp.Select) -> None:
    """Spell out what an ORDER BY computes from columns of the result, which come first with Spark.

    The parser looks among the columns of tables: `SELECT -n AS n FROM t ORDER BY abs(n)`. Without
    a limit no order matters.
    """
    order = select.args.get("order")
    if order is None:
        return
    if not select.args.get("limit") and not select.args.get("offset"):
        if not any(outermost(order, windows=False)):
            select.set("order", None)
        return
    made = {
        found.alias.lower(): found.this for found in select.selects if isinstance(found, exp.Alias)
    }
    for key in order.expressions:
        if isinstance(key.this, exp.Column):
            continue  # by name, the result's columns come first already
        plain = key.walk(prune=lambda node: is_aggregate(node) or isinstance(node, exp.Query))
        for column in [node for node in plain if isinstance(node, exp.Column)]:
            meant = made.get(column.name.lower())
            if meant is not None and not column.table:
                column.replace(exp.paren(meant.copy()))


def _rename_partners(tree: exp.Query) -> None:
    """Give what a semi or anti join looks in a name that no column has.

    The parser does not see it among the tables, so `b.k` would be a field of a column `b`.
    """
    for number, join in enumerate(list(tree.find_all(exp.Join))):
        alias = join.this.alias
        if join.kind.upper() not in ("SEMI", "ANTI") or not alias:
            continue
        renamed = f"{_PARTNER}{number}"
        join.this.args["alias"].set("this", exp.to_identifier(renamed, quoted=True))
        condition = join.args.get("on")
        for column in condition.find_all(exp.Column) if condition is not None else ():
            if column.table.lower() == alias.lower():
                column.set("table", exp.to_identifier(renamed, quoted=True))


def _name_windows(tree: exp.Query, plain: _PlainNames) -> None:
    """Spell out `window.start`: Spark calls the key `window(ts, '5 minutes')` `window`.

    Where something else has that name, it stays what it is.
    """
    known = {field.lower() for fields in plain.fields.values() for field in fields}
    known |= {alias.name.lower() for alias in tree.find_all(exp.TableAlias)}
    known |= {alias.alias.lower() for alias in tree.find_all(exp.Alias)}
    if "window" in known:
        return
    for select in list(tree.find_all(exp.Select)):
        group = select.args.get("group")
        calls = [key for key in (group.expressions if group else ()) if _is_window(key)]
        if len(calls) != 1:
            continue
        for part in ("expressions", "having", "order"):
            value = select.args.get(part)
            for piece in value if isinstance(value, list) else [value]:
                if isinstance(piece, exp.Expr):
                    for node in list(piece.walk(prune=lambda found: isinstance(found, exp.Query))):
                        _spell_out(node, calls[0])


def _spell_out(node: exp.Expr, call: exp.Expr) -> None:
    if not isinstance(node, exp.Column) or len(node.parts) > 2:
        return
    if node.parts[0].name.lower() != "window":
        return
    found = call.copy()
    if len(node.parts) == 2:
        found = exp.Dot(this=found, expression=node.this.copy())
    if isinstance(node.parent, exp.Select):
        found = exp.alias_(found, node.name)
    node.replace(found)


def _check_window(call: exp.Expr) -> None:
    """Reject `window(…)` where it is neither a group key nor a column: it makes rows."""
    around = call.parent
    while around is not None and not isinstance(around, exp.Query):
        if isinstance(around, exp.Where | exp.Join | exp.Window) or is_aggregate(around):
            raise refusal(
                Cause.UNSUPPORTED, call, "has a rule as a group key and in a SELECT list only"
            )
        around = around.parent


def _is_window(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and node.name.lower() == "window"


def _check_reserved(plain: _PlainNames) -> None:
    """Reject relations with a column that is called like the weight of a change."""
    for name, fields in plain.fields.items():
        for field in fields:
            if field.lower() == WEIGHT:
                raise refusal(
                    Cause.UNSUPPORTED, f"{plain.relations[name]}.{field}", RESERVED.format(field)
                )


def _named_struct(node: exp.Expr) -> exp.Expr:
    """A struct whose fields are named by texts, whose spelling nothing normalises."""
    if not isinstance(node, exp.Struct):
        return node
    pieces: list[exp.Expr] = []
    for place, field in enumerate(node.expressions, start=1):
        value = field.expression if isinstance(field, exp.PropertyEQ) else field
        named = isinstance(field, exp.PropertyEQ | exp.Column | exp.Dot)
        pieces += [exp.Literal.string(field.name if named else f"col{place}"), value]
    return exp.Anonymous(this="named_struct", expressions=pieces)


class _PlainNames:
    """Gives relations plain names, and remembers which are which."""

    def __init__(self, columns: Mapping[str, Sequence[str]]) -> None:
        self._columns = columns
        self._given: dict[str, str] = {}
        self.relations: dict[str, str] = {}
        self.fields: dict[str, tuple[str, ...]] = {}

    def rename(self, node: exp.Expr, known: frozenset[str]) -> None:
        """Rename the relations below a node; `known` are the CTEs that it sees."""
        clause = node.args.get("with_")
        if isinstance(clause, exp.With):
            for cte in clause.expressions:
                self.rename(cte.this, known)
                known |= {cte.alias.lower()}
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier | exp.Dot):
            parts = [part.name for part in node.parts]
            if len(parts) > 1 or parts[0].lower() not in known:
                self._table(node, parts)
        if isinstance(node, exp.Column) and node.args.get("db") and not node.args.get("catalog"):
            # `schema.table.column`; the table's alias is the last part of its name.
            node.set("db", None)
        for child in list(node.iter_expressions()):
            if child is not clause and not isinstance(child, exp.Hint):
                self.rename(child, known)
        if isinstance(node, exp.Select):
            node.set("hint", None)

    def _table(self, table: exp.Table, parts: list[str]) -> None:
        relation = relation_name(parts)
        plain = self._given.get(relation)
        if plain is None:
            found = self._columns.get(relation)
            if found is None:
                raise refusal(Cause.UNKNOWN_COLUMNS, relation, "its columns are not known")
            plain = self._given[relation] = f"relation_{len(self._given)}"
            self.relations[plain] = relation
            self.fields[plain] = tuple(found)
        if not table.alias:
            table.set("alias", exp.TableAlias(this=exp.to_identifier(parts[-1], quoted=True)))
        table.set("this", exp.to_identifier(plain))
        table.set("db", None)
        table.set("catalog", None)


def _names(tree: exp.Query, spelled: Sequence[str], plain: _PlainNames) -> tuple[str, ...]:
    """The columns of the result, spelled as in the query or in the relation they come from."""
    known = {field.lower(): field for fields in plain.fields.values() for field in fields}
    known |= {name.lower(): name for name in spelled}
    return tuple(known.get(name, name) for name in tree.named_selects)
