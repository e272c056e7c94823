"""The coordinator's core in virtual time, under many seeds. PENSTOCK_SEED replays one run."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from penstock.tables.core.capacity import DispatchSettings, ParallelMode
from penstock.tables.core.model import define
from penstock.tables.core.schedule import CALCULATED, AtTimes, Every, parse_cron
from penstock.testing import seeded, seeds
from tests.sim.tables.world import SOURCES, Cluster, Faults, Warehouse, random_tables, units_of

RUNS = 8
PLENTY = 1_000
MINUTE_MS = 60_000
EVERY_MINUTE = AtTimes(parse_cron("* * * * *"))


def settings(mode: ParallelMode = ParallelMode.ON, running_max: int = PLENTY) -> DispatchSettings:
    return DispatchSettings(parallel_refresh_mode=mode, max_concurrent_refreshes=running_max)


@pytest.mark.parametrize("seed", seeds(RUNS))
def test_a_unit_starts_the_moment_its_last_upstream_ends(seed):
    with seeded(seed) as random:
        tables = random_tables(random, random.randint(2, 25))
        cluster = Cluster(PLENTY)
        warehouse = Warehouse(cluster, tables, settings(), seed=seed)
        cluster.run_until(MINUTE_MS)
        first = {}
        for run in warehouse.runs:
            first.setdefault(run.unit_key, run)
        for unit in units_of(tables):
            ends = [first[key].end_ms for key in unit.upstreams]
            assert first[unit.key].start_ms == max(ends, default=0)


@pytest.mark.parametrize("seed", seeds(RUNS))
def test_with_few_slots_work_is_never_left_lying_while_a_slot_is_free(seed):
    with seeded(seed) as random:
        tables = random_tables(random, random.randint(5, 25))
        slots = random.randint(1, 4)
        cluster = Cluster(slots)
        warehouse = Warehouse(cluster, tables, settings(), seed=seed)
        cluster.run_until(2 * MINUTE_MS)
        first = {}
        for run in warehouse.runs:
            first.setdefault(run.unit_key, run)
        units = units_of(tables)
        done = {}
        for unit in units:
            took_ms = warehouse.takes_ms(unit.key, 1)
            done[unit.key] = took_ms + max((done[key] for key in unit.upstreams), default=0)
        work_ms = sum(warehouse.takes_ms(unit.key, 1) for unit in units)
        # Graham's bound of a schedule that never leaves a slot free. Refreshes of early units that
        # are due again compete, but what was due first is served first.
        again_ms = sum(
            run.end_ms - run.start_ms
            for run in warehouse.runs
            if run is not first[run.unit_key] and run.start_ms <= max(done.values()) + work_ms
        )
        bound_ms = max(done.values()) + (work_ms + again_ms) / slots
        assert max(run.end_ms for run in first.values()) <= bound_ms


@pytest.mark.parametrize("seed", seeds(RUNS))
def test_a_failing_branch_leaves_the_timing_of_all_others_alone(seed):
    with seeded(seed) as random:
        schedules = (CALCULATED, Every(1_000), Every(2_500))
        tables = random_tables(random, random.randint(4, 20), schedules=schedules)
        units = units_of(tables)
        broken = random.choice([unit.key for unit in units])
        fault = random.choice(["fail", "permanent", "die"])
        touched = {broken}
        for unit in units:
            if touched & set(unit.upstreams):
                touched.add(unit.key)
        writes = [(random.randrange(20_000), random.choice(SOURCES)) for _ in range(30)]

        def starts(faults: Faults) -> list[tuple[str, int, int]]:
            cluster = Cluster(PLENTY)
            warehouse = Warehouse(cluster, tables, settings(), seed=seed, faults=faults)
            for at_ms, source in writes:
                cluster.at(at_ms, lambda s=source: warehouse.write(s))
            cluster.run_until(30_000)
            return sorted(
                (run.unit_key, run.start_ms, run.end_ms)
                for run in warehouse.runs
                if run.unit_key not in touched
            )

        sick = starts(Faults(lambda key, number: fault if key == broken and number > 1 else ""))
        assert sick == starts(Faults())


WAYS = {
    "off": settings(ParallelMode.OFF),
    "dry_run": settings(ParallelMode.DRY_RUN, 4),
    "one worker": settings(ParallelMode.ON, 1),
    "eight workers": settings(ParallelMode.ON, 8),
}


@pytest.mark.parametrize("seed", seeds(RUNS))
def test_contents_history_and_counts_are_the_same_in_all_modes_and_with_one_and_eight_workers(seed):
    with seeded(seed) as random:
        tables = random_tables(random, random.randint(2, 20), schedules=(EVERY_MINUTE,))
        # Writes between the minutes, so that each fire finds the same inputs in every mode.
        writes = [
            (minute * MINUTE_MS - random.randint(1, 30_000), random.choice(SOURCES))
            for minute in range(1, 6)
            for _ in range(random.randrange(3))
        ]
        found = {}
        for way, how in WAYS.items():
            cluster = Cluster(8)
            warehouse = Warehouse(cluster, tables, how, seed=seed)
            for at_ms, source in writes:
                cluster.at(at_ms, lambda s=source, w=warehouse: w.write(s))
            cluster.run_until(7 * MINUTE_MS)
            counts = Counter(run.unit_key for run in warehouse.runs)
            skips = sorted((skip.unit_key, skip.reason.value) for skip in warehouse.skips)
            assert warehouse.contents() == warehouse.expected()
            found[way] = (warehouse.contents(), counts, warehouse.history(), skips)
        assert all(each == found["off"] for each in found.values())


@pytest.mark.parametrize("seed", seeds(RUNS))
def test_contents_end_up_the_same_in_all_modes_whatever_the_schedules(seed):
    with seeded(seed) as random:
        schedules = (CALCULATED, Every(1_000), Every(5_000), EVERY_MINUTE)
        tables = random_tables(random, random.randint(2, 20), schedules=schedules)
        writes = [(random.randrange(60_000), random.choice(SOURCES)) for _ in range(60)]
        contents = []
        for how in WAYS.values():
            cluster = Cluster(8)
            warehouse = Warehouse(cluster, tables, how, seed=seed)
            for at_ms, source in writes:
                cluster.at(at_ms, lambda s=source, w=warehouse: w.write(s))
            # A table of every minute above one of a few seconds above one of every minute is a
            # minute behind it, and so on.
            cluster.run_until(12 * MINUTE_MS)
            assert warehouse.contents() == warehouse.expected()
            contents.append(warehouse.contents())
        assert all(each == contents[0] for each in contents)


@pytest.mark.parametrize("seed", seeds(RUNS))
def test_two_coordinators_never_run_more_than_the_pool_holds_and_both_get_their_work_done(seed):
    with seeded(seed) as random:
        cluster = Cluster(random.randint(1, 4))
        warehouses = [
            Warehouse(
                cluster,
                random_tables(random, random.randint(3, 15)),
                settings(running_max=random.randint(1, 4)),
                seed=seed + place,
                name=f"w{place}",
            )
            for place in range(2)
        ]
        for warehouse in warehouses:
            for _ in range(40):
                source = random.choice(SOURCES)
                cluster.at(random.randrange(60_000), lambda s=source, w=warehouse: w.write(s))
        cluster.run_until(4 * MINUTE_MS)  # the cluster checks the limits after every event
        for warehouse in warehouses:
            assert warehouse.contents() == warehouse.expected()
        assert cluster.pool.held() == {}


@pytest.mark.parametrize("seed", seeds(RUNS))
def test_a_saturating_coordinator_does_not_starve_the_other_one(seed):
    with seeded(seed) as random:
        cluster = Cluster(random.randint(1, 3))
        many = [define(f"copy_{n}", "SELECT * FROM raw_a", schedule="1ms") for n in range(12)]
        busy = Warehouse(cluster, many, settings(running_max=4), seed=seed, name="busy")
        few = random_tables(random, 3)
        small = Warehouse(cluster, few, settings(running_max=4), seed=seed, name="small")
        for at_ms in range(0, 30_000, 100):
            cluster.at(at_ms, lambda: busy.write("raw_a"))
        cluster.at(10_000, lambda: small.write("raw_a"))
        cluster.run_until(30_000)
        assert len(busy.coordinator.ready) > 4  # still saturated
        assert small.contents() == small.expected()


@pytest.mark.parametrize("seed", seeds(5))
def test_a_unit_below_units_that_are_always_busy_is_refreshed_all_the_same(seed):
    with seeded(seed):
        tables = [
            define("left_side", "SELECT * FROM raw_a", schedule="1ms"),
            define("right_side", "SELECT * FROM raw_b", schedule="1ms"),
            define(
                "below",
                "SELECT * FROM left_side, right_side",
                schedule="1s",
                consistency="none",
            ),
        ]
        cluster = Cluster(8)
        warehouse = Warehouse(cluster, tables, settings(), seed=seed)
        for at_ms in range(0, 20_000, 20):
            cluster.at(at_ms, lambda: (warehouse.write("raw_a"), warehouse.write("raw_b")))
        cluster.run_until(20_000)
        runs = [run for run in warehouse.runs if run.members == ("below",)]
        assert len(runs) >= 6


def test_the_seeds_differ():
    one, other = Random(1), Random(2)
    assert random_tables(one, 9) != random_tables(other, 9)
