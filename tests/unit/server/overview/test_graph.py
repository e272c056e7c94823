"""The graph: nodes of every kind, edges, units, and what ingest reads and writes."""

from __future__ import annotations

from penstock.protocol.part_answers import PartState
from penstock.server.overview.graph import DefinedTable, Flow, GraphLook, flows_of, graph_of
from penstock.server.overview.looks import TablesLook
from penstock.tables.core.freshness import freshness
from penstock.tables.core.health import TableHealth
from penstock.tables.core.history import RefreshProgress
from penstock.tables.core.model import Mode, Status
from penstock.tables.core.verdict import Reason
from penstock.tables.status import Running

NOW_MS = 1_000_000
LOOK = GraphLook(
    7,
    (
        DefinedTable("hours", ("readings", "topics.weather"), "AUTO", "1s"),
        DefinedTable("days", ("hours",), "FULL", "1m"),
    ),
    (("group:hours", "atomic", ("hours", "days")),),
    {"readings": 12, "districts": 3, "hours": 4},
)
FLOW = Flow(("topics.raw", "spaces.tariffs"), ("readings",))


def row(table: str, reason: Reason) -> TableHealth:
    return TableHealth(
        table, Status.ACTIVE, Mode.AUTO, "1s", "group:hours", reason, "why", 5, NOW_MS, 0, None
    )


def tables(*rows: TableHealth) -> TablesLook:
    running = Running(1, "group:hours", "w", 0, RefreshProgress(tasks=4, tasks_done=1))
    fresh = tuple(freshness(each, NOW_MS) for each in rows)
    return TablesLook(NOW_MS, "ok", "", rows, fresh, (running,))


def test_every_kind_of_node_is_there_once() -> None:
    look = tables(row("hours", Reason.IN_FLIGHT), row("days", Reason.ERROR))
    found = graph_of(LOOK, look, [FLOW], {"raw": 9, "tariffs": 2}.get)
    nodes = {node.id: node for node in found.nodes}
    assert len(nodes) == len(found.nodes)
    assert {name: node.kind for name, node in nodes.items()} == {
        "topics.raw": "topic", "topics.weather": "topic", "spaces.tariffs": "space",
        "readings": "lake", "districts": "lake", "hours": "table", "days": "table",
    }  # fmt: skip
    assert (nodes["topics.raw"].seq, nodes["topics.weather"].seq) == (9, None)
    assert nodes["readings"].rows == 12
    hours = nodes["hours"]
    assert (hours.state, hours.progress, hours.unit, hours.rows) == (
        "running",
        0.25,
        "group:hours",
        4,
    )
    assert found.version == 7


def test_edges_go_from_what_is_read_and_run_while_it_is_refreshed() -> None:
    look = tables(row("hours", Reason.IN_FLIGHT), row("days", Reason.NOT_DUE))
    found = graph_of(LOOK, look, [FLOW], lambda _: None)
    edges = {(edge.source, edge.target): edge.running for edge in found.edges}
    assert edges == {
        ("topics.raw", "readings"): True,
        ("spaces.tariffs", "readings"): True,
        ("readings", "hours"): True,
        ("topics.weather", "hours"): True,
        ("hours", "days"): False,
    }


def test_a_unit_is_as_its_worst_member() -> None:
    look = tables(row("hours", Reason.IN_FLIGHT), row("days", Reason.ERROR))
    assert graph_of(LOOK, look, [], lambda _: None).units[0].state == "error"


def test_without_an_answer_of_the_warehouse_tables_are_away() -> None:
    found = graph_of(LOOK, TablesLook(NOW_MS, trouble="locked"), [], lambda _: None)
    states = {node.id: (node.state, node.text) for node in found.nodes if node.kind == "table"}
    assert states == {"hours": ("away", "locked"), "days": ("away", "locked")}


def test_an_ingest_that_ended_feeds_nothing() -> None:
    def part(state: str) -> PartState:
        facts = {"reads": ["topics.raw"], "writes": ["readings"]}
        return PartState(
            part="ingest.a", kind="ingest", node="a", state=state, text="", facts=facts
        )

    assert flows_of([part("ok")]) == [Flow(("topics.raw",), ("readings",))]
    assert flows_of([part("ended")]) == []
