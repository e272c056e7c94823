"""Memory: neither what the windows allow nor what is really in flight exceeds the budget."""

from __future__ import annotations

from random import Random

import pytest

from penstock.flow.planner import PlannerPolicy
from penstock.kernel.errors import Rejected
from penstock.kernel.units import MIB
from penstock.metering.shapes import Steady
from penstock.testing import seeded, seeds
from tests.simulator.generate import draw_services, draw_shape
from tests.simulator.latency import Uniform
from tests.simulator.pipeline import STAGES, Pipeline, Settings
from tests.simulator.stage import Batches

BUDGET_BYTES = 64 * MIB


def squeezed(chance: Random, seed: int) -> Pipeline:
    """Windows want one and a half times the budget; store is the slowest, so all of them fill."""
    services = draw_services(chance)
    services = tuple(sorted(services, key=lambda service: -service.capacity_per_s))
    capacity_per_s = services[-1].capacity_per_s
    shape = draw_shape(
        chance,
        chance.choice(("square", "sawtooth", "random")),
        1.5 * capacity_per_s,
        3 * capacity_per_s,
    )
    factors = tuple(chance.uniform(0.5, 2.0) for _ in STAGES)
    item_bytes = 1.5 * BUDGET_BYTES / (4_096 * sum(factors))
    policy = PlannerPolicy(
        stages=STAGES, growth=chance.choice(("aimd", "cubic")), budget_bytes=BUDGET_BYTES
    )
    settings = Settings(
        services, shape, policy, item_bytes=item_bytes, item_spread=0.8, bytes_factors=factors
    )
    return Pipeline(settings, seed)


def planned_bytes(pipeline: Pipeline) -> float:
    return sum(channel.window * max(channel.bytes_per_slot, 1) for channel in pipeline.channels)


@pytest.mark.parametrize("seed", seeds(6))
def test_the_budget_holds_in_plan_and_in_fact_with_one_warning(seed):
    with seeded(seed) as chance:
        pipeline = squeezed(chance, seed)
        for _ in range(40):
            pipeline.run(1_000)
            assert planned_bytes(pipeline) <= BUDGET_BYTES
        assert 0.4 * BUDGET_BYTES < pipeline.in_flight_bytes_max <= BUDGET_BYTES
        assert len(pipeline.warnings) <= 1


def test_growth_ends_at_the_budget_and_is_told_once():
    with seeded(2):
        batches = (Batches(Uniform(400, 600), 0.01, 10_000),) * 5
        policy = PlannerPolicy(stages=STAGES, budget_bytes=BUDGET_BYTES)
        pipeline = Pipeline(Settings(batches, Steady(20_000), policy, item_bytes=3_000), seed=2)
        planned = [planned_bytes(pipeline.run(1_000)) for _ in range(60)]
        assert max(channel.window for channel in pipeline.channels) > 4_096
        assert 0.95 * BUDGET_BYTES < max(planned) <= BUDGET_BYTES
        assert pipeline.in_flight_bytes_max <= BUDGET_BYTES
        assert len(pipeline.warnings) == 1


@pytest.mark.parametrize("factor", [0.25, 1.1])
def test_items_that_change_in_size_move_the_windows_within_a_second(factor):
    with seeded(3) as chance:
        pipeline = squeezed(chance, 3).run(10_000)
        pipeline.sizes.mean_bytes *= factor
        pipeline.run(1_100)
        assert planned_bytes(pipeline) <= BUDGET_BYTES
        pipeline.run(5_000)
        assert pipeline.in_flight_bytes <= BUDGET_BYTES


def test_start_fails_where_the_smallest_windows_do_not_fit():
    with seeded(4) as chance:
        settings = Settings(draw_services(chance), Steady(100), item_bytes=200_000)
        with pytest.raises(Rejected, match="take 977 MiB, more than the budget of 512 MiB"):
            Pipeline(settings, 4)
