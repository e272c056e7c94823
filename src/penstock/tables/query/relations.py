"""The relations that tables can read, with their columns: topics, lake tables, stream tables.

Columns of a stream table are those of its contents. If there are none yet, or its query has
changed, they are derived from its query. Each is computed on access.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from penstock.kernel.errors import Rejected
from penstock.lake.ddl import check_width
from penstock.tables.core.graph import StreamGraph
from penstock.tables.query.resolve import UNKNOWN, RelationShape, check_result_names, resolve
from penstock.tables.query.sources import read_sources


class Relations(Mapping[str, RelationShape]):
    """Every relation by name. `stored` are topics and lake tables as they are.

    `changed` are stream tables whose contents are outdated. With `refreshed`, contents may be older
    than their inputs: columns that the next refresh would add count too.
    """

    def __init__(
        self,
        stored: Mapping[str, RelationShape],
        graph: StreamGraph,
        changed: Collection[str] = (),
        *,
        refreshed: bool = False,
    ) -> None:
        self._stored, self._graph, self._changed = stored, graph, frozenset(changed)
        self._refreshed = refreshed
        self._found: dict[str, RelationShape] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._graph.tables, *self._stored]))

    def __len__(self) -> int:
        return len({*self._graph.tables, *self._stored})

    def __getitem__(self, name: str) -> RelationShape:
        if name not in self._found:
            self._found[name] = self._look(name)
        return self._found[name]

    def columns_of(self, table: str) -> RelationShape:
        """The columns that a stream table will have; `Rejected` if a name is missing."""
        for name in self._above(table):
            self[name]  # top-down, so that a long chain does not recurse
        others = _Others(self, table)
        return resolve(self._graph.tables[table].query, others)

    def query_of(self, table: str) -> str:
        """The query of a stream table."""
        return self._graph.tables[table].query

    def read_by(self, query: str) -> dict[str, tuple[str, ...]]:
        """The columns of every relation that a query reads, as far as all of them are known."""
        found = {name: self[name] for name in read_sources(query) if name in self}
        return {name: shape.names for name, shape in found.items() if not shape.open}

    def _above(self, table: str) -> list[str]:
        """The stream tables above one whose columns are derived from queries, in order."""
        found: set[str] = set()
        new = [table]
        while new:
            ups = {up for name in new for up in self._graph.upstreams[name]} - found
            new = [up for up in ups if self._refreshed or self._contents(up) is None]
            found.update(new)
        return sorted(found, key=self._graph.place.__getitem__)

    def _contents(self, name: str) -> RelationShape | None:
        return None if name in self._changed else self._stored.get(name)

    def _look(self, name: str) -> RelationShape:
        table = self._graph.tables.get(name)
        if table is None:
            return self._stored[name]
        stored = self._contents(name)
        if stored is not None and not self._refreshed:
            return stored
        try:
            made = resolve(table.query, self)
        except Rejected:
            made = UNKNOWN  # it cannot be refreshed, and reports that itself
        if stored is None:
            return made
        return RelationShape((*stored.names, *made.names), unreadable=stored.unreadable)


class _Others(Mapping[str, RelationShape]):
    """All relations except the current table, which cannot read itself."""

    def __init__(self, relations: Relations, table: str) -> None:
        self._relations, self._table = relations, table

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._relations if name != self._table)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> RelationShape:
        return self._relations[name]


class NameCheck:
    """Rejects tables whose queries name something missing or have too many columns."""

    def __init__(
        self,
        graph: StreamGraph,
        stored: Mapping[str, RelationShape],
        changed: Collection[str],
        columns_max: int,
    ) -> None:
        self._now = Relations(stored, graph, changed)
        self._later = Relations(stored, graph, changed, refreshed=True)
        self._columns_max = columns_max

    def check(self, table: str) -> None:
        """Reject a table of the graph if its query is invalid."""
        check_result_names(self._now.query_of(table))
        try:
            found = self._now.columns_of(table)
        except Rejected:
            found = self._later.columns_of(table)
        check_width(len(found.names), self._columns_max)
