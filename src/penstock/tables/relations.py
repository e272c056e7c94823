"""The relations that tables can read, with their columns: topics, tables of the lake, each other.

Columns of a stream table are those of its contents; where there are none yet, or its query is
another one now, they are read from its query. Each is looked at when it is asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from penstock.kernel.errors import Rejected
from penstock.lake.ddl import check_width
from penstock.tables.graph import StreamGraph
from penstock.tables.resolve import UNKNOWN, Shape, resolve


class Relations(Mapping[str, Shape]):
    """Every relation by name. `stored` are topics and tables of the lake as they are.

    `changed` are stream tables whose contents tell nothing any more. With `refreshed` contents may
    be older than what they were made from: columns that the next refresh would bring count too.
    `of` is the table that asks, which cannot read itself.
    """

    def __init__(
        self,
        stored: Mapping[str, Shape],
        graph: StreamGraph,
        changed: Collection[str] = (),
        *,
        of: str | None = None,
        refreshed: bool = False,
    ) -> None:
        self._stored = {name: shape for name, shape in stored.items() if name != of}
        self._graph, self._changed = graph, frozenset(changed)
        self._others = [name for name in graph.tables if name != of]
        self._refreshed = refreshed
        self._found: dict[str, Shape] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._others, *self._stored]))

    def __len__(self) -> int:
        return len({*self._others, *self._stored})

    def __getitem__(self, name: str) -> Shape:
        if name not in self._found:
            self._found[name] = self._look(name)
        return self._found[name]

    def _look(self, name: str) -> Shape:
        table = self._graph.tables.get(name)
        if table is None:
            return self._stored[name]
        stored = None if name in self._changed else self._stored.get(name)
        if stored is not None and not self._refreshed:
            return stored
        try:
            made = resolve(table.query, self)
        except Rejected:
            made = UNKNOWN  # it cannot be refreshed, and says so itself
        if stored is None:
            return made
        return Shape((*stored.names, *made.names), unreadable=stored.unreadable)


def check_names(
    graph: StreamGraph,
    stored: Mapping[str, Shape],
    changed: Collection[str],
    table: str,
    columns_max: int,
) -> None:
    """Refuse a table whose query names what is not there, or gives too many columns."""
    query = graph.tables[table].query
    try:
        found = resolve(query, Relations(stored, graph, changed, of=table))
    except Rejected:
        found = resolve(query, Relations(stored, graph, changed, of=table, refreshed=True))
    check_width(len(found.names), columns_max)
