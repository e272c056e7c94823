"""A coordinator with real worker processes: side by side, within its budget, whatever fails."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from penstock.app.tables import Warehouse
from penstock.tables.coordinator.loop import prune
from penstock.tables.core.history import RefreshOutcome
from penstock.tables.core.jobs import JobStatus, RefreshJob
from penstock.tables.core.model import Status
from penstock.tables.worker.claim import LockHeld
from tests.integration.tables.frail import FRAIL
from tests.integration.tables.node import children_of, kill
from tests.integration.tables.place import Place
from tests.waiting import wait_until

EVERY = "20ms"


def test_independent_tables_overlap_and_a_killed_worker_is_replaced(
    place: Place, warehouse: Warehouse
) -> None:
    place.write("raw", [1, 2])
    for name in ("a", "b"):
        place.fault(name, "hold")
        warehouse.create(name, "SELECT id FROM raw", schedule=EVERY)
    warehouse.create(
        "c", "SELECT a.id FROM a JOIN b USING (id)", schedule=EVERY, consistency="none"
    )
    with warehouse.coordinator():
        held = [place.faults / f"{name}.held" for name in ("a", "b")]
        place.until(lambda: all(file.exists() for file in held), "a and b to run side by side")
        running = warehouse.jobs(live_only=True)
        assert {job.unit_key for job in running} == {"table:a", "table:b"}
        assert sum(warehouse.pool().permits.values()) == 2
        place.until(lambda: warehouse.why("c").reason.value == "upstream_running")
        victim = next(job for job in running if job.root == "a")
        kill(int(pid_text(victim)))
        place.until(lambda: len(started(warehouse, "a")) == 2, "a to be tried again")
        for name in ("a", "b"):
            place.fault(name, None)
        place.until(place.fresh)
    jobs = {job.job_id: job for job in warehouse.jobs()}
    assert jobs[victim.job_id].status is JobStatus.RETRYABLE_FAILED
    assert [record.outcome for record in warehouse.history("a")] == [RefreshOutcome.SUCCEEDED]
    place.check_contents()
    assert warehouse.pool().permits == {}


def started(warehouse: Warehouse, table: str) -> list[Any]:
    return [job for job in warehouse.jobs() if job.root == table and job.started_at_ms is not None]


def test_a_forker_that_dies_twice_in_a_row_takes_no_worker_with_it(
    places: Callable[..., Place], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = places()
    frail = tmp_path / "frail"
    frail.write_text("0")
    monkeypatch.setenv(FRAIL, str(frail))
    warehouse = Warehouse.open(
        place.address, place.data_path, runner="tests.integration.tables.frail:make",
        runner_options=place.options, **place.settings,
    )  # fmt: skip
    place.write("raw", [1])
    place.fault("a", "hold")
    warehouse.create("a", "SELECT id FROM raw", schedule=EVERY)
    said: list[str] = []
    with warehouse, warehouse.coordinator(say=said.append):
        place.until((place.faults / "a.held").exists, "a to run")
        (job,) = warehouse.jobs(live_only=True)
        (forker,) = (pid for pid in children_of(os.getpid()) if children_of(pid))
        idle = {f"{pid}" for pid in children_of(forker)} - {pid_text(job)}
        frail.write_text("1")
        for pid in (forker, *map(int, idle)):
            kill(pid)
        place.until(lambda: frail.read_text() == "0", "the next one to die as well")
        warehouse.create("b", "SELECT id FROM raw", schedule=EVERY)
        place.until(lambda: "b" in place.frontiers(), "another worker")
        assert [job.job_id] == [other.job_id for other in warehouse.jobs(live_only=True)]
        place.fault("a", None)
        place.until(place.fresh)
    assert warehouse_lives(said) == 1, said
    place.check_contents()


def pid_text(job: RefreshJob) -> str:
    assert job.worker is not None
    return job.worker.partition("/")[2].partition("-")[0]


def warehouse_lives(said: list[str]) -> int:
    return sum(line.startswith("coordinating as") for line in said)


@pytest.mark.parametrize("mode", ["off", "on"])
def test_failures_back_off_suspend_or_stop_and_others_never_notice(
    places: Callable[..., Place], mode: str
) -> None:
    place = places("sqlite" if mode == "on" else "postgres", parallel_refresh_mode=mode)
    warehouse = place.warehouse
    place.write("raw", [1])
    place.fault("wrong", "permanent")
    place.fault("shaky", "retryable")
    for name in ("wrong", "shaky", "well"):
        warehouse.create(name, "SELECT id FROM raw", schedule=EVERY)
    warehouse.create("below", "SELECT id FROM well", schedule=EVERY)
    warehouse.create("reads_wrong", "SELECT id FROM wrong", schedule=EVERY)
    with warehouse.coordinator():
        place.until(lambda: warehouse.table("wrong").status is Status.ERROR, "ERROR")
        place.until(lambda: warehouse.table("shaky").status is Status.SUSPENDED, "SUSPENDED")
        place.until(lambda: place.rows("below") == {(1,): 1} if made(place, "below") else False)
        assert warehouse.table("reads_wrong").status is Status.ACTIVE
        failed = [r for r in warehouse.history("shaky") if r.outcome is RefreshOutcome.FAILED]
        assert len(failed) == 3
        assert len(warehouse.history("wrong")) == 1
        place.until(lambda: "3 failures in a row" in warehouse.why("shaky").text, "it to be told")
        for name in ("wrong", "shaky"):
            place.fault(name, None)
            warehouse.resume(name)
        place.write("raw", [2])
        place.until(place.fresh, "what was resumed to catch up")
        warehouse.pause("well")
        place.until(lambda: warehouse.why("well").reason.value in ("paused", "not_due"))
        place.write("raw", [3])
        place.until(lambda: (3,) in place.rows("shaky"))
        assert (3,) not in place.rows("well")
        warehouse.resume("well")
        place.until(place.fresh)
    place.check_contents()


def made(place: Place, table: str) -> bool:
    return table in place.frontiers()


def test_a_refresh_by_hand_and_the_coordinator_share_locks(
    places: Callable[..., Place], kind: str
) -> None:
    place = places(kind, parallel_refresh_mode="off")
    warehouse = place.warehouse
    place.write("raw", [1])
    warehouse.create("a", "SELECT id FROM raw", schedule=EVERY)
    place.fault("a", "hold")
    other = place.open()
    answers: list[Any] = []
    by_hand = threading.Thread(target=lambda: answers.append(other.refresh("a", here=True)))
    by_hand.start()
    place.until((place.faults / "a.held").exists, "the refresh by hand to run")
    with pytest.raises(LockHeld):
        warehouse.refresh("a", here=True)
    with warehouse.coordinator():
        place.until(lambda: warehouse.health().state.value == "ok")
        place.until(lambda: warehouse.why("a").reason.value == "lock_held", "the lock to be seen")
        place.fault("a", None)
        by_hand.join()
        assert answers == [(True, "refreshed")]
        place.until(lambda: not place.lake.query("SELECT * FROM penstock_locks"))
        place.write("raw", [2])
        place.until(place.fresh)
    other.close()
    outcomes = {record.outcome for record in warehouse.history("a")}
    assert outcomes == {RefreshOutcome.SUCCEEDED}, "a collision is no failure"
    place.check_contents()


def test_a_second_coordinator_waits_and_takes_over(places: Callable[..., Place], kind: str) -> None:
    place = places(kind, parallel_refresh_mode="off")
    warehouse, other = place.warehouse, place.open()
    place.write("raw", [1])
    warehouse.create("a", "SELECT id FROM raw", schedule=EVERY)
    said: list[str] = []
    with warehouse.coordinator():
        place.until(place.fresh)
        with other.coordinator(say=said.append):
            wait_until(lambda: said, "the second one to say that it waits")
            assert said[0].startswith("waiting for the lease of")
            assert warehouse.refresh("a", force=True).ok
    with other.coordinator(say=said.append):
        place.write("raw", [2])
        place.until(place.fresh)
        answer = other.refresh("a", force=True)
        assert answer == (True, "refreshed")
        assert not other.refresh("a").detail.startswith("refreshed")
    other.close()
    place.check_contents()


def test_two_warehouses_never_run_more_than_their_pool_holds(
    places: Callable[..., Place], new_address: Callable[[str], str], kind: str
) -> None:
    pool = new_address(kind)
    both = [places("sqlite", pool=pool, max_workers=1) for _ in range(2)]
    running_max = 0
    for place in both:
        place.write("raw", [1])
        for name in ("a", "b"):
            place.fault(name, "slow 30")
            place.warehouse.create(name, "SELECT id FROM raw", schedule=EVERY)
    with both[0].warehouse.coordinator(), both[1].warehouse.coordinator():
        for number in range(2, 4):
            for place in both:
                place.write("raw", [number])

            def fresh() -> bool:
                nonlocal running_max
                live = [job for p in both for job in p.warehouse.jobs(live_only=True)]
                running_max = max(running_max, len(live))
                return all(place.fresh() for place in both)

            wait_until(fresh, "both to be fresh")
    assert running_max <= 2, "of two looks at two databases each may see one"
    overlaps(both)
    for place in both:
        place.check_contents()


def overlaps(both: list[Place]) -> None:
    """By the records of both, no two refreshes ran at the same time under one permit."""
    spans = sorted(
        (job.started_at_ms, job.finished_at_ms)
        for place in both
        for job in place.warehouse.jobs()
        if job.started_at_ms is not None and job.finished_at_ms is not None
    )
    for (_, end), (start, _) in pairwise(spans):
        assert start >= end


def test_all_modes_make_the_same_contents_and_history(places: Callable[..., Place]) -> None:
    found = {}
    for mode in ("off", "dry_run", "on"):
        place = places(parallel_refresh_mode=mode)
        warehouse = place.warehouse
        place.write("raw", [1])
        warehouse.create("a", "SELECT id FROM raw", schedule="on demand")
        warehouse.create("b", "SELECT id + 1 AS id FROM raw", schedule="on demand")
        warehouse.create("c", "SELECT id FROM a JOIN b USING (id)", schedule="on demand")
        warehouse.create("d", "SELECT count(*) AS n FROM c", schedule="on demand")
        with warehouse.coordinator():
            wait_until(lambda w=warehouse: w.health().state.value == "ok")
            for number in (2, 3, 9):
                place.write("raw", [number])
                for name in ("a", "d"):
                    assert warehouse.refresh(name).ok
            place.fault("d", "permanent")
            assert not warehouse.refresh("d", force=True).ok
        rows = {name: place.rows(name) for name in "abcd"}
        history = [
            (r.table, r.outcome, r.executed, r.reason, r.rows_read, r.rows_written)
            for r in reversed(warehouse.history())
        ]
        found[mode] = (rows, sorted(history), len(warehouse.jobs()))
        place.check_contents()
        would = warehouse.lake.query("SELECT count(*) FROM penstock_would_dispatch")
        assert (would[0][0] > 0) == (mode == "dry_run")
    assert found["off"] == found["dry_run"] == found["on"]


def test_old_jobs_are_forgotten_and_numbers_are_not_used_again(
    places: Callable[..., Place], kind: str
) -> None:
    place = places(kind, parallel_refresh_mode="off")
    warehouse = place.warehouse
    place.write("raw", [1])
    warehouse.create("a", "SELECT id FROM raw", schedule=EVERY)
    with warehouse.coordinator():
        place.until(place.fresh)
    (job,) = warehouse.jobs()
    prune(warehouse._store, warehouse.settings, job.enqueued_at_ms + 1)
    assert warehouse.jobs() == [job]
    prune(warehouse._store, warehouse.settings, job.enqueued_at_ms + 10 * 3_600_000)
    assert warehouse.jobs() == []
    place.write("raw", [2])
    with warehouse.coordinator():
        place.until(place.fresh)
    assert warehouse.jobs()[0].job_id > job.job_id


@pytest.mark.parametrize("mode", ["off", "on"])
def test_a_coordinator_that_ends_starts_nothing_new_though_something_is_always_due(
    places: Callable[..., Place], mode: str
) -> None:
    place = places(parallel_refresh_mode=mode)
    place.write("raw", [1])
    place.warehouse.create("a", "SELECT id, random() AS r FROM raw", schedule=EVERY)
    with place.warehouse.coordinator():
        place.until(lambda: len(place.warehouse.jobs()) > 2, "refreshes though nothing changed")
        before = len(place.warehouse.jobs())
    assert len(place.warehouse.jobs()) <= before + 2, "what was about to be started"


def test_a_drained_warehouse_starts_nothing_and_a_drop_while_running_is_cancelled(
    place: Place, warehouse: Warehouse
) -> None:
    place.write("raw", [1])
    place.fault("a", "hold")
    warehouse.create("a", "SELECT id FROM raw", schedule=EVERY)
    with warehouse.coordinator():
        place.until((place.faults / "a.held").exists, "a to run")
        (job,) = warehouse.jobs(live_only=True)
        warehouse.drop("a")
        place.until(lambda: not warehouse.jobs(live_only=True), "the job to be cancelled")
        assert warehouse.jobs()[0].status is JobStatus.CANCELLED
        assert warehouse.jobs()[0].job_id == job.job_id
        place.fault("a", None)
        assert warehouse.drain(wait_ms=10_000)
        warehouse.create("b", "SELECT id FROM raw", schedule=EVERY)
        place.until(lambda: warehouse.why("b").reason.value == "draining")
        warehouse.undrain()
        place.until(place.fresh)
    assert {info.name for info in place.lake.tables()} == {"raw", "b"}
