"""Rule 4: the keys of changed rows decide what is computed again, as it was and as it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sqlglot import exp

from penstock.tables.delta.algebra import Aggregate, Node, SetOperation, TopN, Window
from penstock.tables.delta.functions import Ties, ties_of
from penstock.tables.delta.writing import (
    NONE,
    ONE,
    WEIGHT,
    DeltaWriter,
    each_row,
    listed,
    named,
    ranges_of,
    renamed,
    semi,
    sql,
)


def aggregate_delta(writer: DeltaWriter, node: Aggregate) -> str | None:
    """Rule 4: the groups of changed rows, as they are less as they were."""
    delta = writer.delta(node.child)
    if delta is None:
        return None
    if not node.calls:
        return _distinct(writer, node, delta)
    sides = _sides(writer, node.child, node.keys, delta)
    calls: Iterable[exp.Expr] = node.calls
    if node.is_global:
        # Two rows that no aggregate counts: a group for each side even if it has no rows.
        nulls = listed(f"NULL AS {name}" for name in node.child.columns)
        real = listed((*node.child.columns, "__s", "TRUE AS __r"))
        sides = (
            f"SELECT {real} FROM ({sides}) AS {writer.alias()} "
            f"UNION ALL SELECT {nulls}, -1 AS __s, FALSE AS __r "
            f"UNION ALL SELECT {nulls}, 1 AS __s, FALSE AS __r"
        )
        calls = [_only_real(call) for call in calls]
    shown = listed((*node.keys, *named(calls, node.made), f"CAST(__s AS BIGINT) AS {WEIGHT}"))
    group = listed((*node.keys, "__s"))
    return f"SELECT {shown} FROM ({sides}) AS {writer.alias()} GROUP BY {group}"


def _distinct(writer: DeltaWriter, node: Aggregate, delta: str) -> str:
    """DISTINCT needs no more than whether a row is there: counts suffice."""
    keys = listed(node.keys)
    weight = "(IF(SUM(__o + __d) > 0, 1, 0) - IF(SUM(__o) > 0, 1, 0))"
    return (
        f"SELECT {keys}, CAST({weight} AS BIGINT) AS {WEIGHT} "
        f"FROM ({_both(writer, node.child, node.keys, delta)}) AS {writer.alias()} "
        f"GROUP BY {keys} HAVING {weight} <> 0"
    )


def window_delta(writer: DeltaWriter, node: Window) -> str | None:
    """The partitions of changed rows, as they are less as they were."""
    delta = writer.delta(node.child)
    if delta is None:
        return None
    sides = _sides(writer, node.child, node.keys, delta)
    calls = []
    for by_side in total_windows(node):
        by_side.set("partition_by", [exp.column("__s"), *by_side.args["partition_by"]])
        calls.append(by_side)
    shown = listed(
        (*node.child.columns, *named(calls, node.made), f"CAST(__s AS BIGINT) AS {WEIGHT}")
    )
    return f"SELECT {shown} FROM ({sides}) AS {writer.alias()}"


def top_delta(writer: DeltaWriter, node: TopN) -> str | None:
    """The first rows as they are less the first rows as they were.

    Where it is known how many rows leave, so many more of the old ones suffice.
    """
    delta = writer.delta(node.child)
    if delta is None:
        return None
    columns = listed(node.columns)
    order = listed(sql(key) for key in total_order(node))
    old, leaving = writer.rows(node.child), writer.leaving(node.child)
    if leaving is not None and node.limit is not None:
        most = node.offset + node.limit + leaving
        old = f"SELECT {columns} FROM ({old}) AS {writer.alias()} ORDER BY {order} LIMIT {most}"
    sides = _of_both(writer, node.child, f"({old})", delta)
    numbered = (
        f"SELECT {columns}, __s, ROW_NUMBER() OVER (PARTITION BY __s ORDER BY {order}) AS __n "
        f"FROM ({sides}) AS {writer.alias()}"
    )
    last = "" if node.limit is None else f" AND __n <= {node.offset + node.limit}"
    return (
        f"SELECT {columns}, CAST(__s AS BIGINT) AS {WEIGHT} "
        f"FROM ({numbered}) AS {writer.alias()} WHERE __n > {node.offset}{last}"
    )


def set_operation_delta(writer: DeltaWriter, node: SetOperation) -> str | None:
    """How often each changed row is in the result, less how often it was."""
    left, right = writer.delta(node.left), writer.delta(node.right)
    if left is None and right is None:
        return None
    columns = listed(node.columns)
    sides = ((node.left, left, "__lo", "__ld"), (node.right, right, "__ro", "__rd"))
    terms, keys = [], []
    for child, delta, old, new in sides:
        shown = renamed(child.columns, node.columns)
        rows = f"({writer.rows(child)}) AS {writer.alias()}"
        terms.append(f"SELECT {shown}, {_counts(old)} FROM {rows}")
        keys.append(f"SELECT {shown} FROM ({writer.rows(child)}) AS {writer.alias()} WHERE FALSE")
        if delta is not None:
            terms.append(
                f"SELECT {shown}, {_counts(new, WEIGHT)} FROM ({delta}) AS {writer.alias()}"
            )
            keys.append(f"SELECT {shown} FROM ({delta}) AS {writer.alias()}")
    changed = f"SELECT DISTINCT {columns} FROM ({' UNION ALL '.join(keys)}) AS {writer.alias()}"
    counted = semi(
        writer, " UNION ALL ".join(terms), (*node.columns, *_COUNTS), node.columns, changed
    )
    old, new = (
        _multiplicity(node, "SUM(__lo)", "SUM(__ro)"),
        _multiplicity(node, "SUM(__lo + __ld)", "SUM(__ro + __rd)"),
    )
    return (
        f"SELECT {columns}, CAST({new} - {old} AS BIGINT) AS {WEIGHT} "
        f"FROM ({counted}) AS {writer.alias()} GROUP BY {columns} HAVING {new} <> {old}"
    )


def _sides(writer: DeltaWriter, node: Node, keys: Sequence[str], delta: str) -> str:
    """The rows of the keys that changed, as they were (`__s` −1) and as they are (1)."""
    return _of_both(writer, node, _old_of_keys(writer, node, keys, delta), delta)


def _of_both(writer: DeltaWriter, node: Node, old: str, delta: str) -> str:
    """Some old rows as they were, and with the changes as they are."""
    both = f"({_counted(writer, node, old, delta)}) AS {writer.alias()}"
    shown, each = each_row(writer, node)
    counted = f"SELECT {shown}, SUM(__o) AS __o, SUM(__o + __d) AS __n FROM {both} GROUP BY {each}"
    if not node.columns:
        counted = f"SELECT SUM(__o) AS __o, SUM(__o + __d) AS __n FROM {both}"
    side, times = writer.alias(), writer.alias()
    times_each = "CAST(IF(__s < 0, __o, __n) AS BIGINT) AS __c"
    repeated = (
        f"SELECT {listed((*node.columns, '__s', times_each))} "
        f"FROM ({counted}) AS {writer.alias()} CROSS JOIN "
        f"(SELECT -1 AS __s UNION ALL SELECT 1 AS __s) AS {side} "
        f"WHERE IF(__s < 0, __o, __n) > 0"
    )
    return (
        f"SELECT {listed((*node.columns, '__s'))} FROM ({repeated}) AS {writer.alias()} "
        f"LATERAL VIEW EXPLODE(SEQUENCE({ONE}, __c)) {times} AS __i"
    )


def _both(writer: DeltaWriter, node: Node, keys: Sequence[str], delta: str) -> str:
    """The old rows of the keys that changed (`__o`) and the changes (`__d`)."""
    return _counted(writer, node, _old_of_keys(writer, node, keys, delta), delta)


def _old_of_keys(writer: DeltaWriter, node: Node, keys: Sequence[str], delta: str) -> str:
    if not keys:
        return f"({writer.rows(node)})"
    changed = f"SELECT DISTINCT {listed(keys)} FROM ({delta}) AS {writer.alias()}"
    rows = writer.within(node, ranges_of(writer, node, keys))
    return f"({semi(writer, rows, node.columns, keys, changed)})"


def _counted(writer: DeltaWriter, node: Node, old: str, delta: str) -> str:
    was = listed((*node.columns, f"{ONE} AS __o", f"{NONE} AS __d"))
    new = listed((*node.columns, f"{NONE} AS __o", f"{WEIGHT} AS __d"))
    return (
        f"SELECT {was} FROM {old} AS {writer.alias()} "
        f"UNION ALL SELECT {new} FROM ({delta}) AS {writer.alias()}"
    )


def new_rows(
    writer: DeltaWriter, node: Node, keys: Sequence[str], view: str, view_keys: Sequence[str]
) -> str | None:
    """The new rows of the keys that a view lists, with the weight 1; keys of changed rows."""
    delta = writer.delta(node)
    if delta is None:
        return None
    columns = listed(node.columns)
    old = writer.within(node, ranges_of(writer, node, keys))
    if keys:
        pairs = zip(view_keys, keys, strict=True)
        found = f"SELECT {listed(f'{theirs} AS {ours}' for theirs, ours in pairs)} FROM {view}"
        old = semi(writer, old, node.columns, keys, found)
        delta = semi(writer, delta, (*node.columns, WEIGHT), keys, found)
    shown, each = each_row(writer, node)
    times = writer.alias()
    counted = (
        f"SELECT {shown}, CAST(SUM({WEIGHT}) AS BIGINT) AS __c FROM ("
        f"SELECT {columns}, {ONE} AS {WEIGHT} FROM ({old}) AS {writer.alias()} "
        f"UNION ALL SELECT {columns}, {WEIGHT} FROM ({delta}) AS {writer.alias()}"
        f") AS {writer.alias()} GROUP BY {each} "
        f"HAVING SUM({WEIGHT}) > 0"
    )
    return (
        f"SELECT {columns}, {ONE} AS {WEIGHT} FROM ({counted}) AS {writer.alias()} "
        f"LATERAL VIEW EXPLODE(SEQUENCE({ONE}, __c)) {times} AS __i"
    )


def top_rows(writer: DeltaWriter, node: TopN) -> str:
    """The first rows."""
    limit = "" if node.limit is None else f" LIMIT {node.limit}"
    offset = f" OFFSET {node.offset}" if node.offset else ""
    return (
        f"SELECT {listed(node.columns)} FROM ({writer.rows(node.child)}) AS {writer.alias()} "
        f"ORDER BY {listed(sql(key) for key in total_order(node))}{limit}{offset}"
    )


def total_order(node: TopN) -> list[exp.Ordered]:
    """The order of a top N, completed by all columns: equal rows are left, and are the same."""
    return _completed(node.order, node.columns)


def total_windows(node: Window) -> list[exp.Window]:
    """The calls of a window; where ties would show, its order is completed by all columns."""
    found = []
    for call in node.calls:
        whole, ties = call.copy(), ties_of(call)
        if ties is not Ties.NONE:
            order = whole.args.get("order")
            keys = _completed(order.expressions if order is not None else (), node.child.columns)
            whole.set("order", exp.Order(expressions=keys))
        if ties is Ties.WHOLE:  # else an order would end the frame with the row
            whole.set("spec", _WHOLE.copy())
        found.append(whole)
    return found


def _completed(order: Sequence[exp.Ordered], columns: Iterable[str]) -> list[exp.Ordered]:
    have = {key.this.name for key in order if isinstance(key.this, exp.Column)}
    more = [exp.Ordered(this=exp.column(name)) for name in columns if name not in have]
    return [*(key.copy() for key in order), *more]


_WHOLE: Final = exp.WindowSpec(
    kind="ROWS", start="UNBOUNDED", start_side="PRECEDING", end="UNBOUNDED", end_side="FOLLOWING"
)

_COUNTS: Final = ("__lo", "__ld", "__ro", "__rd")


def _counts(name: str, value: str = "1") -> str:
    """Four counters, of which one has a value."""
    return listed(
        f"CAST({value} AS BIGINT) AS {count}" if count == name else f"{NONE} AS {count}"
        for count in _COUNTS
    )


def _multiplicity(node: SetOperation, left: str, right: str) -> str:
    """How often a row is in the result that is so often on the left and on the right."""
    if node.kind == "INTERSECT":
        return f"LEAST({left}, {right})" if node.every else f"IF({left} > 0 AND {right} > 0, 1, 0)"
    if node.every:
        return f"GREATEST({left} - {right}, 0)"
    return f"IF({left} > 0 AND {right} = 0, 1, 0)"


def _only_real(call: exp.Expr) -> exp.Expr:
    """An aggregate that ignores the rows which stand for an empty side."""
    found = call.copy()
    real = exp.column("__r")
    if isinstance(found, exp.Filter):
        condition = exp.and_(real, found.expression.this)
        return exp.Filter(this=found.this, expression=exp.Where(this=condition))
    return exp.Filter(this=found, expression=exp.Where(this=real))
