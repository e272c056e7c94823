"""What `penstock table status` draws of a warehouse that was seen at one moment."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from penstock.cli.table_live import Look, picture
from penstock.tables.core.capacity import ParallelMode
from penstock.tables.core.health import Health, HealthState, Pool, TableStatus
from penstock.tables.core.model import Mode, Status
from penstock.tables.core.progress import RefreshProgress
from penstock.tables.core.verdict import Reason
from penstock.tables.status import PoolStatus, Running

NOW_MS = 100_000
ROW = TableStatus(
    table="daily", status=Status.ACTIVE, mode=Mode.AUTO, schedule="10s", unit_key="table:daily",
    reason=Reason.IN_FLIGHT, waiting_for="job 7 is refreshing it", fresh_ms=NOW_MS - 4_000,
    due_ms=NOW_MS + 6_000, failures=0, frontier=None,
)  # fmt: skip
POOL = Pool("c", ParallelMode.ON, 1, 4, 2, False, False, NOW_MS)
WORKERS = (
    {"worker": "host/12-3", "ready": True, "job_id": 7},
    {"worker": "host/13-3", "ready": False, "job_id": None},
)
PROGRESS = RefreshProgress("daily", 12_000, 4, 1, 8, 2, 3_000, 9_000)


def look(**changes: object) -> Look:
    job = Running(7, "table:daily", "host/12-3", NOW_MS - 3_000, PROGRESS)
    pool = PoolStatus(POOL, WORKERS, None, {"c": 1}, 4, (job,))
    seen = Look(NOW_MS, Health(HealthState.OK, "1 running, 2 ready"), pool, (), [ROW])
    return seen._replace(**changes)


def drawn(seen: Look) -> str:
    console = Console(width=140, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(picture(seen))
    return captured.get()


def test_health_workers_permits_and_progress_are_shown() -> None:
    text = drawn(look())
    assert "ok: 1 running, 2 ready" in text
    assert "2 workers, 1 busy · 1 starting · 1 of 4 permits held · 2 units ready" in text
    assert "stage 2 of 4, 12,000 rows, 9 s left" in text
    assert "table:daily" in text
    assert "4 s ago" in text
    assert "job 7 is refreshing it" in text


def test_a_job_that_has_said_nothing_yet_is_shown_without_a_bar() -> None:
    seen = look()
    quiet = tuple(job._replace(progress=None) for job in seen.pool.running)
    text = drawn(seen._replace(pool=seen.pool._replace(running=quiet)))
    assert "table:daily" in text
    assert "stage" not in text


def test_what_waits_says_why_and_counts() -> None:
    waiting = replace(ROW, table="b", reason=Reason.NO_BUDGET, waiting_for="all slots are in use")
    fresh = replace(ROW, table="c", reason=Reason.NOT_DUE, waiting_for="due in 6 s")
    never = replace(ROW, table="d", reason=Reason.READY, waiting_for="may run now", fresh_ms=None)
    text = drawn(look(rows=[ROW, waiting, fresh, never], gates=("raw",)))
    assert "2 tables waiting · closed: raw" in text
    assert "all slots are in use" in text
    assert "never" in text


def test_what_a_coordinator_that_is_gone_said_to_be_running_is_not_shown() -> None:
    gone = look(health=Health(HealthState.NOT_RUNNING, "no coordinator holds the lease"))
    assert "stage" not in drawn(gone)
    assert "not running: no coordinator holds the lease" in drawn(gone)


def test_a_warehouse_without_tables_says_so() -> None:
    assert "no stream tables" in drawn(look(rows=[]))
