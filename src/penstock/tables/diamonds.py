"""Where branches that left one relation meet again, so that a reader could see two of its versions.

There is a diamond from a fork to a tip if two paths lead from one to the other that share nothing
in between. The fork may be a source, a topic or a stream table; one path may be the bare edge. What
lies strictly between, and the tip, must change together; the fork need not, for all of them read
the same version of it. A relation whose paths all pass through one table before they part is no
fork: that table is.
"""

from __future__ import annotations

from penstock.tables.graph import StreamGraph, reach
from penstock.tables.model import Consistency


def atomic_groups(graph: StreamGraph) -> list[frozenset[str]]:
    """For each table with `consistency='atomic'` in which a diamond ends, what changes with it.

    Groups may overlap. The tip decides: it is the one that would see a mix.
    """
    groups = (
        diamond(graph, name)
        for name in graph.order
        if graph.tables[name].consistency is Consistency.ATOMIC and len(graph.inputs[name]) > 1
    )
    return [group for group in groups if len(group) > 1]


def diamond(graph: StreamGraph, tip: str) -> frozenset[str]:
    """The tip and every table strictly between a fork and it; the tip alone if there is none."""
    above = reach(graph.inputs, [tip])
    waiting = forks(graph, tip, above)
    found = {tip}
    while waiting:
        for reader in graph.readers[waiting.pop()]:
            if reader in above and reader not in found:
                found.add(reader)
                waiting.append(reader)
    return frozenset(found)


def forks(graph: StreamGraph, tip: str, above: set[str]) -> list[str]:
    """The relations from which two paths lead to the tip that share nothing in between.

    By Menger's theorem those are the ones with two ways to go on and no single relation that every
    path passes: whose immediate post-dominator, with the tip as the only exit, is the tip.
    """
    nearest_first = sorted(above, key=lambda name: graph.place.get(name, -1), reverse=True)
    next_gate: dict[str, str] = {}
    depth = {tip: 0}
    found = []
    for name in nearest_first:
        ways = [reader for reader in graph.readers[name] if reader == tip or reader in above]
        gate = ways[0]
        for way in ways[1:]:
            gate = _common(gate, way, next_gate, depth)
        next_gate[name] = gate
        depth[name] = depth[gate] + 1
        if gate == tip and len(ways) > 1:
            found.append(name)
    return found


def _common(one: str, other: str, next_gate: dict[str, str], depth: dict[str, int]) -> str:
    """The first gate that the ways from both places must pass."""
    while one != other:
        if depth[one] >= depth[other]:
            one = next_gate[one]
        else:
            other = next_gate[other]
    return one
