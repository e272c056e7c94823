"""What `penstock table status` draws of a warehouse that was seen at one moment."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

from rich.console import Console

from penstock.cli.table_view import StatusScreen, TableOutput, picture
from penstock.tables.core.capacity import ParallelMode
from penstock.tables.core.health import CoordinatorHealth, HealthState, Pool, TableHealth
from penstock.tables.core.history import RefreshProgress
from penstock.tables.core.model import Mode, Status
from penstock.tables.core.verdict import Reason
from penstock.tables.delta.compiler import compile_query
from penstock.tables.delta.explain import facts as plan_facts
from penstock.tables.status import PoolStatus, Running

NOW_MS = 100_000
ROW = TableHealth(
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


def look(**changes: object) -> StatusScreen:
    job = Running(7, "table:daily", "host/12-3", NOW_MS - 3_000, PROGRESS)
    pool = PoolStatus(POOL, WORKERS, None, {"c": 1}, 4, (job,))
    seen = StatusScreen(
        NOW_MS, CoordinatorHealth(HealthState.OK, "1 running, 2 ready"), pool, (), [ROW]
    )
    return seen._replace(**changes)


def drawn(seen: StatusScreen) -> str:
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
    gone = look(health=CoordinatorHealth(HealthState.NOT_RUNNING, "no coordinator holds the lease"))
    assert "stage" not in drawn(gone)
    assert "not running: no coordinator holds the lease" in drawn(gone)


def test_a_warehouse_without_tables_says_so() -> None:
    assert "no stream tables" in drawn(look(rows=[]))


def test_a_plan_is_shown_with_how_the_mode_was_chosen() -> None:
    compiled = compile_query("SELECT c, sum(n) AS s FROM t GROUP BY c", {"t": ["c", "n"]})
    output = TableOutput(as_json=False)
    output.plain = False
    output.console = Console(file=StringIO(), width=200)
    choice = {"mode": "FULL", "full_ms": 80.2, "differential_ms": 120.0, "measured_ms": 150.0,
              "regret_ms": 30.0}  # fmt: skip
    last = {"outcome": "succeeded", "executed": "FULL", "reason": "full_is_cheaper",
            "took_ms": 150, "rows_written": 3, "reason_text": "", "choice": choice}  # fmt: skip
    output.explained(
        {"plan": plan_facts(compiled), "differential": {"text": ""}, "last_refresh": last}
    )
    shown = output.console.file.getvalue()
    assert "full estimated at 80 ms, differential at 120 ms; took 150 ms, regret 30 ms" in shown
    assert "└─ GROUP BY c: state (rows, SUM(n))" in shown
    assert "`t@changes`" in shown


def test_a_query_without_a_plan_says_why() -> None:
    output = TableOutput(as_json=False)
    output.plain = False
    output.console = Console(file=StringIO(), width=200)
    output.explained({"plan": None, "differential": {"text": "LIMIT 3: any rows"}})
    assert "not possible: LIMIT 3: any rows" in output.console.file.getvalue()
