"""Workers, coordinators and Spark killed at random moments: nothing is lost, twice or leaked."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from penstock.tables.core.retry import RetryPolicy
from penstock.testing.seeds import seeded, seeds
from tests.integration.postgres import KINDS
from tests.integration.spark.one import WITH_OUR_CLASSES, WITHOUT, one_spark
from tests.integration.tables.node import kill
from tests.integration.tables_spark.crash import Run
from tests.integration.tables_spark.node import below, is_gone, jvms_of, start
from tests.integration.tables_spark.place import SparkPlace

KILLS = int(os.environ.get("PENSTOCK_KILLS") or 3)
RETRY = RetryPolicy(base_ms=20, cap_ms=50, deaths_max=1_000)


@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("kind", [WITH_OUR_CLASSES, WITHOUT])
def test_killed_at_any_moment_nothing_is_lost_twice_or_leaked(
    places: Callable[..., SparkPlace], kind: str, seed: int
) -> None:
    with seeded(seed) as random:
        place = places(KINDS[-1], remote=one_spark(kind).url, lease_ms=5_000, retry=RETRY)
        run = Run(place, random)
        try:
            for _ in range(KILLS):
                run.attack(("worker", "worker at a step", "coordinator at a step"))
            run.settle()
        finally:
            run.close()


def test_spark_dies_and_comes_back_and_nobody_outlives_the_coordinator(
    places: Callable[..., SparkPlace],
) -> None:
    place = places(own=True, lease_ms=5_000, retry=RETRY)
    place.write("raw", [1])
    place.warehouse.create("made", "SELECT id FROM raw", schedule="30ms")
    node = start(place)
    try:
        place.until(lambda: "made" in place.frontiers(), "the first contents")
        (first,) = jvms_of(node.pid)
        kill(first)
        place.write("raw", [2])
        place.until(place.fresh, "the next Spark to make it fresh")
        (second,) = jvms_of(node.pid)
        assert second != first
        assert place.warehouse.table("made").status.value == "ACTIVE"
    finally:
        left = below(node.pid)
        kill(node.pid)
        node.wait()
    assert second in left
    place.until(lambda: all(is_gone(pid) for pid in left), "nobody to be left behind")
    place.check_contents()
