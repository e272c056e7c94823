"""Coordinators with worker processes on real Spark: side by side, within the budget."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from penstock.app.tables import Warehouse
from penstock.tables.core.history import RefreshOutcome
from penstock.tables.core.jobs import RefreshJob
from penstock.tables.core.model import Mode, Status
from tests.integration.postgres import KINDS
from tests.integration.spark.refresh.place import SparkPlace

EVERY = "20ms"


def test_independent_units_overlap_and_a_reader_starts_when_its_own_upstream_ends(
    places: Callable[..., SparkPlace], kind: str
) -> None:
    place = places(kind)
    warehouse = place.warehouse
    place.write("raw", range(10))
    for name in ("a", "b"):
        place.fault(name, "hold")
        warehouse.create(name, "SELECT id FROM raw WHERE id > 1", schedule=EVERY)
    warehouse.create("below", "SELECT max(id) AS m FROM a", schedule=EVERY)
    seen = Most(warehouse)
    with warehouse.coordinator():
        held = [place.faults / f"{name}.held" for name in ("a", "b")]
        place.until(seen(lambda: all(file.exists() for file in held)), "a and b side by side")
        assert sum(warehouse.pool().permits.values()) == 2
        place.fault("a", None)
        place.until(seen(lambda: "below" in place.frontiers()), "below, while b still runs")
        assert "b" not in place.frontiers(), "no level is waited for"
        place.fault("b", None)
        place.until(seen(place.fresh))
    jobs = {job.root: job for job in reversed(warehouse.jobs())}
    (ended, began) = jobs["a"].finished_at_ms, jobs["below"].enqueued_at_ms
    assert ended is not None
    assert ended <= began
    assert seen.most == 2
    assert warehouse.pool().permits == {}
    place.check_contents()


class Most:
    """Counts how many refreshes run at a time, whenever something else is looked at."""

    def __init__(self, *warehouses: Warehouse) -> None:
        self._warehouses = warehouses
        self.most = 0

    def __call__(self, condition: Callable[[], bool]) -> Callable[[], bool]:
        def look() -> bool:
            live = [job for w in self._warehouses for job in w.jobs(live_only=True)]
            self.most = max(self.most, len(live))
            return condition()

        return look


@pytest.mark.slow
def test_two_coordinators_never_run_more_than_their_pool_holds(
    places: Callable[..., SparkPlace], new_address: Callable[[str], str]
) -> None:
    pool = new_address(KINDS[-1])
    both = [places(pool=pool, max_workers=1) for _ in range(2)]
    for place in both:
        place.write("raw", range(3))
        for name in ("a", "b"):
            place.warehouse.create(name, "SELECT id FROM raw", schedule=EVERY)
    with both[0].warehouse.coordinator(), both[1].warehouse.coordinator():
        for number in range(2):
            for place in both:
                place.write("raw", [number])
            both[0].until(lambda: all(place.fresh() for place in both), "both to be fresh")
    spans = sorted(span for place in both for job in place.warehouse.jobs() for span in ran(job))
    assert len(spans) >= 6
    for (_, end), (start, _) in pairwise(spans):
        assert start >= end, "one permit, one refresh at a time"
    for place in both:
        place.check_contents()


def ran(job: RefreshJob) -> list[tuple[int, int]]:
    if job.started_at_ms is None or job.finished_at_ms is None:
        return []
    return [(job.started_at_ms, job.finished_at_ms)]


@pytest.mark.slow
def test_a_failing_branch_leaves_the_others_alone(places: Callable[..., SparkPlace]) -> None:
    place = places()
    warehouse = place.warehouse
    place.write("raw", [1, 2])
    queries = {
        "missing": "SELECT nothing(id) AS n FROM raw",
        "divides": "SELECT 1 / (id - 1) AS x FROM raw",
        "well": "SELECT id FROM raw",
        "below_missing": "SELECT count(*) AS n FROM missing",
        "below_well": "SELECT count(*) AS n FROM well",
    }
    for name, query in queries.items():
        warehouse.create(name, query, schedule=EVERY)
    with warehouse.coordinator():
        place.until(lambda: warehouse.table("missing").status is Status.ERROR, "ERROR")
        place.until(lambda: warehouse.table("divides").status is Status.SUSPENDED, "SUSPENDED")
        place.until(lambda: "below_well" in place.frontiers(), "the branch that is well")
        place.write("raw", [3])
        place.until(lambda: place.rows("below_well") == {(3,): 1}, "it to go on")
    assert warehouse.table("below_missing").status is Status.ACTIVE
    assert len(warehouse.history("missing")) == 1
    (last, *_) = warehouse.history("divides")
    assert last.outcome is RefreshOutcome.FAILED
    assert last.reason_text.startswith("Division by zero")
    assert (
        "no function 'nothing' (line 1, column 8: nothing(id))"
        in warehouse.history("missing")[0].reason_text
    )


@pytest.mark.slow
def test_all_modes_and_numbers_of_workers_make_the_same(places: Callable[..., SparkPlace]) -> None:
    found = {}
    for mode, workers in (("off", 1), ("dry_run", 1), ("on", 1), ("on", 4)):
        place = places(
            parallel_refresh_mode=mode, max_concurrent_refreshes=workers, max_workers=workers
        )
        found[mode, workers] = story(place)
    first, *others = found.values()
    assert all(other == first for other in others)
    assert {executed for _, _, executed, *_ in first[1]} == {Mode.FULL}


def story(place: SparkPlace) -> Any:
    """What two rounds of requests leave: contents, history, number of jobs."""
    warehouse = place.warehouse
    place.write("raw", range(40))
    queries = {
        "a": "SELECT id FROM raw WHERE id % 2 = 0",
        "b": "SELECT id + 1 AS id FROM raw",
        "c": "SELECT id FROM a JOIN b USING (id)",
        "d": "SELECT count(*) AS n FROM c",
        "alone": "SELECT max(id) AS m FROM raw",
    }
    for name, query in queries.items():
        warehouse.create(name, query, schedule="on demand")
    with warehouse.coordinator():
        place.until(lambda: warehouse.health().state.value == "ok")
        for number in (50, 51):
            place.write("raw", [number])
            for name in ("a", "d", "alone"):
                assert warehouse.refresh(name).ok
    place.check_contents()
    history = [
        (r.table, r.outcome, r.executed, r.reason, r.rows_read, r.rows_written, r.delta_rows)
        for r in warehouse.history()
    ]
    return {name: place.rows(name) for name in queries}, sorted(history), len(warehouse.jobs())
