"""Rule 2: inner joins of any number of inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sqlglot import exp

from penstock.tables.delta.algebra import Join, Node, used
from penstock.tables.delta.ranges import Range
from penstock.tables.delta.writing import ONE, WEIGHT, DeltaWriter, all_of, listed, ranges_of


def join_delta(writer: DeltaWriter, node: Join) -> str | None:
    """Rule 2: for each changed input, its changes with the others.

    Those before it are read as they were, those after it as they are: together this is every
    combination of changed inputs exactly once.
    """
    deltas = [writer.delta(child) for child in node.inputs]
    terms = []
    for index, delta in enumerate(deltas):
        if delta is None:
            continue
        added = [delta if reads_new(place, index) else None for place, delta in enumerate(deltas)]
        terms.append(_term(writer, node, index, delta, added))
    return " UNION ALL ".join(terms) or None


def _rows(writer: DeltaWriter, node: Node, delta: str | None, ranges: Mapping[str, Range]) -> str:
    """The old rows of an input within ranges, or with a delta the new ones, with weights."""
    rows = writer.within(node, ranges)
    if delta is None:
        return rows
    columns = listed(node.columns)
    return (
        f"SELECT {columns}, {ONE} AS {WEIGHT} FROM ({rows}) AS {writer.alias()} "
        f"UNION ALL SELECT {columns}, {WEIGHT} FROM ({delta}) AS {writer.alias()}"
    )


def _term(
    writer: DeltaWriter, node: Join, start: int, delta: str, added: Sequence[str | None]
) -> str:
    """One product, joined outwards from the changed input, which is the small side.

    `added` are the changes of the inputs that are read as they are now.
    """
    inputs = node.inputs
    order = _outwards(inputs, start, node.conditions)
    text = delta
    have = set(inputs[start].columns)
    shown = list(inputs[start].columns)
    ranges = ranges_of(writer, inputs[start], inputs[start].columns)
    rest = [c for c in node.conditions if not used(c) <= have]
    here = [c for c in node.conditions if used(c) <= have]
    if here:
        text = (
            f"SELECT {listed((*shown, WEIGHT))} FROM ({text}) AS {writer.alias()} "
            f"WHERE {all_of(here)}"
        )
    for place in order:
        found = inputs[place]
        have |= set(found.columns)
        ready = [c for c in rest if used(c) <= have]
        rest = [c for c in rest if not used(c) <= have]
        met = _met(ready, ranges, found.columns)
        ranges |= met
        small, large = writer.alias(), writer.alias()
        weight = f"{small}.{WEIGHT}"
        if added[place] is not None:
            weight += f" * {large}.{WEIGHT}"
        shown += found.columns
        rows = _rows(writer, found, added[place], met)
        how = f"JOIN ({rows}) AS {large} ON {all_of(ready)}"
        if not ready:
            how = f"CROSS JOIN ({rows}) AS {large}"
        text = (
            f"SELECT {writer.hint(small)}{listed((*shown, f'{weight} AS {WEIGHT}'))} "
            f"FROM ({text}) AS {small} {how}"
        )
    return f"SELECT {listed((*node.columns, WEIGHT))} FROM ({text}) AS {writer.alias()}"


def _met(
    conditions: Iterable[exp.Expr], ranges: Mapping[str, Range], columns: Sequence[str]
) -> dict[str, Range]:
    """The ranges of columns that must equal others, whose ranges are known."""
    met: dict[str, Range] = {}
    for condition in conditions:
        if not isinstance(condition, exp.EQ | exp.NullSafeEQ):
            continue
        sides = (condition.this, condition.expression)
        for ours, theirs in (sides, sides[::-1]):
            if not (isinstance(ours, exp.Column) and isinstance(theirs, exp.Column)):
                continue
            found = ranges.get(theirs.name)
            if found is not None and ours.name in columns:
                safe = isinstance(condition, exp.NullSafeEQ)
                met[ours.name] = found if safe else found._replace(has_null=False)
    return met


def join_rows(writer: DeltaWriter, node: Join) -> str:
    """A plain inner join, in the order in which conditions connect its inputs."""
    texts = [writer.rows(child) for child in node.inputs]
    have = set(node.inputs[0].columns)
    rest = list(node.conditions)
    text = f"({texts[0]}) AS {writer.alias()}"
    for place in _outwards(node.inputs, 0, rest):
        have |= set(node.inputs[place].columns)
        ready = [c for c in rest if used(c) <= have]
        rest = [c for c in rest if not used(c) <= have]
        how = f"JOIN ({texts[place]}) AS {writer.alias()} ON {all_of(ready)}"
        if not ready:
            how = f"CROSS JOIN ({texts[place]}) AS {writer.alias()}"
        text = f"{text} {how}"
    where = f" WHERE {all_of(rest)}" if rest else ""
    return f"SELECT {listed(node.columns)} FROM {text}{where}"


def reads_new(place: int, changed: int) -> bool:
    """Whether a term of a join reads an input as it is now: those after the changed one."""
    return place > changed


def _outwards(inputs: Sequence[Node], start: int, conditions: Iterable[exp.Expr]) -> list[int]:
    """The other inputs of a join, each connected to those before it where possible."""
    columns = [frozenset(found.columns) for found in inputs]
    needs = [used(condition) for condition in conditions]
    have, order = set(columns[start]), []
    left = [place for place in range(len(inputs)) if place != start]
    while left:
        best = next((p for p in left if _connects(columns[p], have, needs)), left[0])
        left.remove(best)
        order.append(best)
        have |= columns[best]
    return order


def _connects(columns: frozenset[str], have: set[str], needs: Iterable[frozenset[str]]) -> bool:
    return any(need & columns and need & have and need <= have | columns for need in needs)
