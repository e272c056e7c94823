"""The coordinator's facts about tables and units, on which decisions are based."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from penstock.tables.core.capacity import UnitUrgency
from penstock.tables.core.due import UnitSchedule, table_schedules, unit_schedule
from penstock.tables.core.failures import RetryState
from penstock.tables.core.frontier import Frontier, Position, later
from penstock.tables.core.graph import StreamGraph
from penstock.tables.core.jobs import RefreshJob
from penstock.tables.core.model import Status, TableDefinition
from penstock.tables.core.units import ExecutionUnitGraph, Unit
from penstock.tables.core.verdict import WILL_RUN, UnitFacts, UpstreamFacts, Verdict


@dataclass(slots=True)
class TableMemory:
    """What is known about a table's contents; initially read from the catalog.

    `fresh_ms` is when contents were last known to equal the query, None if never. `failures` counts
    recorded failures since the contents were last made, `error` is the last of them.
    """

    frontier: Frontier | None = None
    position: Position | None = None
    fresh_ms: int | None = None
    failures: int = field(default=0, compare=False)
    error: str | None = field(default=None, compare=False)

    def failed(self, error: str) -> None:
        """Count a failure."""
        self.failures += 1
        self.error = error

    def made(self, frontier: Frontier, fresh_ms: int) -> None:
        """Record new contents."""
        self.frontier, self.fresh_ms = frontier, fresh_ms
        self.failures, self.error = 0, None


class RefreshRequest(NamedTuple):
    """A person's request to refresh a table."""

    table: str
    at_ms: int
    force: bool


@dataclass(slots=True)
class UnitState:
    """What is known about a unit, besides its tables."""

    unit: Unit
    schedule: UnitSchedule
    verdict: Verdict | None = None
    shown: UpstreamFacts | None = None
    retry: RetryState = field(default_factory=RetryState)
    finished_ms: int | None = None
    requests: dict[str, RefreshRequest] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)
    wake_ms: int | None = None
    moved_ms: int | None = None
    """Since when an input is known to have changed."""
    ready_ms: int | None = None
    """Since when it has been ready and waiting for its turn."""


class Facts:
    """Graph, units, positions, locks, gates and live jobs. Decides nothing."""

    def __init__(self, memory: Mapping[str, TableMemory], *, coordinated: bool = True) -> None:
        self.coordinated = coordinated
        self.graph = StreamGraph()
        self.units = ExecutionUnitGraph(self.graph)
        self.states: dict[str, UnitState] = {}
        self.tables: dict[str, TableMemory] = {
            name: replace(known) for name, known in memory.items()
        }
        self.statuses: dict[str, Status] = {}
        self.positions: dict[str, Position] = {}
        self.missing: frozenset[str] = frozenset()
        self.gates: set[str] = set()
        self.locks: frozenset[str] = frozenset()
        self.jobs: dict[int, RefreshJob] = {}
        self.busy: dict[str, int] = {}
        self.draining = False

    def change_graph(self, graph: StreamGraph) -> None:
        """Replace the definitions. The state of tables and units that remain is kept."""
        old, self.graph = self.graph, graph
        self.units = ExecutionUnitGraph(graph)
        self.tables = {
            name: self._kept(old.tables.get(name), table) for name, table in graph.tables.items()
        }
        self.statuses = {name: table.status for name, table in graph.tables.items()}
        self.positions = {
            **{name: at for name, at in self.positions.items() if name not in old.tables},
            **{
                name: known.position
                for name, known in self.tables.items()
                if known.position is not None
            },
        }
        schedules = table_schedules(graph)
        before = {name: state for state in self.states.values() for name in state.unit.members}
        self.states = {
            unit.key: _state(unit, unit_schedule(unit, graph, schedules), before)
            for unit in self.units
        }

    def facts(self, key: str, free_slots: int) -> UnitFacts:
        """Everything that determines whether a unit may run."""
        state = self.states[key]
        unit = state.unit
        relations = {*unit.members, *unit.inputs}
        return UnitFacts(
            key=key,
            due_ms=self.due_ms(state),
            moved_ms=state.moved_ms,
            changed=self.changed(unit),
            rebuild=any(r.force for r in state.requests.values()) or self._must_rebuild(unit),
            requested=bool(state.requests),
            in_flight_job=self.job_on(unit),
            draining=self.draining,
            gated=tuple(sorted(self.gates & relations)) if self.gates else (),
            locked=tuple(name for name in unit.members if name in self.locks),
            stopped=self.stopped(unit),
            missing=tuple(sorted(self.missing & relations)) if self.missing else (),
            retry_at_ms=state.retry.retry_at_ms,
            error=state.retry.error,
            attempt=state.retry.attempt_no,
            away=state.retry.away,
            coordinated=self.coordinated,
            upstreams=tuple(self.as_upstream(upstream) for upstream in unit.upstreams),
            unfilled=self.unfilled(unit),
            free_slots=free_slots,
        )

    def as_upstream(self, key: str) -> UpstreamFacts:
        """A unit as its readers see it."""
        state = self.states[key]
        stopped = self.stopped(state.unit)
        running = self.job_on(state.unit) is not None
        reason = state.verdict.reason if state.verdict else None
        return UpstreamFacts(
            key=key,
            finished_ms=state.finished_ms,
            running=running,
            will_run=reason in WILL_RUN,
            failing=state.retry.failing and not stopped,
            stopped=stopped[0][1] if stopped else None,
            error=state.retry.error if state.retry.failing else None,
            retry_at_ms=state.retry.retry_at_ms,
        )

    def due_ms(self, state: UnitState) -> int | None:
        """When a unit's contents became, or become, stale."""
        return state.schedule.due_ms(self.fresh_ms(state.unit))

    def fresh_ms(self, unit: Unit) -> int | None:
        """When the whole unit was last known to be correct."""
        found = [self.tables[name].fresh_ms for name in unit.members]
        known = [fresh_ms for fresh_ms in found if fresh_ms is not None]
        return min(known) if len(known) == len(found) else None

    def changed(self, unit: Unit) -> tuple[str, ...]:
        """The inputs that moved or disappeared since the contents of some member were made."""
        moved = set(self.missing.intersection(unit.inputs))
        for name in unit.members:
            frontier = self.tables[name].frontier
            if frontier is not None:
                moved.update(frontier.moved(self.positions))
                # An input without a position then that has one now has moved too.
                moved.update(
                    source
                    for source in self.graph.inputs[name]
                    if source not in frontier and source in self.positions
                )
        return tuple(sorted(moved))

    def unfilled(self, unit: Unit) -> tuple[str, ...]:
        """The tables that a unit reads and that were never filled."""
        tables = self.tables
        return tuple(
            name
            for name in unit.inputs
            if name in tables and tables[name].frontier is None and tables[name].position is None
        )

    def saw(self, frontier: Frontier) -> None:
        """Advance positions: a refresh may have read further than reported so far."""
        for source, at in frontier.items():
            self.positions[source] = later(self.positions.get(source), at)

    def stopped(self, unit: Unit) -> tuple[tuple[str, Status], ...]:
        """The members that are not active, with their status."""
        return tuple(
            (name, self.statuses[name])
            for name in unit.members
            if self.statuses[name] is not Status.ACTIVE
        )

    def job_on(self, unit: Unit) -> int | None:
        """The job that is refreshing a member, possibly as part of a former unit."""
        return next((self.busy[name] for name in unit.members if name in self.busy), None)

    def urgency(self, state: UnitState) -> UnitUrgency:
        """A unit's rank among those that may run."""
        fresh_ms = self.fresh_ms(state.unit)
        due_ms = state.schedule.due_ms(fresh_ms)
        deadlines = [request.at_ms for request in state.requests.values()]
        deadlines += [] if due_ms is None else [max(due_ms, state.moved_ms or 0)]
        return UnitUrgency(
            min(deadlines, default=0), state.schedule.interval_ms(fresh_ms), state.unit.position
        )

    def readers(self, relations: Iterable[str]) -> set[str]:
        """The units that read any of these relations or contain them."""
        keys = set()
        for relation in relations:
            if relation in self.graph.tables:
                keys.add(self.units.unit_of(relation).key)
            keys.update(
                self.units.unit_of(name).key for name in self.graph.readers.get(relation, ())
            )
        return keys

    def _must_rebuild(self, unit: Unit) -> bool:
        return any(
            self.tables[name].frontier is None or self.graph.tables[name].volatile
            for name in unit.members
        )

    def _kept(self, before: TableDefinition | None, table: TableDefinition) -> TableMemory:
        """What is known about a table's contents; nothing if its query changed."""
        known = self.tables.get(table.name, TableMemory())
        if before is not None and before.query != table.query:
            return TableMemory(position=known.position)
        return known


def _state(unit: Unit, schedule: UnitSchedule, before: Mapping[str, UnitState]) -> UnitState:
    """A unit's state in a new graph: its own, or the worst of the units its members came from."""
    olds = {id(old): old for name in unit.members if (old := before.get(name))}.values()
    state = UnitState(unit, schedule)
    for old in olds:
        if old.retry.attempt_no > state.retry.attempt_no or old.retry.failing:
            state.retry = old.retry
        if old.finished_ms is not None:
            state.finished_ms = max(state.finished_ms or 0, old.finished_ms)
        state.requests |= {
            request_id: request
            for request_id, request in old.requests.items()
            if request.table in unit.members
        }
    return state
