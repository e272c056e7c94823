"""Groups that change together, on real Spark: all of it or nothing, whoever fails or dies."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from penstock.app.tables import Warehouse
from penstock.tables.core.history import RefreshOutcome
from penstock.tables.core.jobs import JobStatus
from penstock.testing.seeds import RUNS_VARIABLE
from tests.integration.lake.duck import Duck
from tests.integration.postgres import KINDS
from tests.integration.spark.refresh.place import SparkPlace

EVERY = "20ms"
MEMBERS = ("left_side", "right_side", "joined")
STEPS = ("start", "made", "commit", "statement 3", "statement 12", "statement 20", "committed")
LOOK = """SELECT (SELECT count(*) FROM left_side), (SELECT count(*) FROM right_side),
    (SELECT count(*) FROM joined)"""
ROUNDS = int(os.environ.get(RUNS_VARIABLE, "3"))
"""`PENSTOCK_RUNS=200` watches hundreds of refreshes."""


def build(place: SparkPlace) -> Warehouse:
    """A diamond over one source; its tables have one row for each of the source's."""
    place.write("raw", range(5))
    create = place.warehouse.create
    create("left_side", "SELECT id, id * 2 AS twice FROM raw", schedule=EVERY)
    create("right_side", "SELECT id, id + 1 AS next FROM raw", schedule=EVERY)
    create(
        "joined", "SELECT id, twice, next FROM left_side JOIN right_side USING (id)", schedule=EVERY
    )
    return place.warehouse


@pytest.mark.slow
def test_a_reader_never_sees_a_mix_while_the_group_is_refreshed(
    places: Callable[..., SparkPlace], kind: str
) -> None:
    place = places(kind)
    warehouse = build(place)
    seen: list[tuple[int, ...]] = []
    with warehouse.coordinator(), place.duck() as reader:

        def fresh() -> bool:
            seen.append(look(reader))
            assert len(set(seen[-1])) == 1, seen[-1]
            return place.fresh()

        place.until(place.fresh, "the group to be there")
        for number in range(ROUNDS):
            place.write("raw", [100 + number])
            place.until(fresh, "the group to be fresh")
    assert len(seen) > ROUNDS
    assert len(set(seen)) > 1
    tables_at: dict[int | None, set[str]] = {}
    for record in warehouse.history(limit=100 * ROUNDS):
        tables_at.setdefault(record.snapshot, set()).add(record.table)
    assert len(tables_at) > ROUNDS
    assert all(found == set(MEMBERS) for found in tables_at.values()), "all of them in one snapshot"
    place.check_contents()


def look(reader: Duck) -> tuple[int, ...]:
    return tuple(reader.rows(LOOK)[0].values())


def test_a_member_that_fails_leaves_every_member_as_it_was(
    places: Callable[..., SparkPlace],
) -> None:
    place = places(KINDS[-1])
    warehouse = build(place)
    with warehouse.coordinator(), place.duck() as reader:
        place.until(place.fresh, "the group to be there")
        before = place.frontiers()
        place.fault("joined", "retryable")
        place.write("raw", [7])
        place.until(lambda: warehouse.table("joined").status.value == "SUSPENDED", "suspension")
        assert place.frontiers() == before
        assert look(reader) == (5, 5, 5)
        failed = [r for r in warehouse.history() if r.outcome is RefreshOutcome.FAILED]
        assert {r.table for r in failed} == set(MEMBERS)
        assert "could not be read" in next(r for r in failed if r.table == "joined").reason_text
        assert "because joined failed" in next(
            r for r in failed if r.table == "left_side"
        ).reason_text  # fmt: skip
        place.fault("joined", None)
        warehouse.resume("joined")
        place.until(place.fresh, "what was resumed to catch up")
        assert look(reader) == (6, 6, 6)
    place.check_contents()
    swept = warehouse.sweep(grace_ms=-60_000)
    assert len(swept) >= 2, "files of the members that were made before the one that failed"
    place.check_contents()


@pytest.mark.slow
def test_a_worker_killed_at_any_step_leaves_nothing_half_applied(
    places: Callable[..., SparkPlace], kind: str
) -> None:
    place = places(kind, max_concurrent_refreshes=1, max_workers=1)
    warehouse = build(place)
    steps = STEPS if kind == "sqlite" else STEPS[::3]
    with warehouse.coordinator(), place.duck() as reader:
        place.until(place.fresh, "the group to be there")
        for number, step in enumerate(steps):
            member = MEMBERS[number % 3] if step in ("start", "made") else "joined"
            place.fault(member, f"die {step}")
            place.write("raw", [100 + number])

            def fresh(step: str = step) -> bool:
                counts = look(reader)
                assert len(set(counts)) == 1, (step, counts)
                return place.fresh()

            place.until(fresh, "the group to be fresh")
            fault = place.faults / member  # what is committed is fresh a moment before that
            place.until(lambda fault=fault: not fault.exists(), f"somebody to die at {step}")
            assert look(reader) == (6 + number,) * 3
    died = [job for job in warehouse.jobs() if job.status is JobStatus.RETRYABLE_FAILED]
    assert len(died) == len(steps) - 1, "the one that died after its commit had succeeded"
    assert warehouse.pool().permits == {}
    assert place.lake.query("SELECT count(*) FROM penstock_locks") == [(0,)]
    applied = [
        r.snapshot for r in warehouse.history("joined") if r.outcome is RefreshOutcome.SUCCEEDED
    ]
    assert len(applied) == len(set(applied)) == len(steps) + 1
    warehouse.sweep(grace_ms=-60_000)
    place.check_contents()
