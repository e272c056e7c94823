"""What people see of a warehouse: from what its coordinator last said, or by the same rules here.

A coordinator says every moment what it does; whoever looks reads that from the catalog. Where none
runs, a core of the same kind is asked in this process.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any, NamedTuple

from penstock.kernel.clock import Clock
from penstock.lake.shell.catalog import Catalog
from penstock.tables.dispatch import Coordinator
from penstock.tables.events import Tick
from penstock.tables.frontier import Frontier
from penstock.tables.health import Health, HealthState, Pool, TableStatus, health, table_rows
from penstock.tables.model import Mode, Status, TableDefinition
from penstock.tables.modes import differentiation
from penstock.tables.progress import Progress, read_progress
from penstock.tables.shell.alive import process_name
from penstock.tables.shell.settings import WarehouseSettings
from penstock.tables.shell.store import COORDINATOR, Store
from penstock.tables.shell.topic_watch import TopicWatch
from penstock.tables.shell.watching import Watcher, memory_of
from penstock.tables.slots import ParallelMode
from penstock.tables.units import ExecutionUnitGraph
from penstock.tables.verdict import Reason


class Why(NamedTuple):
    """Why a table waits, and who says so: the coordinator, or this process by the same rules."""

    table: str
    unit_key: str
    reason: Reason
    text: str
    coordinated: bool


class Running(NamedTuple):
    """A job under way: whose it is, since when it runs, and how far it has come if it said so."""

    job_id: int
    unit_key: str
    worker: str
    started_ms: int | None
    progress: Progress | None


class PoolStatus(NamedTuple):
    """The coordinator's work, its workers, and who holds the cluster's permits."""

    pool: Pool | None
    workers: tuple[Mapping[str, Any], ...]
    unfit: str | None
    permits: Mapping[str, int]
    permits_max: int
    running: tuple[Running, ...] = ()
    topics_trouble: str | None = None


class Looker:
    """Looks at one warehouse. Threads may share it."""

    def __init__(self, store: Store, settings: WarehouseSettings, clock: Clock) -> None:
        self._store, self._settings, self._clock = store, settings, clock
        self._lake: Catalog = store.lake

    def board(self) -> dict[str, Any] | None:
        """What a coordinator last said of itself."""
        rows = self._lake.query("SELECT value FROM penstock_board WHERE name = ?", (COORDINATOR,))
        return json.loads(rows[0][0]) if rows else None

    def is_coordinated(self) -> bool:
        """Whether a coordinator holds the lease and is alive."""
        lease, now_ms = self._store.lease(), self._clock.now_ms()
        if lease is None or lease.expires_ms <= now_ms:
            return False
        return self._store.is_alive(lease.holder, now_ms)

    def status(self) -> list[TableStatus]:
        """Every table: whether it is fresh, and what it waits for."""
        board = self.board()
        if board is not None and self.is_coordinated():
            rows = [_status_row(row) for row in board["tables"]]
            graph = self._store.definitions().graph
            if {row.table for row in rows} == set(graph.tables):
                return rows
        return table_rows(self._replica(), self._clock.now_ms())

    def why(self, table: str) -> Why:
        """Why a table waits."""
        coordinated, board = self.is_coordinated(), self.board()
        row = next(row for row in self.status() if row.table == table)
        text = row.waiting_for
        if not coordinated:
            text += "; no coordinator is running"
        elif board and board["unfit"] and _waits_for_a_worker(row, board):
            text = f"it waits for a worker, and workers cannot start: {board['unfit']}"
        detail = self._store.definitions().details.get(table)
        if detail and row.status is not Status.ACTIVE:
            text += f": {detail}"
        return Why(table, row.unit_key, row.reason, text, coordinated)

    def pool(self) -> PoolStatus:
        """The coordinator's work as it last told, its workers, and the permits."""
        board = self.board()
        rows = self._lake.query(
            "SELECT holder, count(*) FROM penstock_tokens WHERE pool = ? AND holder IS NOT NULL "
            "GROUP BY holder",
            (self._settings.pool_name,),
        ) if self._settings.pool is None and self._has_tokens() else []  # fmt: skip
        permits = {str(holder): int(count) for holder, count in rows}
        if board is None:
            return PoolStatus(None, (), None, permits, self._settings.max_workers)
        return PoolStatus(
            _pool(board["pool"]),
            tuple(board["workers"]),
            board["unfit"],
            permits,
            int(board.get("permits_max", self._settings.max_workers)),
            tuple(_running(found) for found in board.get("running", ())),
            board.get("topics_trouble"),
        )

    def health(self) -> Health:
        """One word and one sentence: ok, degraded, draining, saturated, stalled, not running."""
        board = self.board()
        found = health(
            _pool(board["pool"]) if board else None,
            lease=self._store.lease(),
            now_ms=self._clock.now_ms(),
        )
        if board and board["unfit"] and found.state is not HealthState.NOT_RUNNING:
            return Health(HealthState.STALLED, f"workers cannot start: {board['unfit']}")
        trouble = board.get("topics_trouble") if board else None
        if trouble and found.state is HealthState.OK:
            return Health(HealthState.DEGRADED, f"topics cannot be asked: {trouble}")
        return found

    def explain(self, table: TableDefinition) -> dict[str, Any]:
        """What is known of a table: its unit, its inputs, its mode and why, its last refresh."""
        unit = ExecutionUnitGraph(self._store.definitions().graph).unit_of(table.name)
        with self._lake.look() as reader:
            known = self._store.frontiers(reader).get(table.name)
        last = self._store.history(table.name, limit=1)
        found: dict[str, Any] = {
            "table": table.name,
            "query": table.query,
            "mode": table.mode.value,
            "differential": _differential(table),
            "unit": {"key": unit.key, "kind": unit.kind.value, "members": list(unit.members)},
            "inputs": dict.fromkeys(table.sources),
            "last_refresh": None,
        }
        if known is not None:
            found["inputs"] |= {source: list(at) for source, at in known.frontier.items()}
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
            }
        return found

    def _has_tokens(self) -> bool:
        with self._lake.look() as reader:
            return "penstock_tokens" in self._lake.database.tables(reader.cursor)

    def _replica(self) -> Coordinator:
        """A core that knows what a coordinator would, and is asked but never obeyed."""
        with self._lake.look() as reader:
            memory = memory_of(self._store.frontiers(reader))
        core = Coordinator(process_name(), self._settings.dispatch, Random(0), memory=memory)
        for event in [*Watcher(self._store, core, TopicWatch(None, 1)).look(frozenset()), Tick()]:
            core.step(event, self._clock.now_ms())
        return core


def _waits_for_a_worker(row: TableStatus, board: Mapping[str, Any]) -> bool:
    at_work = {found["unit_key"] for found in board.get("running", ())}
    return row.reason is Reason.IN_FLIGHT and row.unit_key not in at_work


def _differential(table: TableDefinition) -> dict[str, Any]:
    """Whether a table can be refreshed by its changes; None where nobody wants to."""
    found = differentiation(table.query)
    return {"possible": found.possible, "reason": found.reason.value, "text": found.text}


def _status_row(row: Mapping[str, Any]) -> TableStatus:
    return TableStatus(
        **{
            **row,
            "status": Status(row["status"]),
            "mode": Mode(row["mode"]),
            "reason": Reason(row["reason"]),
            "frontier": Frontier.from_json(row["frontier"]) if row["frontier"] else None,
        }
    )


def _pool(found: Mapping[str, Any]) -> Pool:
    stopped: Iterable[tuple[str, str]] = found["stopped"]
    return Pool(
        **{
            **found,
            "parallel_refresh_mode": ParallelMode(found["parallel_refresh_mode"]),
            "stopped": tuple((table, Status(status)) for table, status in stopped),
        }
    )


def _running(found: Mapping[str, Any]) -> Running:
    progress = found["progress"]
    return Running(**{**found, "progress": None if progress is None else read_progress(progress)})
