"""Workers and coordinators killed at random moments: nothing is lost, twice or leaked."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from random import Random

import pytest

from penstock.lake.changes import parse
from penstock.tables.history import Outcome
from penstock.tables.retry import RetryPolicy
from penstock.testing.seeds import seeded, seeds
from tests.integration.tables.node import kill, start, workers_of
from tests.integration.tables.place import Place

KILLS = int(os.environ.get("PENSTOCK_KILLS") or 8)
TABLES = ("left_side", "right_side", "joined", "followed", "plain", "both")


def build(place: Place) -> None:
    for source in ("raw_a", "raw_b"):
        place.write(source, [1])
    every = "30ms"
    create = place.warehouse.create
    create("left_side", "SELECT id, id * 2 AS twice FROM raw_a", schedule=every)
    create("right_side", "SELECT id, id + 1 AS next FROM raw_a", schedule=every)
    create(
        "joined", "SELECT id, twice, next FROM left_side JOIN right_side USING (id)", schedule=every
    )
    create("followed", "SELECT count(*) AS n FROM joined", mode="immediate")
    create("plain", "SELECT id FROM raw_b", schedule=every)
    create("both", "SELECT p.id FROM plain p JOIN joined j ON p.id = j.id", schedule=every)


@pytest.mark.parametrize("seed", seeds(1))
def test_killed_at_any_moment_nothing_is_lost_twice_or_leaked(
    places: Callable[..., Place], kind: str, seed: int
) -> None:
    with seeded(seed) as random:
        retry = RetryPolicy(base_ms=20, cap_ms=50, deaths_max=1_000)
        place = places(kind, lease_ms=2_000, retry=retry, delta=kind == "sqlite")
        build(place)
        node = start(place)
        try:
            for _ in range(KILLS):
                node = chaos(place, node, random)
            for table in TABLES:
                place.fault(table, None)
                place.warehouse.resume(table)
            place.until(place.fresh, "all tables to be fresh")
            place.until(lambda: not place.warehouse.jobs(live_only=True), "jobs to end")
            check(place)
        finally:
            kill(node.pid)
            node.wait()
        # The workers notice that their coordinator is gone.
        assert place.warehouse.pool().permits == {}


def chaos(place: Place, node: subprocess.Popen[bytes], random: Random) -> subprocess.Popen[bytes]:
    place.fault(random.choice(TABLES), random.choice((None, "slow 20", "slow 60", "retryable")))
    for _ in range(random.randint(1, 3)):
        place.write(random.choice(("raw_a", "raw_b")), [random.randrange(1_000)])
        time.sleep(random.random() * 0.15)  # chance, not waiting: the kill comes at any step
    workers = workers_of(node.pid)
    if random.random() < 0.35 or not workers:
        place.until(lambda: workers_of(node.pid) or node.poll() is not None, "workers to be there")
        kill(node.pid)
        node.wait()
        return start(place)
    kill(random.choice(workers))
    return node


def check(place: Place) -> None:
    place.check_contents()
    assert place.lake.query("SELECT count(*) FROM penstock_locks") == [(0,)]
    place.until(
        lambda: place.lake.query("SELECT count(*) FROM penstock_lake_writers") == [(0,)],
        "reservations to be given back",
    )
    assert place.warehouse.pool().permits == {}, "permits without work"
    check_history(place)
    check_files(place)


def check_history(place: Place) -> None:
    """Each change of a table is one refresh on record, and each such refresh changed it once."""
    noted: dict[str, list[int]] = {}
    for record in place.warehouse.history(limit=100_000):
        if record.outcome is Outcome.SUCCEEDED and record.snapshot is not None:
            noted.setdefault(record.table, []).append(record.snapshot)
    changes = place.lake.query("SELECT snapshot_id, changes_made FROM ducklake_snapshot_changes")
    for table in place.warehouse.tables():
        number = place.lake.table(table.name).id
        kinds = ("inserted_into_table", "deleted_from_table", "inlined_delete")
        changed = {at for at, text in changes if number in parse(text).ids(*kinds)}
        assert changed == set(noted[table.name]), table.name
    for left, right in (("left_side", "joined"), ("joined", "followed")):
        ours, theirs = (
            {r.job_id for r in place.warehouse.history(name, limit=100_000) if r.executed}
            for name in (left, right)
        )
        assert ours == theirs, f"{left} and {right} are one unit"


def check_files(place: Place) -> None:
    """What dead writers left is swept, and nothing else is."""
    place.warehouse.sweep(grace_ms=-60_000)
    place.check_contents()
    named = {file.path for info in place.lake.tables() for file in place.lake.table_at(info).files}
    stored = {file.path for file in place.lake.storage.files(place.lake.data_path)}
    assert named <= stored
    old = place.lake.query("SELECT path FROM ducklake_data_file")
    deletes = place.lake.query("SELECT path FROM ducklake_delete_file")
    merged = place.lake.query("SELECT path FROM ducklake_files_scheduled_for_deletion")
    assert len(stored) == len(old) + len(deletes) + len(merged)
