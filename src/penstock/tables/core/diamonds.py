"""Finds diamonds: branches from one relation that meet again, where a reader could see a mix.

A diamond leads from a fork to a tip if two paths between them share no other relation. The fork may
be a source, a topic or a stream table; one path may be a single edge. Everything strictly between,
and the tip, must change together. The fork need not, because all of them read the same version of
it. A relation whose paths all pass through one table before they part is not a fork: that table is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from penstock.tables.core.graph import StreamGraph, reach
from penstock.tables.core.model import Consistency

_BITS_MAX: Final = 20_000
"""Up to this many tables, reachability is stored as one bit for each pair."""


def atomic_groups(graph: StreamGraph) -> list[frozenset[str]]:
    """The tables that change together: diamonds whose tip has `consistency='atomic'`.

    Groups may overlap. The tip decides, because it is the one that would see a mix. A tip whose
    group is contained in a listed one is left out: joining overlapping groups gives the same
    result.
    """
    atomic = [
        name
        for name in reversed(graph.order)
        if graph.tables[name].consistency is Consistency.ATOMIC and len(graph.inputs[name]) > 1
    ]
    bits = _Bits(graph) if atomic and len(graph.order) <= _BITS_MAX else None
    groups = []
    for tip in atomic:
        if bits is not None and not bits.may_add(tip):
            continue
        above = reach(graph.inputs, [tip])
        gates = next_gates(graph, tip, above)
        found = _forks(graph, tip, gates)
        group = _between(graph, tip, above, found)
        if len(group) > 1:
            groups.append(group)
            if bits is not None:
                bits.cover(group, found, gates)
    return groups


def diamond(graph: StreamGraph, tip: str) -> frozenset[str]:
    """The tip and every table strictly between a fork and it; only the tip if there is no fork."""
    above = reach(graph.inputs, [tip])
    return _between(graph, tip, above, _forks(graph, tip, next_gates(graph, tip, above)))


def _between(
    graph: StreamGraph, tip: str, above: set[str], found_forks: list[str]
) -> frozenset[str]:
    waiting = list(found_forks)
    found = {tip}
    while waiting:
        for reader in graph.readers[waiting.pop()]:
            if reader in above and reader not in found:
                found.add(reader)
                waiting.append(reader)
    return frozenset(found)


def next_gates(graph: StreamGraph, tip: str, above: set[str]) -> dict[str, str]:
    """For each relation above a tip, the nearest one that all its paths to the tip pass through.

    It is its immediate post-dominator, with the tip as the only exit.
    """
    nearest_first = sorted(above, key=lambda name: graph.place.get(name, -1), reverse=True)
    gates: dict[str, str] = {}
    depth = {tip: 0}
    for name in nearest_first:
        ways = [reader for reader in graph.readers[name] if reader == tip or reader in above]
        gate = ways[0]
        for way in ways[1:]:
            gate = _common(gate, way, gates, depth)
        gates[name] = gate
        depth[name] = depth[gate] + 1
    return gates


def _forks(graph: StreamGraph, tip: str, gates: dict[str, str]) -> list[str]:
    """The relations with two paths to the tip that share no other relation.

    By Menger's theorem, those are the ones with at least two readers that lead to the tip, and no
    gate before it.
    """
    return [
        name
        for name, gate in gates.items()
        if gate == tip
        and sum(reader == tip or reader in gates for reader in graph.readers[name]) > 1
    ]


def _common(one: str, other: str, next_gate: dict[str, str], depth: dict[str, int]) -> str:
    """The first gate that the paths from both relations pass through."""
    while one != other:
        if depth[one] >= depth[other]:
            one = next_gate[one]
        else:
            other = next_gate[other]
    return one


class _Bits:
    """Relations as bits of integers, to quickly skip tips that cannot add anything.

    Tips are processed from the last one up. Say T had the group S. For a tip t in S, two kinds of
    relations can be skipped. First, the forks of T and everything below them: whatever lies between
    such a relation and t also lies between that fork and T, so it is in S. Second, relations whose
    paths to T all pass through a gate, if the gate is above t: then all their paths to t pass
    through it too.
    """

    def __init__(self, graph: StreamGraph) -> None:
        self._graph = graph
        names = [*graph.sources, *graph.order]
        self._bit = {name: 1 << place for place, name in enumerate(names)}
        self._parting = sum(bit for name, bit in self._bit.items() if len(graph.readers[name]) > 1)
        self._above: dict[str, int] = defaultdict(int)
        for name in graph.order:
            for source in graph.inputs[name]:
                self._above[name] |= self._above[source] | self._bit[source]
        self._below: dict[str, int] = defaultdict(int)
        for name in reversed(names):
            for reader in graph.readers[name]:
                self._below[name] |= self._below[reader] | self._bit[reader]
        self._below_forks: dict[str, int] = defaultdict(int)
        self._behind: dict[str, list[tuple[int, int]]] = defaultdict(list)

    def may_add(self, tip: str) -> bool:
        """Whether the tip may have a fork that no listed group covers."""
        once = twice = 0
        for source in self._graph.inputs[tip]:
            reaching = self._above[source] | self._bit[source]
            twice |= once & reaching
            once |= reaching
        left = twice & self._parting & ~self._below_forks[tip]
        for gate, behind in self._behind[tip] if left else ():
            if gate & self._above[tip]:
                left &= ~behind
        return bool(left)

    def cover(
        self, group: Iterable[str], found_forks: Iterable[str], gates: Mapping[str, str]
    ) -> None:
        """Record what the members of a tip's group can skip."""
        region = 0
        for fork in found_forks:
            region |= self._bit[fork] | self._below[fork]
        behind: dict[str, int] = defaultdict(int)
        for name, gate in gates.items():
            bit = self._bit[name] & self._parting
            if bit & ~region:
                behind[gate] |= bit
        pairs = [(self._bit[gate], names) for gate, names in behind.items()]
        for name in group:
            self._below_forks[name] |= region
            self._behind[name] += pairs
