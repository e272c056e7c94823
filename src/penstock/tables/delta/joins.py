"""Rule 2: inner joins of any number of inputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlglot import exp

from penstock.tables.delta.algebra import Join, Node, used
from penstock.tables.delta.writing import ONE, WEIGHT, DeltaWriter, all_of, listed


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
        inputs = [
            _Weighted(
                child, _new(writer, child, deltas[place]) if reads_new(place, index) else None
            )
            for place, child in enumerate(node.inputs)
        ]
        inputs[index] = _Weighted(node.inputs[index], delta)
        terms.append(_term(writer, inputs, index, node))
    return " UNION ALL ".join(terms) or None


def _new(writer: DeltaWriter, node: Node, delta: str | None) -> str | None:
    """The new rows with weights; None if they are the old ones."""
    if delta is None:
        return None
    columns = listed(node.columns)
    return (
        f"SELECT {columns}, {ONE} AS {WEIGHT} FROM ({writer.rows(node)}) AS {writer.alias()} "
        f"UNION ALL SELECT {columns}, {WEIGHT} FROM ({delta}) AS {writer.alias()}"
    )


def _term(writer: DeltaWriter, inputs: Sequence[_Weighted], start: int, node: Join) -> str:
    """One product, joined outwards from the changed input, which is the small side."""
    order = _outwards(inputs, start, node.conditions)
    text = inputs[start].text or ""
    have = set(inputs[start].node.columns)
    shown = list(inputs[start].node.columns)
    rest = [c for c in node.conditions if not used(c) <= have]
    here = [c for c in node.conditions if used(c) <= have]
    if here:
        text = (
            f"SELECT {listed((*shown, WEIGHT))} FROM ({text}) AS {writer.alias()} "
            f"WHERE {all_of(here)}"
        )
    for place in order:
        found = inputs[place]
        have |= set(found.node.columns)
        ready = [c for c in rest if used(c) <= have]
        rest = [c for c in rest if not used(c) <= have]
        small, large = writer.alias(), writer.alias()
        weight = f"{small}.{WEIGHT}"
        if found.text is not None:
            weight += f" * {large}.{WEIGHT}"
        shown += found.node.columns
        how = f"JOIN ({found.text or writer.rows(found.node)}) AS {large} ON {all_of(ready)}"
        if not ready:
            how = f"CROSS JOIN ({found.text or writer.rows(found.node)}) AS {large}"
        text = (
            f"SELECT {writer.hint(small)}{listed((*shown, f'{weight} AS {WEIGHT}'))} "
            f"FROM ({text}) AS {small} {how}"
        )
    return f"SELECT {listed((*node.columns, WEIGHT))} FROM ({text}) AS {writer.alias()}"


def join_rows(writer: DeltaWriter, node: Join) -> str:
    """A plain inner join, in the order in which conditions connect its inputs."""
    texts = [writer.rows(child) for child in node.inputs]
    have = set(node.inputs[0].columns)
    rest = list(node.conditions)
    text = f"({texts[0]}) AS {writer.alias()}"
    for place in _outwards([_Weighted(child, None) for child in node.inputs], 0, rest):
        have |= set(node.inputs[place].columns)
        ready = [c for c in rest if used(c) <= have]
        rest = [c for c in rest if not used(c) <= have]
        how = f"JOIN ({texts[place]}) AS {writer.alias()} ON {all_of(ready)}"
        if not ready:
            how = f"CROSS JOIN ({texts[place]}) AS {writer.alias()}"
        text = f"{text} {how}"
    where = f" WHERE {all_of(rest)}" if rest else ""
    return f"SELECT {listed(node.columns)} FROM {text}{where}"


class _Weighted(NamedTuple):
    """An input of a join term: with a text it has weights, without it is read as it was."""

    node: Node
    text: str | None


def reads_new(place: int, changed: int) -> bool:
    """Whether a term of a join reads an input as it is now: those after the changed one."""
    return place > changed


def _outwards(inputs: Sequence[_Weighted], start: int, conditions: Iterable[exp.Expr]) -> list[int]:
    """The other inputs of a join, each connected to those before it where possible."""
    columns = [frozenset(found.node.columns) for found in inputs]
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
