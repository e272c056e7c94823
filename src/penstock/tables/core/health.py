"""What people see of a coordinator: whether it runs, is saturated, and what each table does.

>>> health(None, lease=CoordinatorLease("c1", expires_ms=900), now_ms=1_000).state.value
'not_running'
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from penstock.kernel.units import format_ms
from penstock.tables.core.capacity import ParallelMode
from penstock.tables.core.dispatch import Coordinator
from penstock.tables.core.frontier import Frontier
from penstock.tables.core.model import Mode, Status
from penstock.tables.core.verdict import Reason


class CoordinatorLease(NamedTuple):
    """The coordinator of a warehouse, and when its lease expires unless renewed."""

    holder: str
    expires_ms: int


@dataclass(frozen=True, slots=True)
class Pool:
    """A snapshot of a coordinator's work, as `worker pool` shows it."""

    coordinator: str
    parallel_refresh_mode: ParallelMode
    running: int
    running_max: int
    ready: int
    waiting_for_permits: bool
    draining: bool
    ticked_ms: int
    stopped: tuple[tuple[str, Status], ...] = ()
    troubles: tuple[tuple[str, str], ...] = ()
    """Tables that are not kept fresh, with the error of each."""


class HealthState(StrEnum):
    """Ordered from best to worst for freshness."""

    OK = "ok"
    STARTING = "starting"
    DEGRADED = "degraded"
    DRAINING = "draining"
    SATURATED = "saturated"
    STALLED = "stalled"
    NOT_RUNNING = "not_running"


class CoordinatorHealth(NamedTuple):
    """One word for programs, one sentence for people."""

    state: HealthState
    text: str


@dataclass(frozen=True, slots=True)
class TableHealth:
    """One table as `status` shows it."""

    table: str
    status: Status
    mode: Mode
    schedule: str
    unit_key: str
    reason: Reason
    waiting_for: str
    fresh_ms: int | None
    due_ms: int | None
    failures: int
    frontier: Frontier | None
    error: str | None = None
    """The last error, if the table was not refreshed since."""
    attempt: int = 1
    """The number of the next attempt."""
    retry_at_ms: int | None = None
    publishing: str | None = None
    """How far its topic is, if it has one, and what publishing waits for."""


def pool(coordinator: Coordinator) -> Pool:
    """A coordinator's current work."""
    board = coordinator.facts
    return Pool(
        coordinator=coordinator.identity,
        parallel_refresh_mode=coordinator.settings.parallel_refresh_mode,
        running=len(board.jobs),
        running_max=coordinator.settings.running_max,
        ready=len(coordinator.ready),
        waiting_for_permits=coordinator.starved,
        draining=board.draining,
        ticked_ms=coordinator.now_ms,
        stopped=tuple(
            (name, status)
            for name, status in board.statuses.items()
            if status in (Status.SUSPENDED, Status.ERROR)
        ),
        troubles=_troubles(coordinator),
    )


def _troubles(coordinator: Coordinator) -> tuple[tuple[str, str], ...]:
    board, found = coordinator.facts, []
    for name in board.graph.order:
        status, error = board.statuses[name], board.tables[name].error
        verdict = board.states[board.units.unit_of(name).key].verdict
        if status in (Status.SUSPENDED, Status.ERROR):
            found.append((name, f"{status.value}: {error}" if error else status.value))
        elif verdict is not None and verdict.reason in _TROUBLED:
            found.append((name, coordinator.why(name, coordinator.now_ms).text))
    return tuple(found)


_TROUBLED = frozenset({Reason.BACKING_OFF, Reason.ENGINE_AWAY, Reason.SOURCE_MISSING})


def health(
    seen: Pool | None, *, lease: CoordinatorLease | None, now_ms: int, tick_late_ms: int = 5_000
) -> CoordinatorHealth:
    """Whether tables are kept fresh; distinguishes *saturated* from *not running*.

    `seen` is the last report of the lease holder, None if there is none yet.
    """
    if lease is None:
        return CoordinatorHealth(HealthState.NOT_RUNNING, "no coordinator holds the lease")
    if lease.expires_ms <= now_ms:
        ago = format_ms(now_ms - lease.expires_ms)
        return CoordinatorHealth(
            HealthState.NOT_RUNNING, f"the lease of {lease.holder} ran out {ago} ago"
        )
    if seen is None:
        return CoordinatorHealth(
            HealthState.STARTING, f"{lease.holder} has taken the lease and starts"
        )
    if now_ms - seen.ticked_ms > tick_late_ms:
        return CoordinatorHealth(
            HealthState.STALLED, f"{lease.holder} holds the lease but does not tick"
        )
    if seen.draining:
        return CoordinatorHealth(HealthState.DRAINING, f"draining, {seen.running} still running")
    if seen.ready and (seen.running >= seen.running_max or seen.waiting_for_permits):
        limit = "the cluster's workers" if seen.waiting_for_permits else f"{seen.running_max} slots"
        return CoordinatorHealth(
            HealthState.SATURATED, f"{seen.ready} units wait for one of {limit}"
        )
    if seen.troubles:
        named = "; ".join(f"{table} {text}" for table, text in seen.troubles[:3])
        count = len(seen.troubles)
        noun = "table is" if count == 1 else "tables are"
        return CoordinatorHealth(HealthState.DEGRADED, f"{count} {noun} not kept fresh: {named}")
    return CoordinatorHealth(HealthState.OK, f"{seen.running} running, {seen.ready} ready")


def table_rows(coordinator: Coordinator, now_ms: int) -> list[TableHealth]:
    """One row for each table, in topological order."""
    board = coordinator.facts
    rows = []
    for name in board.graph.order:
        table, state = board.graph.tables[name], board.states[board.units.unit_of(name).key]
        verdict = coordinator.why(name, now_ms)
        rows.append(
            TableHealth(
                table=name,
                status=board.statuses[name],
                mode=table.mode,
                schedule=table.schedule.text,
                unit_key=state.unit.key,
                reason=verdict.reason,
                waiting_for=verdict.text,
                fresh_ms=board.tables[name].fresh_ms,
                due_ms=board.due_ms(state),
                failures=board.tables[name].failures,
                frontier=board.tables[name].frontier,
                error=board.tables[name].error or state.retry.error or state.retry.away,
                attempt=state.retry.attempt_no,
                retry_at_ms=state.retry.retry_at_ms,
            )
        )
    return rows
