"""Generated stream graphs for the property tests, and the naive model they are compared with."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from hypothesis import strategies as st

from penstock.tables.core.graph import StreamGraph
from penstock.tables.core.model import Consistency, Mode, TableDefinition
from penstock.tables.core.schedule import CALCULATED, Every, OnDemand, Schedule

NAMES = [f"t{number:02}" for number in range(14)]
BASES = ["base_a", "base_b", "topics.Meters"]


@st.composite
def definitions(draw, tables_max=9, schedules=False):
    """Tables in an order in which each reads only earlier ones and sources; then shuffled."""
    count = draw(st.integers(0, tables_max))
    names = draw(st.permutations(NAMES[:count]))
    found = []
    for place, name in enumerate(names):
        readable = [*BASES, *names[:place]]
        inputs = draw(st.lists(st.sampled_from(readable), min_size=1, max_size=3, unique=True))
        mode = draw(st.sampled_from([Mode.AUTO, Mode.FULL, Mode.DIFFERENTIAL, Mode.IMMEDIATE]))
        schedule: Schedule = CALCULATED
        if schedules and mode is not Mode.IMMEDIATE:
            schedule = draw(st.sampled_from([CALCULATED, Every(1_000), Every(60_000), OnDemand()]))
        found.append(
            TableDefinition(
                name=name,
                query=f"SELECT * FROM {', '.join(inputs)}",
                sources=tuple(sorted(inputs)),
                mode=mode,
                schedule=schedule,
                consistency=draw(st.sampled_from(list(Consistency))),
            )
        )
    return draw(st.permutations(found))


def dense_definitions(random: Random) -> list[TableDefinition]:
    """Some dozens of tables, most of which read a few of those shortly before them."""
    count, reach = random.randint(10, 50), random.randint(2, 12)
    names = [f"d{number:02}" for number in range(count)]
    return [
        TableDefinition(
            name=name,
            query="SELECT 1",
            sources=tuple(
                sorted(
                    {
                        random.choice(names[max(0, place - reach) : place] or BASES)
                        for _ in range(random.randint(1, 3))
                    }
                )
            ),
            consistency=random.choice([Consistency.ATOMIC, Consistency.ATOMIC, Consistency.NONE]),
        )
        for place, name in enumerate(names)
    ]


def random_definitions(random: Random, tables_max: int = 9) -> list[TableDefinition]:
    """The same from a seed, for very many of them."""
    names = random.sample(NAMES, random.randint(1, tables_max))
    found = []
    for place, name in enumerate(names):
        readable = [*BASES, *names[:place], *names[:place]]
        inputs = sorted(set(random.choices(readable, k=random.randint(1, 3))))
        found.append(
            TableDefinition(
                name=name,
                query="SELECT 1",
                sources=tuple(inputs),
                mode=random.choice([Mode.AUTO, Mode.AUTO, Mode.IMMEDIATE]),
                consistency=random.choice(list(Consistency)),
            )
        )
    return found


def naive_units(graph: StreamGraph) -> set[frozenset[str]]:
    """The partition into units, straight from the words: paths are enumerated, merges repeated."""
    groups = [{name} for name in graph.tables]
    groups += [
        naive_diamond(graph, tip)
        for tip in graph.tables
        if graph.tables[tip].consistency is Consistency.ATOMIC
    ]
    for name, table in graph.tables.items():
        if table.mode is Mode.IMMEDIATE:
            # An IMMEDIATE table is refreshed in the commit of every stream table that it reads.
            groups += [{name, source} for source in table.sources if source in graph.tables]
    while True:
        groups = _merge(groups)
        # Whatever lies on a path between two members of a group belongs to it, and groups that
        # feed each other, perhaps through others, are one.
        wider = [_with_between(graph, group) for group in groups]
        knot = _feeding_each_other(graph, groups)
        if knot is None and wider == groups:
            return {frozenset(group) for group in groups}
        groups = [*wider, *([knot] if knot else [])]


def naive_diamond(graph: StreamGraph, tip: str) -> set[str]:
    """The tip, and what lies on paths from a fork whose paths share nothing in between."""
    members = {tip}
    for fork in {*graph.sources, *graph.tables} - {tip}:
        paths = all_paths(graph, fork, tip)
        if any(
            set(one[1:-1]).isdisjoint(other[1:-1])
            for place, one in enumerate(paths)
            for other in paths[:place]
        ):
            members.update(name for path in paths for name in path[1:])
    return members


def all_paths(graph: StreamGraph, start: str, end: str) -> list[list[str]]:
    if start == end:
        return [[end]]
    return [
        [start, *path]
        for reader in graph.readers.get(start, ())
        for path in all_paths(graph, reader, end)
    ]


def edges(graph: StreamGraph) -> list[tuple[str, str]]:
    return [
        (source, name)
        for name, sources in graph.inputs.items()
        for source in sources
        if source in graph.tables
    ]


def _merge(groups: list[set[str]]) -> list[set[str]]:
    merged: list[set[str]] = []
    for group in groups:
        overlapping = [other for other in merged if other & group]
        merged = [other for other in merged if not other & group]
        merged.append(group.union(*overlapping))
    return sorted(merged, key=sorted)


def _with_between(graph: StreamGraph, group: set[str]) -> set[str]:
    found = set(group)
    for start in group:
        for end in group:
            if start != end:
                found.update(name for path in all_paths(graph, start, end) for name in path)
    return found


def _feeding_each_other(graph: StreamGraph, groups: list[set[str]]) -> set[str] | None:
    home = {name: place for place, group in enumerate(groups) for name in group}
    arrows = {(home[one], home[two]) for one, two in edges(graph) if home[one] != home[two]}
    for start in range(len(groups)):
        paths = [[start]]
        while paths:
            path = paths.pop()
            for one, two in arrows:
                if one == path[-1]:
                    if two == start:
                        assert all((a, b) in arrows for a, b in pairwise(path))
                        return set().union(*(groups[place] for place in path))
                    if two not in path:
                        paths.append([*path, two])
    return None
