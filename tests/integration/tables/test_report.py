"""What people are told of a warehouse: what failed, what is missing, and who is gone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.app.tables import Warehouse
from penstock.tables.coordinator.lease import take_lease
from penstock.tables.coordinator.session import new_identity
from penstock.tables.core.failures import FailurePolicy
from penstock.tables.core.health import HealthState
from penstock.tables.core.verdict import Reason
from tests.integration.tables import node
from tests.integration.tables.place import Place

EVERY = "20ms"


@pytest.fixture
def place(places: Callable[..., Place]) -> Place:
    return places(parallel_refresh_mode="off")


def reason(warehouse: Warehouse, table: str = "a") -> Reason:
    return warehouse.why(table).reason


def test_without_a_coordinator_nothing_may_run_now(place: Place) -> None:
    warehouse = place.warehouse
    place.write("raw", [1])
    warehouse.create("a", "SELECT id FROM raw", schedule=EVERY)
    warehouse.create("b", "SELECT id FROM raw", schedule="on demand")
    rows = {row.table: row for row in warehouse.status()}
    assert rows["a"].reason is Reason.NO_COORDINATOR
    assert rows["a"].waiting_for == "no coordinator is running: start one with `penstock table run`"
    assert rows["b"].reason is Reason.ON_DEMAND
    assert warehouse.refresh("a").ok
    (row, _) = warehouse.status()
    assert row.reason is Reason.NO_COORDINATOR
    made = warehouse.history("a")[0].started_at_ms
    assert row.fresh_ms == made, "nobody has looked since it was made"


def test_a_coordinator_that_was_killed_has_no_workers_and_no_jobs(
    places: Callable[..., Place], kind: str
) -> None:
    place = places(kind)
    warehouse = place.warehouse
    place.write("raw", [1])
    place.fault("a", "hold")
    warehouse.create("a", "SELECT id FROM raw", schedule=EVERY)
    process = node.start(place)
    place.until(lambda: warehouse.pool().running, "a job to be shown")
    assert warehouse.pool().workers
    assert [job.unit_key for job in warehouse.jobs(live_only=True)] == ["table:a"]
    assert reason(warehouse) is Reason.IN_FLIGHT
    node.kill(process.pid)
    process.wait(30)
    assert warehouse.health().state is HealthState.NOT_RUNNING
    place.until(lambda: reason(warehouse) is Reason.NO_COORDINATOR, "its workers to leave")
    seen = warehouse.pool()
    assert (seen.pool, seen.workers, seen.running, seen.permits) == (None, (), (), {})
    assert warehouse.jobs(live_only=True) == []
    (job,) = warehouse.jobs()
    assert job.status.value == "CANCELLED"
    assert "is gone" in (job.outcome_detail or "")
    assert warehouse.drain(), "nothing runs that could be waited for"


def test_a_coordinator_that_has_just_begun_is_starting_whatever_the_last_one_said(
    place: Place,
) -> None:
    warehouse, store = place.warehouse, place.warehouse._store
    with warehouse.coordinator():
        place.until(lambda: warehouse.health().state is HealthState.OK, "it to be well")
    assert warehouse.health().state is HealthState.NOT_RUNNING
    now_ms = warehouse._clock.now_ms()
    assert take_lease(store, new_identity(store.warehouse), now_ms=now_ms, lease_ms=60_000)
    assert warehouse.health().state is HealthState.STARTING


def test_a_failure_is_told_with_its_error_its_attempt_and_the_next_try(
    places: Callable[..., Place],
) -> None:
    retry = FailurePolicy(base_ms=60_000, cap_ms=60_000)
    place = places(parallel_refresh_mode="off", retry=retry)
    warehouse = place.warehouse
    place.write("raw", [1])
    place.fault("a", "retryable")
    warehouse.create("a", "SELECT id FROM raw", schedule=EVERY)
    warehouse.create("b", "SELECT id FROM a", schedule=EVERY)
    error = "OSError: a could not be read"
    with warehouse.coordinator():
        place.until(lambda: warehouse.health().state is HealthState.DEGRADED, "a to have failed")
        a, b = warehouse.status()
        assert (a.reason, a.failures, a.attempt, a.error) == (Reason.BACKING_OFF, 1, 2, error)
        assert a.retry_at_ms is not None
        assert "(attempt 2)" in a.waiting_for
        assert a.waiting_for.endswith(error)
        assert warehouse.why("a").text.endswith(error)
        assert b.reason is Reason.UPSTREAM_FAILED
        assert "table:a failed and will be tried again in" in b.waiting_for
        assert b.waiting_for.endswith(error)
        text = warehouse.health().text
        assert text.startswith("1 table is not kept fresh: a failed, trying again in")
        assert text.endswith(error)
    (a, _) = warehouse.status()
    assert (a.failures, a.error) == (1, error), "what is on record is told without a coordinator"


def test_a_table_that_stands_still_counts_its_failures_also_after_a_restart(place: Place) -> None:
    warehouse = place.warehouse
    place.write("raw", [1])
    place.fault("a", "retryable")
    warehouse.create("a", "SELECT id FROM raw", schedule=EVERY)
    error = "OSError: a could not be read"
    for _ in range(2):
        with warehouse.coordinator():
            place.until(lambda: reason(warehouse) is Reason.SUSPENDED, "a to be suspended")
            place.until(lambda: warehouse.health().state is HealthState.DEGRADED, "to be told")
            (row,) = warehouse.status()
            assert (row.failures, row.error) == (3, error)
            assert row.waiting_for.endswith(f"3 failures in a row, the last: {error}")
            assert warehouse.health().text == (f"1 table is not kept fresh: a SUSPENDED: {error}")
    place.fault("a", None)
    warehouse.resume("a")
    with warehouse.coordinator():
        place.until(place.fresh)
        place.until(lambda: warehouse.health().state is HealthState.OK, "it to be well")
        (row,) = warehouse.status()
        assert (row.failures, row.error) == (0, None)


def test_a_table_below_one_that_was_never_filled_says_which(place: Place) -> None:
    warehouse = place.warehouse
    place.write("raw", [1])
    place.fault("a", "permanent")
    warehouse.create("a", "SELECT id FROM raw", schedule=EVERY)
    warehouse.create("b", "SELECT id FROM a", schedule=EVERY)
    with warehouse.coordinator():
        place.until(lambda: reason(warehouse, "b") is Reason.UPSTREAM_EMPTY, "b to say so")
        text = warehouse.why("b").text
        assert text == "waiting for a, which was never filled: table:a is ERROR"
        assert warehouse.history("b") == [], "what cannot be read is not tried"
        answer = warehouse.refresh("b")
        assert not answer.ok
        assert "'a'" in answer.detail
        place.fault("a", None)
        warehouse.resume("a")
        place.until(place.fresh, "both to be filled")


def test_a_source_that_was_dropped_is_told_and_not_counted_as_fresh(place: Place) -> None:
    warehouse = place.warehouse
    place.write("raw", [1])
    warehouse.create("a", "SELECT id FROM raw", schedule=EVERY)
    with warehouse.coordinator():
        place.until(place.fresh)
        change = place.lake.begin()
        change.drop_table(place.lake.table("raw"))
        place.lake.commit(change)
        place.until(lambda: reason(warehouse) is Reason.SOURCE_MISSING, "it to be told")
        told = "its source raw is not in the lake"
        place.until(lambda: warehouse.health().text.endswith(told), "health to say so")
        (before,) = warehouse.status()
        assert before.waiting_for == told
        answer = warehouse.refresh("a")
        assert not answer.ok
        assert "'raw'" in answer.detail
        (after,) = warehouse.status()
        assert after.fresh_ms == before.fresh_ms
        assert place.rows("a") == {(1,): 1}, "the last good contents stay"
        place.write("raw", [2])
        place.until(lambda: place.rows("a") == {(2,): 1}, "a to follow")


def test_a_refresh_names_how_long_it_waited_and_how_long_its_commit_took(
    places: Callable[..., Place], kind: str
) -> None:
    place = places(kind, max_concurrent_refreshes=1, max_workers=1)
    place.write("raw", [1])
    place.fault("a", "hold")
    place.warehouse.create("a", "SELECT id FROM raw", schedule=EVERY)
    place.warehouse.create("b", "SELECT id FROM raw", schedule="1h")
    with place.warehouse.coordinator():
        place.until((place.faults / "a.held").exists, "a to take the only slot")
        held_ms = place.warehouse._clock.now_ms()
        place.until(lambda: reason(place.warehouse, "b") is Reason.NO_BUDGET, "b to wait for it")
        waited_ms = place.warehouse._clock.now_ms() - held_ms
        place.fault("a", None)
        place.until(place.fresh)
        place.until(lambda: "commit" in timings(place, "b"), "the time of the commit")
    found = timings(place, "b")
    assert {"waiting", "claim", "inputs", "commit"} <= set(found)
    assert found["waiting"] >= waited_ms
    assert found["commit"] > 0
    with place.open() as here:
        place.write("raw", [2])
        assert here.refresh("b", here=True).ok
    assert {"waiting", "commit"} <= set(timings(place, "b"))


def timings(place: Place, table: str) -> dict[str, float]:
    return dict(place.warehouse.history(table, limit=1)[0].timings_ms)
