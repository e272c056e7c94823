"""Workers, coordinators and Spark killed at random moments: nothing is lost, twice or leaked."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from penstock.tables.retry import RetryPolicy
from penstock.testing.seeds import seeded, seeds
from tests.integration.postgres import KINDS
from tests.integration.tables_spark.crash import Run
from tests.integration.tables_spark.place import SparkPlace

KILLS = int(os.environ.get("PENSTOCK_KILLS") or 3)
RETRY = RetryPolicy(base_ms=20, cap_ms=50, deaths_max=1_000)


@pytest.mark.parametrize("seed", seeds(1))
def test_killed_at_any_moment_nothing_is_lost_twice_or_leaked(
    places: Callable[..., SparkPlace], seed: int
) -> None:
    with seeded(seed) as random:
        place = places(KINDS[-1], lease_ms=5_000, retry=RETRY)
        run = Run(place, random)
        try:
            for _ in range(KILLS):
                run.attack(("worker", "worker", "coordinator"))
            run.settle()
        finally:
            run.close()


def test_spark_dies_and_comes_back_and_nobody_outlives_the_coordinator(
    places: Callable[..., SparkPlace],
) -> None:
    with seeded(1) as random:
        place = places(own=True, lease_ms=5_000, retry=RETRY)
        run = Run(place, random)
        try:
            run.attack(("jvm",))
            assert run.kills == {"jvm": 1}
            run.settle()
        finally:
            run.close()
