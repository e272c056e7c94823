"""A query's names of relations become names of views, and nothing else of its text changes.

Spark's temporary views have no schemas, and for as long as a query is analysed they belong to the
whole session. So each view has a name of its own, and the relation's old name as its alias.

>>> bind("SELECT sales.orders.n FROM sales.orders").query
'SELECT `orders`.n FROM penstock_view_0 AS `orders`'
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

from sqlglot import exp, tokenize

from penstock.spark.lake.evolution import quoted
from penstock.tables.query.names import DEFAULT_SCHEMA, relation_name
from penstock.tables.query.sources import parse_query, refuse_code

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

_NUMBERS: Final = count()


@dataclass(frozen=True, slots=True)
class Bound:
    """A query for Spark, and for each relation it reads the name of the view it expects."""

    query: str
    views: dict[str, str]
    moved: tuple[tuple[int, int, int, int], ...] = ()
    """Where something else stands: from and to in this query, from and to in the one given."""

    def original(self, offset: int) -> int:
        """The place in the query as it was given that a place in this one stands for."""
        shift = 0
        for begin, end, was, until in self.moved:
            if offset < begin:
                break
            if offset < end:
                return max(was, until - 1) if offset == end - 1 else was
            shift = until - end
        return offset + shift


class ViewNames:
    """Names of views for the old rows and for the changes of each relation of one query."""

    def __init__(self) -> None:
        self._prefix = f"penstock_delta_{next(_NUMBERS):08}"
        self.views: dict[str, tuple[str, bool]] = {}
        """What each view holds: a relation, and whether it is its changes."""
        self.given: dict[str, DataFrame] = {}
        """Views of other rows."""

    def old(self, relation: str) -> str:
        """The view of a relation's rows before the changes."""
        return self._name(relation, is_delta=False)

    def delta(self, relation: str) -> str:
        """The view of a relation's changes."""
        return self._name(relation, is_delta=True)

    def give(self, frame: DataFrame) -> str:
        """The view of other rows."""
        name = f"{self._prefix}_given_{len(self.given)}"
        self.given[name] = frame
        return name

    def _name(self, relation: str, *, is_delta: bool) -> str:
        for name, meant in self.views.items():
            if meant == (relation, is_delta):
                return name
        name = f"{self._prefix}_{len(self.views)}"
        self.views[name] = (relation, is_delta)
        return name


def bound_frame(spark: SparkSession, sql: str, views: Mapping[str, DataFrame]) -> DataFrame:
    """A query over views as a DataFrame; the views go with it in one request. Nothing runs yet."""
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.plan import SQL, SubqueryAlias

    listed = [SubqueryAlias(frame._plan, name) for name, frame in views.items()]
    return DataFrame(SQL(sql, [], {}, listed), spark)


class _Splice(NamedTuple):
    """A piece to be replaced: by the view of a relation, if one is named, and a text."""

    start: int
    end: int
    text: str
    relation: str | None = None


class _Found(NamedTuple):
    relations: tuple[str, ...]
    splices: tuple[_Splice, ...]


def bind(query: str, prefix: str = "penstock_view") -> Bound:
    """Find the relations of a query and give each a view, whose name begins with the prefix."""
    found = _found(query)
    views = {relation: f"{prefix}_{number}" for number, relation in enumerate(found.relations)}
    return Bound(*_spliced(query, found.splices, views))


@lru_cache(maxsize=1_024)
def _found(query: str) -> _Found:
    """What to replace in a query; the same text comes at every refresh."""
    tree = parse_query(query)
    refuse_code(tree)
    tables = list(_tables(tree, frozenset()))
    names = {relation_name([part.name for part in table.parts]): table for table in tables}
    splices = [splice for table in tables for splice in _table_splices(query, table)]
    splices += _column_splices(tree, names.values())
    return _Found(tuple(names), tuple(sorted(splices)))


def _tables(node: exp.Expr, known: frozenset[str]) -> Iterator[exp.Table]:
    """The tables of a tree that are not CTEs at their place."""
    clause = node.args.get("with_")
    if isinstance(clause, exp.With):
        for cte in clause.expressions:
            name = frozenset({cte.alias.lower()})
            yield from _tables(cte.this, known | name if clause.args.get("recursive") else known)
            known |= name
    if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier | exp.Dot):
        parts = [part.name for part in node.parts]
        if len(parts) > 1 or parts[0].lower() not in known:
            yield node
    for child in node.iter_expressions():
        if child is not clause and not isinstance(child, exp.Hint):
            yield from _tables(child, known)


def _table_splices(query: str, table: exp.Table) -> Iterator[_Splice]:
    parts = [part.name for part in table.parts]
    alias = "" if table.alias else f" AS {quoted(parts[-1])}"
    start, end = _span(table.parts)
    if alias and table.args.get("sample"):  # Spark has the alias behind it
        at = _sample_end(query, end)
        yield _Splice(at, at, alias)
        alias = ""
    yield _Splice(start, end, alias, relation_name(parts))


def _sample_end(query: str, start: int) -> int:
    """Where `TABLESAMPLE (…) REPEATABLE (…)` ends that stands behind a place of a query."""
    depth, end = 0, start
    for token in tokenize(query[start:], read="spark"):
        word = token.text.upper()
        if depth == 0 and word not in ("TABLESAMPLE", "REPEATABLE", "("):
            break
        depth += {"(": 1, ")": -1}.get(word, 0)
        end = start + token.end + 1
    return end


def _column_splices(tree: exp.Expr, tables: Iterable[exp.Table]) -> Iterator[_Splice]:
    """`sales.orders.n` becomes `orders.n`: the view has no schema to be named by."""
    known = {tuple(part.name.lower() for part in table.parts) for table in tables}
    known |= {(DEFAULT_SCHEMA, *name) for name in known if len(name) == 1}
    for column in tree.find_all(exp.Column):
        parts = column.parts
        for size in (3, 2):
            if len(parts) > size and tuple(p.name.lower() for p in parts[:size]) in known:
                yield _Splice(*_span(parts[:size]), quoted(parts[size - 1].name))
                break


def _span(parts: list[exp.Expr]) -> tuple[int, int]:
    return int(parts[0].meta["start"]), int(parts[-1].meta["end"]) + 1


def _spliced(
    query: str, splices: Iterable[_Splice], views: dict[str, str]
) -> tuple[str, dict[str, str], tuple[tuple[int, int, int, int], ...]]:
    made, at, length = [], 0, 0
    moved = []
    for splice in splices:
        text = splice.text if splice.relation is None else views[splice.relation] + splice.text
        begin = length + splice.start - at
        length = begin + len(text)
        made += [query[at : splice.start], text]
        moved.append((begin, length, splice.start, splice.end))
        at = splice.end
    return "".join([*made, query[at:]]), views, tuple(moved)
