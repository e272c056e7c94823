"""The dependency graph of sources and stream tables: acyclic and in a deterministic order.

>>> from penstock.tables.core.model import define
>>> graph = StreamGraph([define("b", "SELECT * FROM a"), define("a", "SELECT * FROM raw")])
>>> graph.order, graph.sources
(('a', 'b'), ('raw',))
>>> graph.with_table(define("a", "SELECT * FROM b"))
Traceback (most recent call last):
...
penstock.protocol.errors.TableCycle: the tables would read each other in a cycle: a > b > a
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from heapq import heapify, heappop, heappush
from typing import Final

from penstock.protocol.errors import InvalidTable, TableCycle, TableInUse, TableNotFound
from penstock.tables.core.model import Mode, TableDefinition
from penstock.tables.query.names import nearest, topic_source

Edges = Mapping[str, tuple[str, ...]]
TABLES_MAX: Final = 100_000


class StreamGraph:
    """Definitions and the edges between them. Immutable: a change creates a new graph.

    The same definitions give the same graph, in whatever order they are passed.
    """

    def __init__(self, tables: Iterable[TableDefinition] = ()) -> None:
        by_name: dict[str, TableDefinition] = {}
        for table in tables:
            if table.name in by_name:
                raise InvalidTable(f"table {table.name!r} is defined twice")
            by_name[table.name] = table
        if len(by_name) > TABLES_MAX:
            raise InvalidTable(f"a warehouse has at most {TABLES_MAX} tables, not {len(by_name)}")
        self.tables: Mapping[str, TableDefinition] = dict(sorted(by_name.items()))
        self.inputs: Edges = {name: table.sources for name, table in self.tables.items()}
        self.upstreams: Edges = {
            name: tuple(source for source in sources if source in self.tables)
            for name, sources in self.inputs.items()
        }
        self.readers: Edges = reverse(self.inputs)
        self.order: tuple[str, ...] = topological(self.upstreams)
        self.place: Mapping[str, int] = {name: place for place, name in enumerate(self.order)}
        self.sources: tuple[str, ...] = tuple(sorted(set(self.readers) - set(self.tables)))

    def with_table(self, table: TableDefinition) -> StreamGraph:
        """The graph with a table added or replaced; `TableCycle` has the path of a cycle."""
        return StreamGraph({**self.tables, table.name: table}.values())

    def without(self, name: str, *, cascade: bool = False) -> StreamGraph:
        """The graph without a table; refused while other tables read it, unless `cascade`."""
        self.table(name)
        gone = {name, *self.downstream(name)}
        if len(gone) > 1 and not cascade:
            raise TableInUse(name, self.readers[name])
        return StreamGraph(table for table in self.tables.values() if table.name not in gone)

    def table(self, name: str) -> TableDefinition:
        """A definition by name, or `TableNotFound`."""
        try:
            return self.tables[name]
        except KeyError:
            raise TableNotFound(name, nearest(name, self.tables)) from None

    def downstream(self, name: str) -> tuple[str, ...]:
        """Every table that reads a relation, directly or through others, in order."""
        found = reach(self.readers, [name])
        return tuple(table for table in self.order if table in found)

    def upstream(self, name: str) -> tuple[str, ...]:
        """Every table that a table reads, directly or through others, in order."""
        found = reach(self.upstreams, [name])
        return tuple(table for table in self.order if table in found)


def check_modes(graph: StreamGraph) -> None:
    """Reject an IMMEDIATE table that reads no stream table: it has no commit to be part of."""
    for name, table in graph.tables.items():
        if table.mode is Mode.IMMEDIATE and not graph.upstreams[name]:
            raise InvalidTable(
                f"table {name!r} is IMMEDIATE, refreshed in the commit of a stream table that it "
                f"reads, but it reads {', '.join(table.sources) or 'nothing'}: choose another mode"
            )


def check_publishing(graph: StreamGraph, urls: Mapping[str, str]) -> None:
    """Reject a table that would read what it publishes, directly or through others.

    `urls` are the servers of the topics that tables read, by relation.
    """
    edges: dict[str, tuple[str, ...]] = dict.fromkeys(graph.sources, ())
    edges.update(graph.inputs)
    for name, table in graph.tables.items():
        to = topic_source(table.publish) if table.publish else ""
        if to in edges and urls.get(to) == table.publish_url:
            edges[to] = (*edges[to], name)
    topological(edges)


def reverse(edges: Edges) -> Edges:
    """Reversed edges; every name has an entry, and each entry is sorted."""
    found: dict[str, set[str]] = {name: set() for name in edges}
    for name, targets in edges.items():
        for target in targets:
            found.setdefault(target, set()).add(name)
    return {name: tuple(sorted(targets)) for name, targets in sorted(found.items())}


def reach(edges: Edges, starts: Iterable[str]) -> set[str]:
    """Everything reachable by at least one edge."""
    found: set[str] = set()
    waiting = list(starts)
    while waiting:
        for target in edges.get(waiting.pop(), ()):
            if target not in found:
                found.add(target)
                waiting.append(target)
    return found


def topological(upstreams: Edges) -> tuple[str, ...]:
    """Names with every upstream first; ties are broken by name.

    Raises `TableCycle` with the cycle's path, starting at its first name, in the direction of data.
    """
    downstreams = reverse(upstreams)
    missing = {name: len(set(inputs)) for name, inputs in upstreams.items()}
    ready = [name for name, count in missing.items() if not count]
    heapify(ready)
    order = []
    while ready:
        name = heappop(ready)
        order.append(name)
        for reader in downstreams[name]:
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready, reader)
    if len(order) < len(upstreams):
        raise TableCycle(_cycle(upstreams))
    return tuple(order)


def _cycle(upstreams: Edges) -> list[str]:
    try:
        TopologicalSorter(upstreams).prepare()
    except CycleError as error:
        path: list[str] = error.args[1][:-1]
        first = path.index(min(path))
        return [*path[first:], *path[:first], path[first]]
    raise AssertionError("only called when there is a cycle")
