"""Outer joins: the inner join (rule 2) and the rows without a match, padded with NULL (rule 3).

Where equal keys are all there is to a match, both are found together: the rows of the right that
have a changed key, and one row of NULLs for each such key, are joined once with the left, each with
the weight that it has for old rows and for changed rows of the left. So each side is read once.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.tables.delta import marks
from penstock.tables.delta.algebra import Join, Mark, OuterJoin
from penstock.tables.delta.joins import join_delta
from penstock.tables.delta.marks import (
    KeyPair,
    changed_keys,
    key_pairs,
    mark_delta,
    matching_right,
)
from penstock.tables.delta.writing import (
    NONE,
    ONE,
    SAME,
    WEIGHT,
    DeltaWriter,
    listed,
    named,
    semi,
    sql,
)


def outer_delta(writer: DeltaWriter, node: OuterJoin) -> str | None:
    """The weighted changes of a LEFT or FULL join."""
    if writer.delta(node.left) is None and writer.delta(node.right) is None:
        return None
    pairs, residual = key_pairs(Mark(node.left, node.right, node.conditions, keep=False))
    terms = []
    if pairs and not residual:
        terms.append(_left_by_key(writer, node, pairs))
    else:
        inner = join_delta(writer, Join((node.left, node.right), node.conditions))
        terms += [inner or "", _lone(writer, node, keeps_left=True)]
    if node.full:
        terms.append(_lone(writer, node, keeps_left=False))
    return " UNION ALL ".join(terms)


def _lone(writer: DeltaWriter, node: OuterJoin, *, keeps_left: bool) -> str:
    """The rows of one side that have no match, padded with NULL."""
    kept, other = (node.left, node.right) if keeps_left else (node.right, node.left)
    lone = mark_delta(writer, Mark(kept, other, node.conditions, keep=False))
    nulls = frozenset(other.columns)
    shown = [f"NULL AS {name}" if name in nulls else name for name in node.columns]
    return f"SELECT {listed((*shown, WEIGHT))} FROM ({lone}) AS {writer.alias()}"


def _left_by_key(writer: DeltaWriter, node: OuterJoin, pairs: Sequence[KeyPair]) -> str:
    """A LEFT join by keys: matches and lone rows of the left at once."""
    left, right = writer.delta(node.left), writer.delta(node.right)
    keys = tuple(f"__k{place}" for place in range(len(pairs)))
    changed = changed_keys(writer, pairs, keys, left, right)
    lefts = marks.marked_left(
        writer, Mark(node.left, node.right, node.conditions, keep=False), left, right
    )
    partners = _partners(writer, node, pairs, keys, changed)
    rows, small = writer.alias(), writer.alias()
    on = " AND ".join(
        f"{sql(pair.left)} {SAME} {small}.{key}" for pair, key in zip(pairs, keys, strict=True)
    )
    weight = "IF(__lo > 0, __wo, __ld * __wn)"
    return (
        f"SELECT {writer.hint(small)}{listed(node.columns)}, {weight} AS {WEIGHT} "
        f"FROM ({lefts}) AS {rows} JOIN ({partners}) AS {small} ON {on} WHERE {weight} <> 0"
    )


def _partners(
    writer: DeltaWriter,
    node: OuterJoin,
    pairs: Sequence[KeyPair],
    keys: Sequence[str],
    changed: str,
) -> str:
    """What a row of the left is joined with, by key: rows of the right, or NULLs.

    The weights are `__wo` for old rows of the left and `__wn` for changed ones: a row of NULLs is
    there for a key that has no matches now, and left for one that had none.
    """
    columns = listed(node.right.columns)
    found = semi(
        writer, _right(writer, node, pairs, keys),
        (*node.right.columns, *keys, "__ro", "__rd"), keys, changed,
    )  # fmt: skip
    nulls = listed(f"NULL AS {name}" for name in node.right.columns)
    with_nulls = (
        f"SELECT {columns}, {listed(keys)}, __ro, __rd, FALSE AS __p "
        f"FROM ({found}) AS {writer.alias()} UNION ALL "
        f"SELECT {nulls}, {listed(keys)}, {NONE} AS __ro, {NONE} AS __rd, TRUE AS __p "
        f"FROM ({changed}) AS {writer.alias()}"
    )
    over = f"OVER (PARTITION BY {listed(keys)})"
    counted = (
        f"SELECT {columns}, {listed(keys)}, __ro, __rd, __p, SUM(__ro) {over} AS __co, "
        f"SUM(__ro + __rd) {over} AS __cn FROM ({with_nulls}) AS {writer.alias()}"
    )
    was, is_now = "IF(__co = 0, 1, 0)", "IF(__cn = 0, 1, 0)"
    return (
        f"SELECT {columns}, {listed(keys)}, IF(__p, {is_now} - {was}, __rd) AS __wo, "
        f"IF(__p, {is_now}, __ro + __rd) AS __wn FROM ({counted}) AS {writer.alias()}"
    )


def _right(
    writer: DeltaWriter, node: OuterJoin, pairs: Sequence[KeyPair], keys: Sequence[str]
) -> str:
    """The rows of the right with their keys; those that can match nothing are left out."""
    shown = listed((*node.right.columns, *named([pair.right for pair in pairs], keys)))
    known = [f"({sql(pair.right)}) IS NOT NULL" for pair in pairs if not pair.null_safe]
    where = f" WHERE {' AND '.join(known)}" if known else ""
    old = f"({matching_right(writer, pairs, node)}) AS {writer.alias()}"
    text = f"SELECT {shown}, {ONE} AS __ro, {NONE} AS __rd FROM {old}{where}"
    right = writer.delta(node.right)
    if right is None:
        return text
    changes = f"({right}) AS {writer.alias()}"
    return (
        f"{text} UNION ALL SELECT {shown}, {NONE} AS __ro, {WEIGHT} AS __rd FROM {changes}{where}"
    )
