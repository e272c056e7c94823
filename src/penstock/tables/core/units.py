"""Execution units: tables that must change together are refreshed as one, the rest alone.

>>> from penstock.tables.core.model import define
>>> graph = StreamGraph([
...     define("left_side", "SELECT * FROM raw"), define("right_side", "SELECT * FROM raw"),
...     define("joined", "SELECT * FROM left_side JOIN right_side USING (id)"),
...     define("copy", "SELECT * FROM joined"),
... ])
>>> units = ExecutionUnitGraph(graph)
>>> [(unit.kind.value, unit.members) for unit in units]
[('atomic_group', ('left_side', 'right_side', 'joined')), ('singleton', ('copy',))]
>>> units.unit_of("copy").upstreams
('group:joined+left_side+right_side',)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Final

from penstock.protocol.errors import TableNotFound
from penstock.tables.core.graph import Edges, StreamGraph, reach, topological
from penstock.tables.core.model import Consistency, Mode

_BITS_MAX: Final = 20_000
"""Up to this many tables, reachability is stored as one bit for each pair."""
KEY_LENGTH_MAX: Final = 120


def atomic_groups(graph: StreamGraph) -> list[frozenset[str]]:
    """The tables that change together: diamonds whose tip has `consistency='atomic'`.

    A diamond leads from a fork to a tip if two paths between them share no other relation: branches
    that meet again, where a reader could see a mix. The fork may be a source, a topic or a stream
    table; one path may be a single edge. Everything strictly between, and the tip, must change
    together. The fork need not, because all of them read the same version of it. A relation whose
    paths all pass through one table before they part is not a fork: that table is.

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


class UnitKind(StrEnum):
    """Why tables form one unit."""

    SINGLETON = "singleton"
    ATOMIC_GROUP = "atomic_group"
    IMMEDIATE_CLOSURE = "immediate_closure"


@dataclass(frozen=True, slots=True)
class Unit:
    """The work of one worker, in one transaction.

    `members` are in refresh order; `root` is the first. `upstreams` and `downstreams` are keys of
    other units, `inputs` the relations that members read and that are not members. `position` is
    the unit's place in the topological order.
    """

    key: str
    kind: UnitKind
    members: tuple[str, ...]
    inputs: tuple[str, ...]
    upstreams: tuple[str, ...]
    downstreams: tuple[str, ...]
    position: int

    @property
    def root(self) -> str:
        """The table that is refreshed first."""
        return self.members[0]


class ExecutionUnitGraph:
    """The stream graph with tables that must change together collapsed. Immutable.

    Every table is in exactly one unit. Units are in topological order, the same for equal graphs.
    """

    def __init__(self, graph: StreamGraph) -> None:
        self.graph = graph
        diamonds = atomic_groups(graph)
        self._home = _collapse(graph, diamonds)
        members: dict[str, list[str]] = {}
        for name in graph.order:
            members.setdefault(self._home[name], []).append(name)
        kinds = _kinds(graph, members, diamonds)
        keys = {home: unit_key(kinds[home], names) for home, names in members.items()}
        self._key_of = {name: keys[home] for name, home in self._home.items()}
        upstreams = _lift(graph.upstreams, self._key_of)
        order = topological(upstreams)  # checked again: collapsing must not have created a cycle
        self._units = _make_units(
            graph,
            order,
            upstreams,
            {keys[home]: (kinds[home], tuple(names)) for home, names in members.items()},
        )

    def __iter__(self) -> Iterator[Unit]:
        return iter(self._units.values())

    def __len__(self) -> int:
        return len(self._units)

    def __contains__(self, key: object) -> bool:
        return key in self._units

    def __getitem__(self, key: str) -> Unit:
        return self._units[key]

    def unit_of(self, table: str) -> Unit:
        """The unit a table belongs to."""
        try:
            return self._units[self._key_of[table]]
        except KeyError:
            raise TableNotFound(table) from None


def unit_key(kind: UnitKind, members: Iterable[str]) -> str:
    """A name for a unit that is stable while its kind and members are.

    People read it, so it spells out the members unless they are many.
    """
    names = sorted(members)
    prefix = {"singleton": "table", "atomic_group": "group", "immediate_closure": "closure"}[kind]
    key = f"{prefix}:{'+'.join(names)}"
    if len(key) <= KEY_LENGTH_MAX or len(names) == 1:
        return key
    digest = blake2b("+".join(names).encode(), digest_size=8).hexdigest()
    return f"{prefix}:{names[0][:60]}+{len(names) - 1}:{digest}"


def immediate_closures(graph: StreamGraph) -> list[frozenset[str]]:
    """For each table that is not IMMEDIATE: itself and the IMMEDIATE tables that follow it.

    A table follows if it is IMMEDIATE and reads the root or a table that follows. Closures that
    share a table become one unit, since two commits must not write the same table.
    """
    closures = []
    for name in graph.order:
        if graph.tables[name].mode is not Mode.IMMEDIATE:
            found = {name}
            waiting = [name]
            while waiting:
                for reader in graph.readers[waiting.pop()]:
                    if reader not in found and graph.tables[reader].mode is Mode.IMMEDIATE:
                        found.add(reader)
                        waiting.append(reader)
            if len(found) > 1:
                closures.append(frozenset(found))
    # IMMEDIATE tables that read only sources follow no table, but belong with any IMMEDIATE table
    # that shares a reader with them.
    closures += [
        frozenset({name, reader})
        for name in graph.order
        if graph.tables[name].mode is Mode.IMMEDIATE
        for reader in graph.readers[name]
        if graph.tables[reader].mode is Mode.IMMEDIATE
    ]
    return closures


def _collapse(graph: StreamGraph, diamonds: list[frozenset[str]]) -> dict[str, str]:
    """For each table, the table that represents its unit."""
    merged = _Merged(graph.tables)
    for group in (*diamonds, *immediate_closures(graph)):
        merged.join(group)
    while True:
        # A path that leaves a unit and returns would create a cycle of units: the tables on it must
        # be refreshed between members, so they belong to the unit.
        knots = _knots(_lift(graph.upstreams, merged.homes()))
        if not knots:
            return merged.homes()
        for knot in knots:
            merged.join(knot)


def _kinds(
    graph: StreamGraph, members: Mapping[str, list[str]], diamonds: list[frozenset[str]]
) -> dict[str, UnitKind]:
    """The kind of each unit: an atomic group if it has a diamond, as all members run then."""
    atomic = {name for group in diamonds for name in group}
    kinds = {}
    for home, names in members.items():
        if len(names) > 1 and not atomic.isdisjoint(names):
            kinds[home] = UnitKind.ATOMIC_GROUP
        elif len(names) > 1 or graph.tables[names[0]].mode is Mode.IMMEDIATE:
            kinds[home] = UnitKind.IMMEDIATE_CLOSURE
        else:
            kinds[home] = UnitKind.SINGLETON
    return kinds


def _make_units(
    graph: StreamGraph,
    order: tuple[str, ...],
    upstreams: Edges,
    parts: Mapping[str, tuple[UnitKind, tuple[str, ...]]],
) -> dict[str, Unit]:
    downstreams: dict[str, list[str]] = {key: [] for key in order}
    for key in order:
        for upstream in upstreams[key]:
            downstreams[upstream].append(key)
    units = {}
    for position, key in enumerate(order):
        kind, members = parts[key]
        read = {source for name in members for source in graph.inputs[name]}
        units[key] = Unit(
            key=key,
            kind=kind,
            members=members,
            inputs=tuple(sorted(read.difference(members))),
            upstreams=upstreams[key],
            downstreams=tuple(downstreams[key]),
            position=position,
        )
    return units


def _lift(upstreams: Edges, home: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The edges between tables as edges between their units."""
    lifted: dict[str, set[str]] = {target: set() for target in home.values()}
    for name, inputs in upstreams.items():
        lifted[home[name]].update(home[source] for source in inputs)
    return {key: tuple(sorted(found - {key})) for key, found in lifted.items()}


def _knots(upstreams: Edges) -> list[list[str]]:
    """Sets of two or more mutually reachable names; Tarjan's algorithm without recursion."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    knots = []
    for start in upstreams:
        work = [(start, iter(upstreams[start]))] if start not in index else []
        while work:
            name, targets = work[-1]
            if name not in index:
                index[name] = low[name] = len(index)
                stack.append(name)
                on_stack.add(name)
            step = next(targets, None)
            if step is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == index[name]:
                    cut = stack.index(name)
                    found, stack = stack[cut:], stack[:cut]
                    on_stack.difference_update(found)
                    knots += [found] if len(found) > 1 else []
            elif step not in index:
                work.append((step, iter(upstreams[step])))
            elif step in on_stack:
                low[name] = min(low[name], index[step])
    return knots


class _Merged:
    """Union-find: joined names share a representative, the first of them by name."""

    def __init__(self, names: Iterable[str]) -> None:
        self._parent = {name: name for name in names}

    def join(self, names: Iterable[str]) -> None:
        """Join all of them."""
        homes = sorted({self._find(name) for name in names})
        for home in homes[1:]:
            self._parent[home] = homes[0]

    def homes(self) -> dict[str, str]:
        """The representative of each name."""
        return {name: self._find(name) for name in self._parent}

    def _find(self, name: str) -> str:
        while self._parent[name] != name:
            self._parent[name] = name = self._parent[self._parent[name]]
        return name
