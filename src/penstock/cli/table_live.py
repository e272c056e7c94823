"""`penstock table status`: running and waiting refreshes, workers, and freshness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.cli.output import DIM, grid
from penstock.cli.table_bars import described
from penstock.kernel.units import format_ms
from penstock.tables.core.health import Health, HealthState, TableStatus
from penstock.tables.core.model import Status
from penstock.tables.core.verdict import Reason
from penstock.tables.status import PoolStatus, Running
from penstock.tables.warehouse import Warehouse

STATUS_STYLES: Final = {
    Status.ACTIVE: "green",
    Status.PAUSED: "yellow",
    Status.SUSPENDED: "red",
    Status.ERROR: "red",
}
_HEALTH: Final = {
    HealthState.OK: "green",
    HealthState.STARTING: "yellow",
    HealthState.DEGRADED: "yellow",
    HealthState.DRAINING: "yellow",
}
_REASON: Final = {
    Reason.IN_FLIGHT: "cyan",
    Reason.READY: "cyan",
    Reason.ERROR: "red",
    Reason.SUSPENDED: "red",
    Reason.ENGINE_AWAY: "yellow",
    Reason.BACKING_OFF: "yellow",
    Reason.UPSTREAM_FAILED: "yellow",
    Reason.NO_BUDGET: "yellow",
}
_BAR_WIDTH: Final = 24
_QUIET: Final = frozenset({Reason.NOT_DUE, Reason.NO_CHANGE, Reason.ON_DEMAND})


class Look(NamedTuple):
    """Everything shown on one screen, as of one moment."""

    now_ms: int
    health: Health
    pool: PoolStatus
    gates: tuple[str, ...]
    rows: Sequence[TableStatus]


def look(warehouse: Warehouse, now_ms: int) -> Look:
    """Query a warehouse."""
    return Look(now_ms, warehouse.health(), warehouse.pool(), warehouse.gates(), warehouse.status())


def picture(seen: Look) -> RenderableType:
    """One screen: a line on health, a line on workers, running jobs, then every table."""
    parts: list[RenderableType] = [health_text(seen.health), _workers(seen)]
    coordinated = seen.health.state not in (HealthState.NOT_RUNNING, HealthState.STALLED)
    if seen.pool.running and coordinated:
        parts += [Text(), _running(seen)]
    parts += [Text(), _tables(seen)]
    return Group(*parts)


def health_text(health: Health) -> Text:
    """A word in its colour and a sentence."""
    style = _HEALTH.get(health.state, "red")
    return Text.assemble((health.state.value.replace("_", " "), style), f": {health.text}")


def _workers(seen: Look) -> Text:
    pool = seen.pool
    busy = sum(worker["job_id"] is not None for worker in pool.workers)
    warming = sum(not worker["ready"] for worker in pool.workers)
    said = [f"{len(pool.workers)} workers, {busy} busy"]
    said += [f"{warming} starting"] if warming else []
    said.append(f"{sum(pool.permits.values())} of {pool.permits_max} permits held")
    if pool.pool is not None:
        said.append(f"{pool.pool.ready} units ready")
    waiting = sum(row.reason not in _QUIET and row.reason is not Reason.IN_FLIGHT
                  for row in seen.rows)  # fmt: skip
    said.append(f"{waiting} tables waiting")
    if seen.gates:
        said.append(f"closed: {', '.join(seen.gates)}")
    return Text(" · ".join(said), DIM)


def _running(seen: Look) -> Table:
    shown = grid("running", "", "for", "", "worker")
    for job in seen.pool.running:
        taken_ms = 0 if job.started_ms is None else max(0, seen.now_ms - job.started_ms)
        shown.add_row(
            job.unit_key,
            _bar(job),
            format_ms(taken_ms // 100 * 100),
            described(job.progress) if job.progress else "",
            Text(job.worker.rpartition("/")[2], DIM),
        )
    return shown


def _bar(job: Running) -> RenderableType:
    progress = job.progress
    if progress is None or not progress.tasks:
        return Text("…", DIM)
    return ProgressBar(
        total=progress.tasks, completed=min(progress.tasks_done, progress.tasks), width=_BAR_WIDTH
    )


def _tables(seen: Look) -> RenderableType:
    if not seen.rows:
        return Text("no stream tables", DIM)
    shown = grid("table", "status", "fresh", "schedule", "mode", "now")
    for row in seen.rows:
        shown.add_row(
            row.table,
            Text(row.status.value, STATUS_STYLES[row.status]),
            _fresh(row, seen.now_ms),
            row.schedule,
            row.mode.value,
            Text(row.waiting_for, _REASON.get(row.reason, DIM)),
        )
    return shown


def _fresh(row: TableStatus, now_ms: int) -> Text:
    """How old contents are; in yellow if they are older than their schedule allows."""
    if row.fresh_ms is None:
        return Text("never", "yellow")
    late = row.due_ms is not None and row.due_ms < now_ms
    return Text(f"{format_ms(max(0, now_ms - row.fresh_ms))} ago", "yellow" if late else "")
