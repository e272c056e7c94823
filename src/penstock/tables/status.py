"""What people see of a warehouse: its coordinator's last report, or the same rules applied here.

A running coordinator keeps its report in the catalog up to date. If none is running, a core in this
process answers instead. The `*_facts` functions give plain values, the same for HTTP, `--json` and
programs.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from random import Random
from typing import Any, NamedTuple

from penstock.kernel.clock import Clock
from penstock.kernel.units import format_ms
from penstock.lake.catalog import Catalog
from penstock.lake.database import SqliteDatabase
from penstock.tables import rows
from penstock.tables.coordinator.publisher import publications
from penstock.tables.coordinator.report import read_pool, read_tables
from penstock.tables.coordinator.watcher import TopicWatch, Watcher, memory_of
from penstock.tables.core.dispatch import Coordinator
from penstock.tables.core.events import Tick
from penstock.tables.core.frontier import Frontier, LakePosition
from penstock.tables.core.health import (
    CoordinatorHealth,
    CoordinatorLease,
    HealthState,
    Pool,
    TableHealth,
    health,
    table_rows,
)
from penstock.tables.core.history import RefreshProgress, RefreshRecord, read_progress
from penstock.tables.core.jobs import JobStatus, RefreshJob
from penstock.tables.core.model import TableDefinition
from penstock.tables.core.topics import TopicSource
from penstock.tables.core.units import ExecutionUnitGraph
from penstock.tables.core.verdict import Reason
from penstock.tables.definitions import stored_relations
from penstock.tables.delta.explain import facts as plan_facts
from penstock.tables.delta.modes import differentiation
from penstock.tables.next_refresh import next_refresh
from penstock.tables.processes import is_here, process_name
from penstock.tables.publishing import Publication
from penstock.tables.query.names import STATE_SCHEMA, is_state_of
from penstock.tables.query.relations import Relations
from penstock.tables.query.resolve import resolve
from penstock.tables.settings import WarehouseSettings
from penstock.tables.store import MANUAL, TableStore

_LOCKED_MS = 1_000
"""A catalog blocked by a writer for longer than this counts as locked."""
_STANDS_STILL = frozenset({Reason.SUSPENDED, Reason.ERROR})


class Why(NamedTuple):
    """Why a table waits, and the source of that: the coordinator, or the same rules here."""

    table: str
    unit_key: str
    reason: Reason
    text: str
    coordinated: bool


class Running(NamedTuple):
    """A running job: its worker, its start, and its progress if reported."""

    job_id: int
    unit_key: str
    worker: str
    started_ms: int | None
    progress: RefreshProgress | None


class PoolStatus(NamedTuple):
    """The coordinator's work, its workers, and the holders of the cluster's permits."""

    pool: Pool | None
    workers: tuple[Mapping[str, Any], ...]
    unfit: str | None
    permits: Mapping[str, int]
    permits_max: int
    running: tuple[Running, ...] = ()
    topics_trouble: str | None = None


class StatusReader:
    """Reads one warehouse. Thread-safe."""

    def __init__(self, store: TableStore, settings: WarehouseSettings, clock: Clock) -> None:
        self._store, self._settings, self._clock = store, settings, clock
        self._lake: Catalog = store.lake
        self._kept = threading.local()

    @contextmanager
    def together(self) -> Iterator[None]:
        """What this thread reads within is as of one time, and its tables are judged once."""
        self._kept.tables = []
        try:
            yield
        finally:
            self._kept.tables = None

    def report(self) -> dict[str, Any] | None:
        """A coordinator's last report, translated to this version's names."""
        said = self._lake.query(rows.REPORT_IS, (rows.COORDINATOR,))
        found: dict[str, Any] | None = json.loads(said[0][0]) if said else None
        return found if found is not None and "late" in found else None

    def is_coordinated(self) -> bool:
        """Whether a live coordinator holds the lease."""
        return self._coordinator() is not None

    def _coordinator(self) -> CoordinatorLease | None:
        """The lease of a live coordinator."""
        lease, now_ms = self._store.lease(), self._clock.now_ms()
        if lease is None or lease.expires_ms <= now_ms:
            return None
        return lease if self._store.is_alive(lease.holder, now_ms) else None

    def status(self) -> list[TableHealth]:
        """Every table: whether it is fresh, and what it waits for."""
        kept: list[list[TableHealth]] | None = getattr(self._kept, "tables", None)
        if kept is None:
            return self._judged_tables()
        if not kept:
            kept.append(self._judged_tables())
        return kept[0]

    def _judged_tables(self) -> list[TableHealth]:
        found = self._store.definitions()
        tables = self._rows(set(found.graph.tables))
        published = self._published()
        return [
            replace(
                _explained(row, found.details.get(row.table)),
                publishing=published.get(row.table),
            )
            for row in tables
        ]

    def _published(self) -> dict[str, str]:
        """How far the topic of each published table is."""
        found = publications(self._store)
        if not found:
            return {}
        with self._lake.look() as reader:
            known = self._store.frontiers(reader, [each.table for each in found])
        return {
            each.table: publishing_text(each, known[each.table].position)
            for each in found
            if each.table in known
        } | {each.table: publishing_text(each, None) for each in found if each.table not in known}

    def _rows(self, tables: set[str]) -> list[TableHealth]:
        report, now_ms = self.report(), self._clock.now_ms()
        coordinated = self.is_coordinated()
        if report is not None and coordinated:
            told = read_tables(report, now_ms)
            if {row.table for row in told} == tables:
                return told
        return table_rows(self._replica(coordinated), now_ms)

    def why(self, table: str) -> Why:
        """Why a table waits."""
        coordinated, report = self.is_coordinated(), self.report()
        row = next(row for row in self.status() if row.table == table)
        text = row.waiting_for
        if row.publishing is not None:
            text += f"; {row.publishing}"
        if not coordinated and row.reason is not Reason.NO_COORDINATOR:
            text += "; no coordinator is running"
        elif report and report["unfit"] and _waits_for_a_worker(row, report):
            text = f"it waits for a worker, and workers cannot start: {report['unfit']}"
        return Why(table, row.unit_key, row.reason, text, coordinated)

    def jobs(
        self, *, live_only: bool = False, limit: int | None = None, since_ms: int = 0
    ) -> list[RefreshJob]:
        """Jobs, newest first. Those whose coordinator or process is dead are not live."""
        found = self._store.jobs(
            live_only=live_only, limit=None if live_only else limit, since_ms=since_ms
        )
        judged = self._judged(found)
        return [job for job in judged if job.status.live][:limit] if live_only else judged

    def _judged(self, jobs: list[RefreshJob]) -> list[RefreshJob]:
        """Jobs with corrected status, where rows are left over from a killed process."""
        if not any(job.status.live for job in jobs):
            return jobs
        lease, now_ms = self._coordinator(), self._clock.now_ms()

        def is_owned(job: RefreshJob) -> bool:
            if job.coordinator.startswith(MANUAL):
                return self._store.is_alive(job.coordinator, now_ms)
            return lease is not None and lease.holder == job.coordinator

        return [
            replace(job, status=JobStatus.CANCELLED, outcome_detail=f"{job.coordinator} is gone")
            if job.status.live and not is_owned(job)
            else job
            for job in jobs
        ]

    def pool(self) -> PoolStatus:
        """The coordinator's work as last reported, its workers, and the permits."""
        lease, now_ms = self._coordinator(), self._clock.now_ms()
        report = self.report() if lease is not None else None
        permits = self._permits(now_ms)
        if report is None:
            return PoolStatus(None, (), None, permits, self._settings.max_workers)
        return PoolStatus(
            read_pool(report, now_ms),
            tuple(report["workers"]),
            report["unfit"],
            permits,
            int(report["permits_max"]),
            tuple(_running(found) for found in report["running"]),
            report["topics_trouble"],
        )

    def _permits(self, now_ms: int) -> dict[str, int]:
        """The permits of the catalog's own pool held by live processes."""
        if self._settings.pool is not None or not self._has_tokens():
            return {}
        found = self._lake.query(rows.SELECT_PERMITS, (self._settings.pool_name,))
        held = {str(holder): int(count) for holder, count in found}
        return {who: count for who, count in held.items() if self._store.is_alive(who, now_ms)}

    def health(self) -> CoordinatorHealth:
        """One word and one sentence: ok, starting, degraded, draining, saturated, stalled, …"""
        lease, report, now_ms = self._store.lease(), self.report(), self._clock.now_ms()
        if lease is not None and not self._store.is_alive(lease.holder, now_ms):
            text = f"no coordinator is running: {lease.holder} is gone and left its lease"
            return CoordinatorHealth(HealthState.NOT_RUNNING, text)
        if lease is not None and lease.expires_ms <= now_ms and is_here(lease.holder):
            # Alive, but unable to renew: most likely the catalog accepts no writes.
            late = format_ms(now_ms - lease.expires_ms)
            text = f"{lease.holder} runs, but its lease ran out {late} ago: is the catalog locked?"
            return CoordinatorHealth(HealthState.STALLED, text)
        if lease is not None and self._is_locked():
            text = f"{lease.holder} runs, but another process keeps the catalog locked"
            return CoordinatorHealth(HealthState.STALLED, text)
        seen = read_pool(report, now_ms) if report else None
        found = health(seen, lease=lease, now_ms=now_ms)
        if report and report["unfit"] and found.state is not HealthState.NOT_RUNNING:
            return CoordinatorHealth(
                HealthState.STALLED, f"workers cannot start: {report['unfit']}"
            )
        trouble = report["topics_trouble"] if report else None
        if trouble and found.state is HealthState.OK:
            return CoordinatorHealth(HealthState.DEGRADED, f"topics cannot be asked: {trouble}")
        return found

    def _is_locked(self) -> bool:
        """Whether the catalog is a file that accepts no writes, as its coordinator cannot say."""
        database = self._lake.database
        return isinstance(database, SqliteDatabase) and not database.takes_writes(_LOCKED_MS)

    def explain(self, table: TableDefinition) -> dict[str, Any]:
        """What is known about a table: unit, inputs, mode, plan, last refresh and the next one."""
        unit = ExecutionUnitGraph(self._store.definitions().graph).unit_of(table.name)
        with self._lake.look() as reader:
            known = self._store.frontiers(reader).get(table.name)
        last = self._store.history(table.name, limit=1)
        found: dict[str, Any] = {
            "table": table.name,
            "mode": table.mode.value,
            **_plan(table.query, self._relations()),
            "unit": {"key": unit.key, "kind": unit.kind.value, "members": list(unit.members)},
            "inputs": dict.fromkeys(table.sources),
            "state_tables": self._state_tables(table.name),
            "last_refresh": None,
        }
        if known is not None:
            found["inputs"] |= {source: list(at) for source, at in known.frontier.items()}
        compiled = differentiation(table.query, self._relations().read_by(table.query))
        frontier = None if known is None else known.frontier
        found["next_refresh"] = next_refresh(self._lake, table, compiled, frontier)
        if last:
            found["last_refresh"] = {
                "outcome": last[0].outcome.value,
                "configured": last[0].configured.value,
                "executed": last[0].executed.value if last[0].executed else None,
                "reason": last[0].reason.value,
                "reason_text": last[0].reason_text,
                "took_ms": last[0].took_ms,
                "rows_read": last[0].rows_read,
                "delta_rows": last[0].delta_rows,
                "rows_written": last[0].rows_written,
                "choice": last[0].choice,
            }
        return found

    def _state_tables(self, name: str) -> dict[str, int]:
        """What is stored beside the contents of a table, and how many rows it has."""
        with self._lake.look() as reader:
            counts: dict[int, int | None] = dict(reader.rows(rows.SELECT_ROW_COUNTS))
            tables = reader.tables(reader.latest().id)
        return {
            table.qualified: int(counts.get(table.id) or 0)
            for table in tables
            if table.schema.name == STATE_SCHEMA and is_state_of(table.name, name)
        }

    def explain_query(self, query: str) -> dict[str, Any]:
        """Whether and how a query would be brought up to date; `InvalidQuery` if it is wrong."""
        relations = self._relations()
        resolve(query, relations)
        return _plan(query, relations)

    def _relations(self) -> Relations:
        return stored_relations(self._lake, self._store.definitions())

    def _has_tokens(self) -> bool:
        with self._lake.look() as reader:
            return "penstock_tokens" in self._lake.database.tables(reader.cursor)

    def _replica(self, coordinated: bool) -> Coordinator:
        """A core with a coordinator's knowledge, which is queried but whose effects are ignored."""
        with self._lake.look() as reader:
            memory = memory_of(self._store.frontiers(reader), self._store.failures(reader))
        core = Coordinator(
            process_name(), self._settings.dispatch, Random(0), memory=memory,
            coordinated=coordinated,
        )  # fmt: skip
        now_ms = self._clock.now_ms()
        holders = self._lake.query(rows.SELECT_LOCK_HOLDERS)
        dead = frozenset(who for (who,) in holders if not self._store.is_alive(who, now_ms))
        watcher = Watcher(self._store, core, TopicWatch(None, 1))
        for event in [*watcher.look(frozenset(), dead), Tick()]:
            core.step(event, now_ms)
        return core


def publishing_text(publication: Publication, position: LakePosition | None) -> str:
    """How far a topic is, and what it waits for."""
    to = f"topic {publication.topic!r}"
    if publication.trouble is not None:
        return f"publishing to {to} waits: {publication.trouble}"
    if publication.snapshot < 0:
        return f"not yet published to {to}"
    if position is not None and position.snapshot > publication.snapshot:
        behind = f"not yet with snapshot {position.snapshot}"
        return f"published to {to} up to snapshot {publication.snapshot}, {behind}"
    return f"published to {to} up to snapshot {publication.snapshot}"


def _waits_for_a_worker(row: TableHealth, report: Mapping[str, Any]) -> bool:
    at_work = {found["unit_key"] for found in report["running"]}
    return row.reason is Reason.IN_FLIGHT and row.unit_key not in at_work


def _plan(query: str, relations: Relations) -> dict[str, Any]:
    """Whether a query can be refreshed from changes, and how; if not, why."""
    found = differentiation(query, relations.read_by(query))
    said = {"possible": found.possible, "reason": found.reason.value, "text": found.text}
    plan = None if found.compiled is None else plan_facts(found.compiled)
    return {"query": query, "differential": said, "plan": plan}


def _explained(row: TableHealth, detail: str | None) -> TableHealth:
    """A row with the reason why its table is stopped, from its definition."""
    if row.reason not in _STANDS_STILL:
        return row
    error = row.error or detail
    return replace(row, error=error, waiting_for=f"{row.waiting_for}: {detail or error}")


def _running(found: Mapping[str, Any]) -> Running:
    progress = found["progress"]
    return Running(**{**found, "progress": None if progress is None else read_progress(progress)})


def definition_facts(table: TableDefinition) -> dict[str, Any]:
    """A table as configured."""
    return {**asdict(table), "sources": list(table.sources), "schedule": table.schedule.text}


def status_facts(row: TableHealth) -> dict[str, Any]:
    """A table's freshness, and what it waits for."""
    return {**asdict(row), "frontier": frontier_facts(row.frontier)}


def record_facts(record: RefreshRecord) -> dict[str, Any]:
    """One refresh of one table."""
    return {
        **asdict(record),
        "frontier": frontier_facts(record.frontier),
        "timings_ms": dict(record.timings_ms),
        "stale": list(record.stale),
    }


def job_facts(job: RefreshJob) -> dict[str, Any]:
    """One job, as stored."""
    return {**asdict(job), "members": list(job.members)}


def source_facts(source: TopicSource) -> dict[str, Any]:
    """A topic that tables may read."""
    return {
        "topic": source.topic,
        "relation": source.name,
        "schema": source.schema,
        "key": list(source.key),
        "url": source.url,
    }


def frontier_facts(frontier: Frontier | None) -> dict[str, Any] | None:
    """Positions by relation: `[snapshot]` of a table, `[epoch, seq]` of a topic."""
    found: dict[str, Any] | None = None if frontier is None else json.loads(frontier.to_json())
    return found
