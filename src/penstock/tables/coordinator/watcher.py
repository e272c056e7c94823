"""What a coordinator learns from the catalog, with the same queries at every tick, and from topics.

People and other processes change rows; each read is compared with the core's state, and the
difference becomes events. Positions of topics are followed in a separate thread, because a topic
server may be far away, slow or gone; the coordinator's loop only reads the last known ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from penstock.lake.reader import Reader
from penstock.tables import rows
from penstock.tables.core.dispatch import Coordinator
from penstock.tables.core.events import (
    Contents,
    DrainChanged,
    Event,
    GateChanged,
    GraphChanged,
    LocksChanged,
    MadeByHand,
    RefreshRequested,
    SourcesMissing,
    SourcesMoved,
    StatusChanged,
)
from penstock.tables.core.facts import TableMemory
from penstock.tables.core.frontier import Position
from penstock.tables.core.graph import StreamGraph
from penstock.tables.core.topics import TopicSource
from penstock.tables.engine import TopicPositions
from penstock.tables.positions import Positions
from penstock.tables.query.names import topic_of
from penstock.tables.store import (
    Asked,
    CatalogView,
    Known,
    TableStore,
    read_definitions,
    read_sources_of,
)
from penstock.tables.worker.outcomes import detail_of

_QUIET_POLLS: Final = 8
"""How many times longer topics are not asked where their servers tell of changes."""
_PATIENCE_S: Final = 1.0
"""How long to wait on close for a request in flight."""


class TopicWatch:
    """Follows the positions of topics, if there are any: their servers tell when they move."""

    def __init__(
        self,
        topics: TopicPositions | None,
        poll_ms: int,
        news: Callable[[], None] = lambda: None,
    ) -> None:
        self._topics, self._pause_s, self._news = topics, poll_ms / 1_000, news
        self._sources: tuple[TopicSource, ...] = ()
        self._heard: Mapping[str, Position] = {}
        self._asked = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ended = False
        self.trouble: str | None = None
        """Why the last poll failed, or None."""

    def follow(self, sources: tuple[TopicSource, ...]) -> None:
        """Follow these from now on."""
        if sources == self._sources or self._topics is None:
            return
        with self._asked:
            self._sources = sources
            self._heard = {}
            self._asked.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="penstock-topics", daemon=True)
            self._thread.start()

    def heard(self) -> Mapping[str, Position]:
        """The last known positions; topics without one are left out."""
        return self._heard

    def close(self) -> None:
        """Stop polling."""
        with self._asked:
            self._ended = True
            self._asked.notify()
        if self._thread is not None:
            self._thread.join(_PATIENCE_S)

    def _run(self) -> None:
        assert self._topics is not None
        while not self._ended:
            self._ask()
            self._wait(self._topics)
        self._topics.close()

    def _wait(self, topics: TopicPositions) -> None:
        """Wait until a topic has moved, or for a while: they may be others by then."""
        sources = self._sources
        if not sources or self.trouble is not None:
            with self._asked:
                changed = self._sources is not sources
                self._asked.wait_for(lambda: self._ended or changed, self._pause_s)
            return
        for _ in range(_QUIET_POLLS):
            moved = topics.moved(sources, self._pause_s)
            if moved or self._ended or self._sources is not sources:
                return

    def _ask(self) -> None:
        sources = self._sources
        if self._topics is None or not sources:
            return
        try:
            heads = self._topics.heads(sources)
        except Exception as error:  # unreachable topics count as unmoved
            self.trouble = detail_of(error)
            return
        self.trouble = None
        with self._asked:
            if sources is not self._sources:
                return  # the sources have changed meanwhile
            before = self._heard
            self._heard = {name: head.position for name, head in heads.items()}
        if self._heard != before and not self._ended:
            self._news()


def memory_of(
    known: dict[str, Known], failures: Mapping[str, tuple[int, str]] | None = None
) -> dict[str, TableMemory]:
    """The stored contents and failures, as the initial state of a core."""
    memory = {
        name: TableMemory(found.frontier, found.position, found.fresh_ms)
        for name, found in known.items()
    }
    for name, (count, error) in (failures or {}).items():
        found = memory.setdefault(name, TableMemory())
        found.failures, found.error = count, error
    return memory


class Watcher:
    """Reads the catalog for one core. For one thread."""

    def __init__(
        self, store: TableStore, core: Coordinator, topics: TopicWatch | None = None
    ) -> None:
        self._store = store
        self._core = core
        self._topics = topics or TopicWatch(None, 1)
        self.positions = Positions()
        self._seen_snapshot = -1
        self._told: set[str] = set()
        self._by_hand: dict[str, int] | None = None
        self.forced: set[str] = set()
        self.unknown: list[Asked] = []
        """Requests for tables that do not exist, for the caller of `look` to answer."""

    def look(self, mine: frozenset[str], dead: frozenset[str] = frozenset()) -> list[Event]:
        """The changes since the last look. `mine` are lock holders that the core knows about.

        Locks of holders in `dead` are ignored.
        """
        with self._store.lake.look() as reader:
            view = self._store.view(reader)
            events = list(self._graph(reader, view))
            graph = self._graph_after(events)
            events = [*self._sources(reader, graph), *events]
            events += self._made_by_hand(reader, view, graph)
        events += self._controls(view, graph, mine | dead)
        events += self._topic_heads()
        return events

    def _graph_after(self, events: list[Event]) -> StreamGraph:
        graphs = [event.graph for event in events if isinstance(event, GraphChanged)]
        return graphs[-1] if graphs else self._core.facts.graph

    def _graph(self, reader: Reader, view: CatalogView) -> Iterator[Event]:
        if view.graph_version == self._core.graph_version:
            return
        found = read_definitions(reader)
        read = [name for name in found.graph.sources if topic_of(name) is not None]
        self._topics.follow(tuple(read_sources_of(reader, read).values()))
        known = {name for (name,) in reader.rows(rows.SELECT_FRONTIER_NAMES)}
        facts = self._core.facts
        # A table dropped and recreated between two looks has no contents, but looks the same: it is
        # removed first, so that the core forgets its state.
        again = {
            name
            for name, table in facts.tables.items()
            if table.frontier is not None
            and name in found.graph.tables
            and name not in known
            and (
                name not in facts.graph.tables
                or facts.graph.tables[name].query == found.graph.tables[name].query
            )
        }
        if again:
            left = [table for name, table in found.graph.tables.items() if name not in again]
            yield GraphChanged(StreamGraph(left), found.version)
        yield GraphChanged(found.graph, found.version)

    def _sources(self, reader: Reader, graph: StreamGraph) -> Iterator[Event]:
        """The positions of lake tables that are not stream tables."""
        self.positions.advance(reader)
        if self.positions.through == self._seen_snapshot and graph is self._core.facts.graph:
            return
        self._seen_snapshot = self.positions.through
        names = [name for name in graph.sources if topic_of(name) is None]
        known = self._core.facts.positions
        found: dict[str, Position] = dict(self.positions.of_all(reader, names))
        moved = {name: at for name, at in found.items() if known.get(name) != at}
        if moved:
            yield SourcesMoved(moved)
        missing = frozenset(name for name in names if name not in found)
        if missing != self._core.facts.missing:
            yield SourcesMissing(missing)

    def _topic_heads(self) -> Iterator[Event]:
        known = self._core.facts.positions
        moved = {n: at for n, at in self._topics.heard().items() if known.get(n) != at}
        if moved:
            yield SourcesMoved(moved)

    def _made_by_hand(
        self, reader: Reader, view: CatalogView, graph: StreamGraph
    ) -> Iterator[Event]:
        """Refreshes that people ran without the coordinator."""
        before = self._known_by_hand(reader, view) if self._by_hand is None else self._by_hand
        news = {
            name
            for name, job in view.by_hand.items()
            if before.get(name) != job and name in graph.tables
        }
        self._by_hand = view.by_hand
        if news:
            known = self._store.frontiers(reader)
            yield MadeByHand(
                {
                    name: Contents(known[name].frontier, known[name].position, known[name].fresh_ms)
                    for name in sorted(news)
                }
            )

    def _known_by_hand(self, reader: Reader, view: CatalogView) -> dict[str, int]:
        """Old news at the first look: the core began with it and it reactivated no table."""
        if not view.by_hand:
            return {}
        mended = {name for (name,) in reader.rows(rows.MENDED_BY_HAND)}
        memory = memory_of(self._store.frontiers(reader))
        started_with = self._core.facts.tables
        return {
            name: job
            for name, job in view.by_hand.items()
            if name not in mended and memory[name] == started_with.get(name)
        }

    def _controls(self, view: CatalogView, graph: StreamGraph, mine: frozenset[str]) -> list[Event]:
        facts = self._core.facts
        events: list[Event] = []
        if view.draining != facts.draining:
            events.append(DrainChanged(view.draining))
        events += [GateChanged(name, True) for name in sorted(view.gates - facts.gates)]
        events += [GateChanged(name, False) for name in sorted(facts.gates - view.gates)]
        locks = frozenset(table for table, holder in view.locks.items() if holder not in mine)
        if locks != facts.locks:
            events.append(LocksChanged(locks))
        if graph is facts.graph:  # a new graph includes its statuses
            events += [
                StatusChanged(name, status)
                for name, status in view.statuses.items()
                if name in facts.statuses and facts.statuses[name] is not status
            ]
        return events + list(self._requests(view, graph))

    def _requests(self, view: CatalogView, graph: StreamGraph) -> Iterator[Event]:
        open_ids = {asked.request_id for asked in view.asked}
        self._told &= open_ids
        self.forced &= open_ids
        for asked in view.asked:
            if asked.request_id in self._told:
                continue
            self._told.add(asked.request_id)
            if asked.table not in graph.tables:
                self.unknown.append(asked)
                continue
            if asked.force:
                self.forced.add(asked.request_id)
            yield RefreshRequested(asked.request_id, asked.table, asked.force)
