"""Aggregates that are kept as sums and counts, so that changes are added instead of groups re-read.

A query whose last step is a GROUP BY (or DISTINCT) has a `Root`. Bound to the types that Spark
gives its arguments it becomes a `State`: the columns of a state table, and the SQL to fill it, to
sum up changes, to add them, and to turn it into the query's rows. `Root.bind` says None where a sum
cannot be taken back exactly (floats): such groups are re-read by the plain delta.

Sums of integers are kept as DECIMAL(38, 0), so that a batch in any order overflows only where the
query itself would.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from sqlglot import exp

from penstock.tables.delta.algebra import (
    Aggregate,
    Filter,
    Generate,
    Join,
    Node,
    Project,
    Scan,
    is_row_by_row,
    walk,
)
from penstock.tables.delta.calls import DECIMAL, INTEGERS, KEPT_SCALE, Call, is_kept, read_call
from penstock.tables.delta.key_local import new_rows
from penstock.tables.delta.moments import MOMENTS, decimal_mean, moment, products, whole
from penstock.tables.delta.ranges import Ranges
from penstock.tables.delta.rules import Texts
from penstock.tables.delta.writing import WEIGHT, Names, all_of, each_row, listed, quoted, sql

ROWS: Final = "__n"
"""How many rows a group has."""
REREAD: Final = "__reread"
"""Whether a group lost its extreme, so that the next one must be looked for."""
IS: Final = "__is"
"""Whether the query makes a row of a group; with a number, a column of that row."""
WAS: Final = "__was"
"""The same of the group as it was."""


_LOW: Final = (1 << 32) - 1


class Kind(StrEnum):
    """What a column of a state table holds."""

    KEY = "key"
    ROWS = "rows"
    SUM = "sum"
    COUNT = "count"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"


class StateColumn(NamedTuple):
    """A column of a state table; `argument` is the place of what is summed or counted.

    A product is that of `argument` and `other`, which may be the same.
    """

    name: str
    kind: Kind
    argument: int = -1
    other: int = -1


@dataclass(frozen=True, slots=True)
class Root:
    """The aggregate that ends a query, and the steps above it: HAVING and the SELECT list."""

    columns: tuple[str, ...]
    aggregate: Aggregate
    _above: tuple[Filter | Project, ...]
    _arguments: tuple[exp.Expr, ...]
    _calls: tuple[Call, ...]

    @property
    def arguments(self) -> int:
        """How many arguments Spark must be asked the types of."""
        return len(self._arguments)

    def arguments_sql(self, names: Names) -> str:
        """A query of the keys `k0`, … and the arguments `a0`, …, for Spark to say their types."""
        keys = [f"{key} AS k{place}" for place, key in enumerate(self.aggregate.keys)]
        shown = [f"{sql(text)} AS a{place}" for place, text in enumerate(self._arguments)]
        texts = Texts(names, ())
        rows = texts.rows(self.aggregate.child)
        return texts.complete(
            f"SELECT {listed((*keys, *shown)) or '1 AS one'} FROM ({rows}) AS rows"
        )

    def bind(self, types: Sequence[str]) -> State | None:
        """The state for arguments of these types, as Spark writes them.

        None if the groups must be re-read instead.
        """
        if len(types) != len(self._arguments):
            raise ValueError(f"expected {len(self._arguments)} types, found {len(types)}")
        if not all(is_kept(call, types) for call in self._calls):
            return None
        return State(self, tuple(types))


def find_root(node: Node, columns: tuple[str, ...]) -> Root | None:
    """The aggregate that ends a query, if all its calls are sums, counts or extremes."""
    above: list[Filter | Project] = []
    while isinstance(node, Filter | Project):
        above.append(node)
        node = node.child
    if not isinstance(node, Aggregate):
        return None
    arguments: list[exp.Expr] = []
    calls = []
    for call, column in zip(node.calls, node.made, strict=True):
        found = read_call(call, column, arguments)
        if found is None:
            return None
        calls.append(found)
    return Root(columns, node, tuple(reversed(above)), tuple(arguments), tuple(calls))


class State:
    """A state table: its columns, and the SQL around it."""

    def __init__(self, root: Root, types: tuple[str, ...]) -> None:
        self.root, self._types, self._node = root, types, root.aggregate
        self.columns = tuple(self._columns())

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify a group; empty if there is one group only."""
        return tuple(column.name for column in self.columns if column.kind is Kind.KEY)

    @property
    def rereads(self) -> bool:
        """Whether a group may have to be re-read, because it has a MIN or MAX."""
        return any(column.kind in (Kind.MIN, Kind.MAX) for column in self.columns)

    def full(self, names: Names) -> str:
        """The whole state, from the old rows."""
        texts = Texts(names, ())
        rows = texts.rows(self._node.child)
        one = f"SELECT *, CAST(1 AS BIGINT) AS {WEIGHT} FROM ({rows}) AS old"
        return texts.complete(self._grouped(one))

    def delta(
        self,
        changed: Collection[str],
        names: Names,
        *,
        broadcast: bool = True,
        ranges: Ranges | None = None,
        is_net: bool = False,
    ) -> str | None:
        """Per group that changed, what to add; for MIN and MAX the extremes that came and left.

        The extreme that came has the column's name; the one that left has `_out` behind it. With
        `is_net`, no row of the changes comes and leaves again.
        """
        texts = Texts(names, changed, broadcast=broadcast, ranges=ranges)
        text = texts.delta(self._node.child)
        if text is None:
            return None
        is_net = is_net and is_row_by_row(self._node.child)
        if self.rereads and not is_net:  # a row that comes and leaves again is no extreme
            shown, each = each_row(texts, self._node.child)
            text = (
                f"SELECT {shown}, SUM({WEIGHT}) AS {WEIGHT} FROM ({text}) AS changes "
                f"GROUP BY {each} HAVING SUM({WEIGHT}) <> 0"
            )
        return texts.complete(self._grouped(text, outs=True))

    def reread(
        self,
        changed: Collection[str],
        names: Names,
        keys_view: str,
        *,
        broadcast: bool = True,
        ranges: Ranges | None = None,
    ) -> str | None:
        """The state of the groups whose keys a view lists, from the rows as they are now.

        These are keys of changed rows. With each, as `rowed` has it, the query's row.
        """
        texts = Texts(names, changed, broadcast=broadcast, ranges=ranges)
        rows = new_rows(texts, self._node.child, self._node.keys, keys_view, self.keys)
        return None if rows is None else self.rowed(texts.complete(self._grouped(rows)))

    def step(self, old_view: str, delta: str) -> str:
        """The state of changed groups with changes added, and the query's rows before and after.

        `old_view` has the stored rows of those groups, and maybe of others; `delta` is the text of
        `delta`, or a SELECT of its rows. Groups with `__reread` must be re-read; groups with no
        rows left are gone, unless there is no key. Rows are as in `rowed`; those of the stored
        state are `__was0`, … and there is one if `__was`.
        """
        shown = [f"d.{key}" for key in self.keys]
        again = ["FALSE"]
        for column in self.columns:
            name = column.name
            if column.kind in (Kind.MIN, Kind.MAX):
                extended = _extended(column)
                shown.append(f"{extended} AS {name}")
                again.append(_lost(column))
            elif column.kind is not Kind.KEY:
                kind = self._kept_type(column)
                total = f"COALESCE(o.{name}, 0) + COALESCE(d.{name}, 0)"
                shown.append(f"CAST({total} AS {kind}) AS {name}")
        shown.append(f"{' OR '.join(again)} AS {REREAD}")
        shown.append(f"COALESCE(o.{IS}, FALSE) AS {WAS}")
        shown += [f"o.{IS}{place} AS {WAS}{place}" for place in range(len(self.root.columns))]
        on = " AND ".join(f"o.{key} <=> d.{key}" for key in self.keys) or "TRUE"
        old = self.rowed(f"SELECT * FROM {old_view}")
        # To broadcast is a job of its own; both sides may be in one partition already.
        how = "SHUFFLE_HASH" if self.keys else "BROADCAST"
        text = (
            f"SELECT /*+ {how}(o) */ {listed(shown)} "
            f"FROM ({delta}) AS d LEFT JOIN ({old}) AS o ON {on}"
        )
        were = [f"{WAS}{place}" for place in range(len(self.root.columns))]
        return self.rowed(text, (REREAD, WAS, *were))

    def rowed(self, text: str, also: Sequence[str] = ()) -> str:
        """Rows of the state, each with the row that the query makes of it: `__is0`, `__is1`, …

        `__is` says whether it makes one: not of a group without rows, nor of one that HAVING leaves
        out. What is not there is not computed either: it may have no value. Columns in `also` are
        passed on.
        """
        held = [f"__held_{column.name}" for column in self.columns]
        kept = (*held, *also)
        there = "TRUE" if self._node.is_global else f"{ROWS} > 0"
        shown = [f"{c.name} AS {name}" for c, name in zip(self.columns, held, strict=True)]
        shown += [*also, f"{there} AS {IS}"]
        shown += [f"{key} AS {name}" for key, name in zip(self.keys, self._node.keys, strict=True)]
        shown += [f"{self._final(call)} AS {call.column}" for call in self.root._calls]
        text = f"SELECT {listed(shown)} FROM ({text}) AS state"
        columns = self._node.columns
        for step in self.root._above:
            text, columns = _above(step, text, kept), step.columns
        named = [f"{ours} AS {c.name}" for ours, c in zip(held, self.columns, strict=True)]
        named += [*also, IS, *(f"{name} AS {IS}{place}" for place, name in enumerate(columns))]
        return f"SELECT {listed(named)} FROM ({text}) AS result"

    def result(self, view: str) -> str:
        """The query's rows of the groups that a view holds."""
        pairs = enumerate(self.root.columns)
        shown = listed(f"{IS}{place} AS {quoted(name)}" for place, name in pairs)
        rows = self.rowed(f"SELECT * FROM {view}")
        return f"SELECT {shown} FROM ({rows}) AS stored WHERE {IS}"

    def key_source(self) -> tuple[str, tuple[str, ...]] | None:
        """The relation whose rows have the keys, and its columns with them, where that is so.

        If it is the only one that changed, the keys of its changes are those of all groups that
        change, and maybe of others.
        """
        node, keys = self._node.child, self._node.keys
        while not isinstance(node, Scan):
            match node:
                case Filter() | Generate():
                    node = node.child
                case Project():
                    made = dict(zip(node.columns, node.expressions, strict=True))
                    found = [made[key] for key in keys]
                    if not all(isinstance(each, exp.Column) for each in found):
                        return None
                    node, keys = node.child, tuple(each.name for each in found)
                case Join():
                    sides = [child for child in node.inputs if {*keys} <= {*child.columns}]
                    if not sides:
                        return None
                    node = sides[0]
                case _:
                    return None
            if not {*keys} <= {*node.columns}:  # a generator made some
                return None
        scans = [each for each in walk(self._node) if isinstance(each, Scan)]
        if [each.relation for each in scans].count(node.relation) > 1:
            return None
        fields = dict(zip(node.columns, node.fields, strict=True))
        return node.relation, tuple(fields[key] for key in keys)

    # pieces --------------------------------------------------------------------------------------

    def _columns(self) -> list[StateColumn]:
        found = [StateColumn(f"k{p}", Kind.KEY) for p in range(len(self._node.keys))]
        found.append(StateColumn(ROWS, Kind.ROWS))
        for call in self.root._calls:
            for place in call.arguments:
                if call.function not in ("count", "min", "max"):
                    found.append(StateColumn(f"s{place}", Kind.SUM, place))
                found.append(StateColumn(f"n{place}", Kind.COUNT, place))
            if call.function in ("min", "max"):
                kind, (place,) = Kind(call.function), call.arguments
                found.append(StateColumn(f"{kind.value}{place}", kind, place))
            for one, other in products(call.function, call.arguments):
                found.append(StateColumn(f"p{one}_{other}", Kind.PRODUCT, one, other))
        return list(dict.fromkeys(found))

    def _grouped(self, rows: str, *, outs: bool = False) -> str:
        """State columns from weighted rows of the aggregate's input."""
        shown = [f"{key} AS k{place}" for place, key in enumerate(self._node.keys)]
        for column in self.columns:
            if column.kind is Kind.KEY:
                continue
            if column.kind is Kind.ROWS:
                shown.append(f"COALESCE(SUM({WEIGHT}), 0) AS {ROWS}")
                continue
            text = sql(self.root._arguments[column.argument])
            if column.kind is Kind.COUNT:
                counted = f"SUM(IF(({text}) IS NOT NULL, {WEIGHT}, 0))"
                shown.append(f"COALESCE({counted}, 0) AS {column.name}")
            elif column.kind is Kind.SUM:
                shown.append(f"{self._summed(column, text)} AS {column.name}")
            elif column.kind is Kind.PRODUCT:
                shown.append(f"{self._multiplied(column)} AS {column.name}")
            else:
                call = column.kind.value.upper()
                shown.append(f"{call}({text}) FILTER (WHERE {WEIGHT} > 0) AS {column.name}")
                if outs:
                    out = f"{call}({text}) FILTER (WHERE {WEIGHT} < 0)"
                    shown.append(f"{out} AS {column.name}_out")
        group = f" GROUP BY {listed(self._node.keys)}" if self._node.keys else ""
        return f"SELECT {listed(shown)} FROM ({rows}) AS rows{group}"

    def _kept_type(self, column: StateColumn) -> str:
        if column.kind is Kind.SUM:
            scale = self._scale(column.argument)  # two of them are added with all digits kept
            return f"DECIMAL({38 if scale <= KEPT_SCALE else 37}, {scale})"
        return "DECIMAL(38, 0)" if column.kind is Kind.PRODUCT else "BIGINT"

    def _scale(self, argument: int) -> int:
        found = DECIMAL.fullmatch(self._types[argument])
        return int(found[2]) if found else 0

    def _summed(self, column: StateColumn, text: str) -> str:
        kind, kept = self._types[column.argument], self._kept_type(column)
        if kind in INTEGERS:
            return _whole_sum(f"CAST(({text}) AS BIGINT)", kept)
        weighted = f"SUM(({text}) * CAST({WEIGHT} AS DECIMAL(11, 0)))"
        return f"CAST(COALESCE({weighted}, 0) AS {kept})"

    def _multiplied(self, column: StateColumn) -> str:
        """The sum of products of two arguments, each as a whole number of its last digits."""
        one, other = (
            f"CAST({whole(sql(self.root._arguments[place]), self._scale(place))} AS DECIMAL(19, 0))"
            for place in (column.argument, column.other)
        )
        weighted = f"SUM({one} * {other} * CAST({WEIGHT} AS DECIMAL(11, 0)))"
        return f"CAST(COALESCE({weighted}, 0) AS {self._kept_type(column)})"

    def _final(self, call: Call) -> str:
        """An aggregate's value from state columns, of the type and digits that Spark gives it."""
        if not call.arguments:
            return ROWS
        place = call.arguments[0]
        if call.function == "count":
            return f"n{place}"
        if call.function in ("min", "max"):
            return f"{call.function}{place}"
        if call.function in MOMENTS:
            return moment(call.function, call.arguments, self._scale)
        total, number = f"s{place}", f"n{place}"
        found = DECIMAL.fullmatch(self._types[place])
        if call.function == "sum":
            kind = "BIGINT"
            if found:
                kind = f"DECIMAL({min(int(found[1]) + 10, 38)}, {found[2]})"
            return f"IF({number} > 0, CAST({total} AS {kind}), NULL)"
        if found is None:
            mean = f"CAST({total} AS DOUBLE) / CAST({number} AS DOUBLE)"
        else:
            mean = decimal_mean(total, number, int(found[1]), int(found[2]))
        return f"IF({number} > 0, {mean}, NULL)"


def _above(step: Filter | Project, text: str, kept: Sequence[str]) -> str:
    """A step above the aggregate, for the rows that are there; all of them are passed on."""
    if isinstance(step, Filter):
        is_met = f"IF({IS}, COALESCE({all_of(step.conditions)}, FALSE), FALSE) AS {IS}"
        return f"SELECT {listed((*kept, is_met, *step.columns))} FROM ({text}) AS state"
    pairs = zip(step.expressions, step.columns, strict=True)
    made = [f"IF({IS}, {sql(expression)}, NULL) AS {name}" for expression, name in pairs]
    return f"SELECT {listed((*kept, IS, *made))} FROM ({text}) AS state"


def _whole_sum(value: str, kept: str) -> str:
    """The weighted sum of integers as a decimal: their halves are summed as integers.

    That takes a third of the time of a sum of decimals. Two thousand million rows of a group fit.
    """
    high, low = (
        f"CAST(COALESCE(SUM({half} * {WEIGHT}), 0) AS {kept})"
        for half in (f"SHIFTRIGHT({value}, 32)", f"({value} & {_LOW})")
    )
    return f"CAST({high} * {_LOW + 1} + {low} AS {kept})"


def _extended(column: StateColumn) -> str:
    """The extreme with those that came, if none that mattered left."""
    word = "LEAST" if column.kind is Kind.MIN else "GREATEST"
    both = f"{word}(o.{column.name}, d.{column.name})"  # ignores NULL, as the aggregates do
    return f"IF({_remaining(column)} > 0, {both}, NULL)"


def _lost(column: StateColumn) -> str:
    """Whether the old extreme left, nothing as extreme came, and there are others."""
    name = column.name
    sign = "<=" if column.kind is Kind.MIN else ">="
    left = f"COALESCE(d.{name}_out = o.{name}, FALSE)"
    kept = f"COALESCE(d.{name} {sign} o.{name}, FALSE)"
    return f"({left} AND NOT {kept} AND {_remaining(column)} > 0)"


def _remaining(column: StateColumn) -> str:
    number = f"n{column.argument}"
    return f"(COALESCE(o.{number}, 0) + COALESCE(d.{number}, 0))"
