"""Workers and coordinators killed at random moments: nothing is lost, twice or leaked."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from random import Random

import pytest

from penstock.tables.core.failures import FailurePolicy
from penstock.testing.seeds import seeded, seeds
from tests.integration.tables.attacked import SOURCES, TABLES, build, check, glance
from tests.integration.tables.node import kill, start, workers_of
from tests.integration.tables.place import Place

KILLS = int(os.environ.get("PENSTOCK_KILLS") or 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(1))
def test_killed_at_any_moment_nothing_is_lost_twice_or_leaked(
    places: Callable[..., Place], kind: str, seed: int
) -> None:
    with seeded(seed) as random:
        retry = FailurePolicy(base_ms=20, cap_ms=50, deaths_max=1_000)
        place = places(kind, lease_ms=2_000, retry=retry, delta=kind == "sqlite")
        build(place)
        node = start(place)
        try:
            for _ in range(KILLS):
                node = chaos(place, node, random)
                glance(place)
            for table in TABLES:
                place.fault(table, None)
                place.warehouse.resume(table)
            place.until(place.fresh, "all tables to be fresh")
            check(place)
        finally:
            kill(node.pid)
            node.wait()
        # The workers notice that their coordinator is gone.
        assert place.warehouse.pool().permits == {}


def chaos(place: Place, node: subprocess.Popen[bytes], random: Random) -> subprocess.Popen[bytes]:
    place.fault(random.choice(TABLES), random.choice((None, "slow 20", "slow 60", "retryable")))
    for _ in range(random.randint(1, 3)):
        place.write(random.choice(SOURCES), [random.randrange(1_000)])
        time.sleep(random.random() * 0.15)  # chance, not waiting: the kill comes at any step
    workers = workers_of(node.pid)
    if random.random() < 0.35 or not workers:
        place.until(lambda: workers_of(node.pid) or node.poll() is not None, "workers to be there")
        kill(node.pid)
        node.wait()
        return start(place)
    kill(random.choice(workers))
    return node
