"""Rule 3: marks. Whether a row has a match is a column, which flips as matches come and go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import NamedTuple

from sqlglot import exp

from penstock.tables.delta.algebra import Mark, OuterJoin, used
from penstock.tables.delta.ranges import Range
from penstock.tables.delta.writing import (
    NONE,
    ONE,
    WEIGHT,
    DeltaWriter,
    all_of,
    each_row,
    listed,
    named,
    semi,
    sql,
)


class KeyPair(NamedTuple):
    """Two expressions, one per side, that must be equal for rows to match."""

    left: exp.Expr
    right: exp.Expr
    null_safe: bool


def mark_rows(writer: DeltaWriter, node: Mark) -> str:
    """The rows of the left with their mark, or those that have the wanted one."""
    if node.keep is not None:
        return _kept(writer, node, keep=node.keep)
    pairs, residual = key_pairs(node)
    if residual:  # Spark does not take a correlated EXISTS in every SELECT list
        columns = listed(node.left.columns)
        return " UNION ALL ".join(
            f"SELECT {columns}, {word} AS {node.mark} "
            f"FROM ({_kept(writer, node, keep=keep)}) AS {writer.alias()}"
            for keep, word in ((True, "TRUE"), (False, "FALSE"))
        )
    left, right = writer.alias(), writer.alias()
    rows = f"({writer.rows(node.left)}) AS {left}"
    partners = f"({writer.rows(node.right)}) AS {right}"
    if not pairs:
        shown = listed((*node.left.columns, f"EXISTS(SELECT 1 FROM {partners}) AS {node.mark}"))
        return f"SELECT {shown} FROM {rows}"
    keys = tuple(f"__k{place}" for place in range(len(pairs)))
    found = writer.alias()
    shown = listed((*node.left.columns, f"COALESCE({found}.__hit, FALSE) AS {node.mark}"))
    distinct = listed((*named([pair.right for pair in pairs], keys), "TRUE AS __hit"))
    return (
        f"SELECT {shown} FROM {rows} LEFT JOIN (SELECT DISTINCT {distinct} FROM {partners}) "
        f"AS {found} ON {_on(pairs, keys, found)}"
    )


def _kept(writer: DeltaWriter, node: Mark, *, keep: bool) -> str:
    """The rows of the left that have a match, or those that have none."""
    left, right = writer.alias(), writer.alias()
    kind = "SEMI" if keep else "ANTI"
    return (
        f"SELECT {listed(node.left.columns)} FROM ({writer.rows(node.left)}) AS {left} "
        f"LEFT {kind} JOIN ({writer.rows(node.right)}) AS {right} ON {all_of(node.conditions)}"
    )


def _on(pairs: Sequence[KeyPair], keys: Sequence[str], alias: str) -> str:
    return " AND ".join(
        f"{sql(pair.left)} {'<=>' if pair.null_safe else '='} {alias}.{key}"
        for pair, key in zip(pairs, keys, strict=True)
    )


def mark_delta(writer: DeltaWriter, node: Mark) -> str | None:
    """Rule 3: changed rows of the left with their mark, and old ones whose mark flips."""
    left, right = writer.delta(node.left), writer.delta(node.right)
    if left is None and right is None:
        return None
    pairs, residual = key_pairs(node)
    lefts = marked_left(writer, node, left, right)
    if residual:
        counted = _count_by_row(writer, node, lefts, right)
    else:
        counted = _count_by_key(writer, node, pairs, lefts, left, right)
    old, new = "(__ro > 0)", "(__ro + __rd > 0)"
    if node.keep is None:
        side = writer.alias()
        return (
            f"SELECT {listed(node.left.columns)}, IF({side}.s < 0, {old}, {new}) AS "
            f"{node.mark}, IF({side}.s < 0, -__lo, __lo + __ld) AS {WEIGHT} "
            f"FROM ({counted}) AS {writer.alias()} CROSS JOIN "
            f"(SELECT -1 AS s UNION ALL SELECT 1 AS s) AS {side} "
            f"WHERE (__ld <> 0 OR {old} <> {new}) "
            f"AND IF({side}.s < 0, -__lo, __lo + __ld) <> 0"
        )
    kept = (old, new) if node.keep else (f"NOT {old}", f"NOT {new}")
    weight = f"(IF({kept[1]}, __lo + __ld, {NONE}) - IF({kept[0]}, __lo, {NONE}))"
    return (
        f"SELECT {listed(node.left.columns)}, {weight} AS {WEIGHT} "
        f"FROM ({counted}) AS {writer.alias()} WHERE {weight} <> 0"
    )


def marked_left(writer: DeltaWriter, node: Mark, left: str | None, right: str | None) -> str:
    """The rows of the left whose mark may matter: old ones only if the right has changed."""
    columns = listed(node.left.columns)
    terms = []
    if right is not None:
        pairs, _ = key_pairs(node)
        rows = writer.within(node.left, _met(writer, pairs, node, of_left=True))
        terms.append(
            f"SELECT {columns}, {ONE} AS __lo, {NONE} AS __ld FROM ({rows}) AS {writer.alias()}"
        )
    if left is not None:
        terms.append(
            f"SELECT {columns}, {NONE} AS __lo, {WEIGHT} AS __ld FROM ({left}) AS {writer.alias()}"
        )
    return " UNION ALL ".join(terms)


def _met(
    writer: DeltaWriter, pairs: Iterable[KeyPair], node: Mark | OuterJoin, *, of_left: bool
) -> dict[str, Range]:
    """The ranges of a side's key columns in which rows can matter.

    Of the left those that meet a change of the right; of the right those that meet a change of the
    left, or that have the key of a change of their own.
    """
    met = {}
    for pair in pairs:
        sides = ((pair.left, node.left), (pair.right, node.right))
        if not all(isinstance(key, exp.Column) for key, _ in sides):
            continue
        changed = [(key, side) for key, side in sides if writer.delta(side) is not None]
        if of_left:
            changed = [each for each in changed if each[1] is node.right]
        ranges = [writer.range_of(side, key.name) for key, side in changed]
        found = reduce(lambda one, two: one and one.joined(two), ranges) if ranges else None
        if found is not None:
            key = pair.left if of_left else pair.right
            met[key.name] = found if pair.null_safe else found._replace(has_null=False)
    return met


def matching_right(writer: DeltaWriter, pairs: Iterable[KeyPair], node: Mark | OuterJoin) -> str:
    """The old rows of the right that may have a changed key."""
    return writer.within(node.right, _met(writer, pairs, node, of_left=False))


def _counted_right(
    writer: DeltaWriter, right: str | None, columns: Sequence[str], rows: str
) -> str:
    """The rows of the right, each counted as it was and as it changes."""
    old = listed((*columns, f"{ONE} AS __ro", f"{NONE} AS __rd"))
    terms = [f"SELECT {old} FROM ({rows}) AS {writer.alias()}"]
    if right is not None:
        new = listed((*columns, f"{NONE} AS __ro", f"{WEIGHT} AS __rd"))
        terms.append(f"SELECT {new} FROM ({right}) AS {writer.alias()}")
    return " UNION ALL ".join(terms)


def _count_by_key(
    writer: DeltaWriter,
    node: Mark,
    pairs: Sequence[KeyPair],
    lefts: str,
    left: str | None,
    right: str | None,
) -> str:
    """Count matches once for each key, where equal keys are all there is to a match.

    Only keys of changed rows are counted, so the counts are few and are broadcast.
    """
    keys = tuple(f"__k{place}" for place in range(len(pairs)))
    shown = named([pair.right for pair in pairs], keys)
    rights = _counted_right(writer, right, shown, matching_right(writer, pairs, node))
    counts, rows, counted = writer.alias(), writer.alias(), writer.alias()
    sums = "COALESCE(SUM(__ro), 0) AS __ro, COALESCE(SUM(__rd), 0) AS __rd"
    if not pairs:
        found = f"SELECT {sums} FROM ({rights}) AS {counts}"
        return f"SELECT * FROM ({lefts}) AS {rows} CROSS JOIN ({found}) AS {counted}"
    changed = changed_keys(writer, pairs, keys, left, right)
    narrowed = semi(writer, rights, (*keys, "__ro", "__rd"), keys, changed)
    found = f"SELECT {listed((*keys, sums))} FROM ({narrowed}) AS {counts} GROUP BY " + (
        listed(keys)
    )
    on = _on(pairs, keys, counted)
    shown = (
        *node.left.columns, "__lo", "__ld",
        "COALESCE(__ro, 0) AS __ro", "COALESCE(__rd, 0) AS __rd",
    )  # fmt: skip
    how = "JOIN" if left is None else "LEFT JOIN"
    return (
        f"SELECT {writer.hint(counted)}{listed(shown)} FROM ({lefts}) AS {rows} "
        f"{how} ({found}) AS {counted} ON {on}"
    )


def changed_keys(
    writer: DeltaWriter,
    pairs: Sequence[KeyPair],
    keys: Sequence[str],
    left: str | None,
    right: str | None,
) -> str:
    """The match keys of changed rows of either side."""
    terms = []
    if left is not None:
        shown = listed(named([pair.left for pair in pairs], keys))
        terms.append(f"SELECT {shown} FROM ({left}) AS {writer.alias()}")
    if right is not None:
        shown = listed(named([pair.right for pair in pairs], keys))
        terms.append(f"SELECT {shown} FROM ({right}) AS {writer.alias()}")
    return f"SELECT DISTINCT {listed(keys)} FROM ({' UNION ALL '.join(terms)}) AS " + (
        writer.alias()
    )


def _count_by_row(writer: DeltaWriter, node: Mark, lefts: str, right: str | None) -> str:
    """Count matches for each row of the left, where a match compares more than keys."""
    columns = listed(node.left.columns)
    rights = _counted_right(writer, right, node.right.columns, writer.rows(node.right))
    rows, matches = writer.alias(), writer.alias()
    if right is not None:
        met = writer.alias()
        kept = writer.alias()
        lefts = (
            f"SELECT {columns}, __lo, __ld FROM ({lefts}) AS {kept} "
            f"WHERE __ld <> 0 OR EXISTS(SELECT 1 FROM ({right}) AS {met} "
            f"WHERE {all_of(node.conditions)})"
        )
    shown, each = each_row(writer, node.left)
    single = (
        f"SELECT {shown}, SUM(__lo) AS __lo, SUM(__ld) AS __ld "
        f"FROM ({lefts}) AS {writer.alias()} GROUP BY {each}"
    )
    return (
        f"SELECT {shown}, __lo, __ld, COALESCE(SUM(__ro), 0) AS __ro, "
        f"COALESCE(SUM(__rd), 0) AS __rd FROM ({single}) AS {rows} "
        f"LEFT JOIN ({rights}) AS {matches} ON {all_of(node.conditions)} "
        f"GROUP BY {each}, __lo, __ld"
    )


def key_pairs(node: Mark) -> tuple[list[KeyPair], list[exp.Expr]]:
    """The equalities between the two sides of a mark, and all its other conditions."""
    pairs: list[KeyPair] = []
    rest: list[exp.Expr] = []
    left, right = frozenset(node.left.columns), frozenset(node.right.columns)
    for condition in node.conditions:
        pair = None
        if isinstance(condition, exp.EQ | exp.NullSafeEQ):
            safe = isinstance(condition, exp.NullSafeEQ)
            one, two = used(condition.this), used(condition.expression)
            if one and two and one <= left and two <= right:
                pair = KeyPair(condition.this, condition.expression, safe)
            elif one and two and two <= left and one <= right:
                pair = KeyPair(condition.expression, condition.this, safe)
        if pair is None:
            rest.append(condition)
        else:
            pairs.append(pair)
    return pairs, rest
