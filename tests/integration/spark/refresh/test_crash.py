"""Workers, coordinators and Spark killed at random moments: nothing is lost, twice or leaked."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from penstock.tables.core.failures import FailurePolicy
from penstock.tables.core.model import Mode
from penstock.testing.seeds import seeded, seeds
from tests.integration.postgres import KINDS
from tests.integration.spark.one import WITH_OUR_CLASSES, WITHOUT, one_spark
from tests.integration.spark.refresh.crash import Run
from tests.integration.spark.refresh.node import below, is_gone, jvms_of, start
from tests.integration.spark.refresh.place import SparkPlace
from tests.integration.tables.node import kill

KILLS = int(os.environ.get("PENSTOCK_KILLS") or 3)
RETRY = FailurePolicy(base_ms=20, cap_ms=50, deaths_max=1_000)


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(1))
def test_killed_at_a_step_of_a_differential_refresh_contents_and_feeds_agree(
    places: Callable[..., SparkPlace], seed: int
) -> None:
    with seeded(seed) as random:
        place = places(lease_ms=5_000, retry=RETRY)
        run = Run(place, random, mode="differential")
        try:
            for number in range(2 * KILLS):
                run.attack(("worker at a step",))
                if number % 50 == 49:
                    run.settle()
            run.settle()
            executed = {record.executed for record in place.warehouse.history("plain")}
            assert Mode.DIFFERENTIAL in executed
        finally:
            run.close()


@pytest.mark.slow
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
