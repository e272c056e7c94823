from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.kernel.errors import Rejected
from penstock.tables.core.capacity import ReadyQueue, UnitUrgency
from penstock.tables.core.events import DrainChanged, TokenLost
from penstock.tables.core.failures import FailureKind, FailurePolicy
from penstock.tables.core.health import CoordinatorLease, HealthState, health, pool, table_rows
from penstock.tables.core.history import ReasonCode, RefreshOutcome, RefreshRecord
from penstock.tables.core.model import Mode
from tests.unit.tables.core.stage import Stage, reads

TABLES = [reads(f"t{n}", "raw") for n in range(3)]


def state(stage: Stage, *, now_ms: int | None = None, expires_ms: int = 1 << 60):
    now_ms = stage.now_ms if now_ms is None else now_ms
    return health(
        pool(stage.coordinator), lease=CoordinatorLease("c1", expires_ms), now_ms=now_ms
    ).state


def test_without_a_lease_nobody_runs():
    assert health(None, lease=None, now_ms=0).state is HealthState.NOT_RUNNING
    assert state(Stage(), expires_ms=1) is HealthState.NOT_RUNNING


def test_a_coordinator_that_does_not_tick_is_stalled_and_not_saturated():
    stage = Stage(*TABLES, running_max=1)
    assert state(stage, now_ms=stage.now_ms + 6_000) is HealthState.STALLED


def test_work_that_waits_for_slots_is_saturation():
    stage = Stage(*TABLES, running_max=1)
    assert state(stage) is HealthState.SATURATED
    assert pool(stage.coordinator).ready == 2


def test_work_that_waits_for_the_cluster_is_saturation():
    stage = Stage(*TABLES, permits=0)
    stage.tell(TokenLost())
    found = health(
        pool(stage.coordinator), lease=CoordinatorLease("c1", 1 << 60), now_ms=stage.now_ms
    )
    assert found.state is HealthState.SATURATED
    assert "cluster" in found.text


def test_everything_running_is_fine_and_a_failed_table_is_not():
    stage = Stage(*TABLES)
    assert state(stage) is HealthState.OK
    stage.fail("t0", FailureKind.PERMANENT)
    assert state(stage) is HealthState.DEGRADED
    stage.tell(DrainChanged(True))
    assert state(stage) is HealthState.DRAINING


def test_status_has_a_row_for_each_table_that_says_why_it_waits():
    stage = Stage(reads("a", "raw", schedule="10s"), reads("b", "a"))
    rows = table_rows(stage.coordinator, stage.now_ms)
    assert [(row.table, row.reason.value, row.schedule) for row in rows] == [
        ("a", "in_flight", "10s"),
        ("b", "upstream_running", "calculated"),
    ]
    assert rows[1].waiting_for == "waiting for table:a to end"


RECORD = RefreshRecord(
    table="a",
    unit_key="table:a",
    job_id=1,
    outcome=RefreshOutcome.SUCCEEDED,
    configured=Mode.AUTO,
    executed=Mode.DIFFERENTIAL,
    reason=ReasonCode.AS_CONFIGURED,
    started_at_ms=100,
    finished_at_ms=350,
    rows_written=7,
)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"executed": Mode.AUTO}, "AUTO cannot be executed"),
        ({"executed": None}, "has an executed mode"),
        ({"finished_at_ms": 99}, "cannot end at 99"),
    ],
)
def test_a_record_that_cannot_be_true_is_refused(changes, text):
    with pytest.raises(Rejected, match=text):
        replace(RECORD, **changes)


def test_a_key_whose_urgency_changes_is_served_once_at_its_new_place():
    queue = ReadyQueue()
    queue.put("a", UnitUrgency(5, 1, 0))
    queue.put("b", UnitUrgency(6, 1, 1))
    queue.put("a", UnitUrgency(7, 1, 0))
    assert queue.in_order() == ["b", "a"]
    queue.discard("nobody")
    assert [queue.pop(), queue.pop(), queue.pop()] == ["b", "a", None]


def test_a_key_that_left_is_not_served():
    queue = ReadyQueue()
    queue.put("a", UnitUrgency(5, 1, 0))
    queue.discard("a")
    assert "a" not in queue
    assert queue.pop() is None


def test_a_retry_policy_without_tries_is_refused():
    with pytest.raises(Rejected, match="failures_max"):
        FailurePolicy(failures_max=0)
