"""The graph of what reads what: topics, spaces, lake tables, stream tables and their units.

Its structure comes from the definitions and from what ingest says that it reads and writes, states
from the last look at the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.protocol.lake_answers import Graph, GraphEdge, GraphNode, GraphUnit
from penstock.protocol.part_answers import PartState

if TYPE_CHECKING:
    from penstock.server.overview.looks import TablesLook
    from penstock.tables.warehouse import Warehouse

TOPICS: Final = "topics."
SPACES: Final = "spaces."
RUNNING: Final = "in_flight"
_ORDER: Final = ("error", "late", "away", "waiting", "running", "paused", "fresh")
"""The state of a unit is the first of these that a member has."""

HeadSeq = Callable[[str], int | None]


class DefinedTable(NamedTuple):
    """A stream table as defined."""

    name: str
    sources: tuple[str, ...]
    mode: str
    schedule: str


class GraphLook(NamedTuple):
    """What the graph is made from; changes with its version, except for the rows."""

    version: int
    tables: tuple[DefinedTable, ...] = ()
    units: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    """Key, kind and members of each."""
    lake: Mapping[str, int] = {}
    """The rows of every table of the lake by name."""


class Flow(NamedTuple):
    """What an ingest part reads and writes."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]


def look_at_graph(warehouse: Warehouse) -> GraphLook:
    """The structure now. Reads the catalog: not on the event loop."""
    from penstock.tables.core.units import ExecutionUnitGraph

    known = warehouse.definitions()
    graph = known.graph
    units = ExecutionUnitGraph(graph)
    tables = tuple(
        DefinedTable(name, tuple(table.sources), table.mode.value, table.schedule.text)
        for name, table in ((name, graph.tables[name]) for name in graph.order)
    )
    found = tuple((unit.key, unit.kind.value, tuple(unit.members)) for unit in units)
    return GraphLook(known.version, tables, found, warehouse.row_counts())


def flows_of(parts: Iterable[PartState]) -> list[Flow]:
    """What the ingest parts that run read and write."""
    return [
        Flow(tuple(part.facts.get("reads", ())), tuple(part.facts.get("writes", ())))
        for part in parts
        if part.kind == "ingest" and part.state != "ended"
    ]


def graph_of(
    look: GraphLook, tables: TablesLook, flows: Sequence[Flow], head_seq: HeadSeq
) -> Graph:
    """Nodes, edges and units, with the states of the tables."""
    defined = {table.name: table for table in look.tables}
    edges = _edges(
        look.tables, flows, {row.table for row in tables.rows if row.reason.value == RUNNING}
    )
    names = [*look.lake, *(edge.source for edge in edges), *(edge.target for edge in edges)]
    sources = [name for name in dict.fromkeys(names) if name not in defined]
    stands = _standing(look, tables)
    return Graph(
        at=tables.at,
        version=look.version,
        nodes=[*(_source(name, look, head_seq) for name in sources), *stands.values()],
        edges=edges,
        units=[
            GraphUnit(key=key, kind=kind, members=list(members), state=_worst(members, stands))
            for key, kind, members in look.units
        ],
    )


def _edges(
    tables: Sequence[DefinedTable], flows: Sequence[Flow], running: set[str]
) -> list[GraphEdge]:
    found = [
        GraphEdge(source=source, target=target, running=True)
        for flow in flows
        for target in flow.writes
        for source in flow.reads
    ]
    found += [
        GraphEdge(source=source, target=table.name, running=table.name in running)
        for table in tables
        for source in table.sources
    ]
    return found


def _standing(look: GraphLook, tables: TablesLook) -> dict[str, GraphNode]:
    """The node of each stream table."""
    unit_of = {member: key for key, _, members in look.units for member in members}
    rows = {row.table: (row, fresh) for row, fresh in zip(tables.rows, tables.fresh, strict=True)}
    progress = {
        job.unit_key: job.progress.share for job in tables.running if job.progress is not None
    }
    found = {}
    for table in look.tables:
        row, fresh = rows.get(table.name, (None, None))
        unit = unit_of.get(table.name)
        found[table.name] = GraphNode(
            id=table.name,
            kind="table",
            name=table.name,
            state="away" if fresh is None else fresh.state,
            reason="" if row is None else row.reason.value,
            text=(tables.trouble or "") if row is None else row.waiting_for,
            fresh_ms=None if row is None else row.fresh_ms,
            stale_by_ms=None if fresh is None else fresh.stale_by_ms,
            mode=table.mode,
            schedule=table.schedule,
            unit=unit,
            rows=look.lake.get(table.name),
            progress=progress.get(unit or ""),
        )
    return found


def _source(name: str, look: GraphLook, head_seq: HeadSeq) -> GraphNode:
    for kind, prefix in (("topic", TOPICS), ("space", SPACES)):
        if name.startswith(prefix):
            plain = name.removeprefix(prefix)
            return GraphNode(id=name, kind=kind, name=plain, state="ok", seq=head_seq(plain))
    rows = look.lake.get(name)
    missing = "" if rows is not None else "it is not in the lake yet"
    return GraphNode(id=name, kind="lake", name=name, state="ok", text=missing, rows=rows)


def _worst(members: Sequence[str], stands: Mapping[str, GraphNode]) -> str:
    states = {stands[name].state for name in members if name in stands}
    return next((state for state in _ORDER if state in states), "fresh")
