"""One stage blocks completely: all above it are at the smallest window in 5 s, nothing is lost."""

from __future__ import annotations

from random import Random

import pytest

from penstock.flow.planner import PlannerPolicy
from penstock.metering.shapes import Steady
from penstock.testing import seeded, seeds
from tests.simulator.generate import draw_services
from tests.simulator.pipeline import STAGES, Pipeline, Settings

RUNS = 3


def running(chance: Random, seed: int) -> Pipeline:
    """A pipeline under load beyond its capacity, at windows from anywhere, about to be blocked."""
    services = draw_services(chance)
    capacity_per_s = min(service.capacity_per_s for service in services)
    growth = chance.choice(("aimd", "cubic"))
    policy = PlannerPolicy(stages=STAGES, growth=growth)
    pipeline = Pipeline(Settings(services, Steady(1.5 * capacity_per_s), policy), seed)
    pipeline.run(chance.randrange(1_000, 4_000, 10))
    pipeline.set_windows([chance.choice((1_024, chance.randint(1_024, 131_072))) for _ in STAGES])
    return pipeline.run(chance.randrange(0, 2_000, 10))


def block(pipeline: Pipeline, name: str, span_ms: int) -> None:
    pipeline.stage(name).blocked = True
    pipeline.run(span_ms)


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("seed", seeds(RUNS))
def test_the_blocked_stage_and_all_above_are_at_1024_within_five_seconds(name, seed):
    with seeded(seed) as chance:
        pipeline = running(chance, seed)
        block(pipeline, name, 5_000)
        windows = [channel.window for channel in pipeline.channels]
        assert set(windows[: STAGES.index(name) + 1]) == {1_024}


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("seed", seeds(RUNS))
def test_ten_seconds_after_its_release_every_window_is_back_where_it_was(name, seed):
    with seeded(seed) as chance:
        pipeline = running(chance, seed)
        before = [channel.window for channel in pipeline.channels]
        block(pipeline, name, chance.randrange(5_000, 15_000, 10))
        last = pipeline.seconds[-1].plan
        pipeline.stage(name).blocked = False
        pipeline.run(10_000)
        for number in range(STAGES.index(name) + 1):
            assert last.memory.stages[number].return_to >= 0.7 * before[number] > 0
            found = {each.plan.memory.windows[number] for each in list(pipeline.seconds)[-10:]}
            assert max(found) >= last.memory.stages[number].return_to


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("seed", seeds(RUNS))
def test_they_stay_there_while_it_is_blocked_and_everything_drains_after_release(name, seed):
    with seeded(seed) as chance:
        pipeline = running(chance, seed)
        block(pipeline, name, 5_000)
        for _ in range(5):
            pipeline.run(1_000)
            assert {c.window for c in pipeline.channels[: STAGES.index(name) + 1]} == {1_024}
        delivered = pipeline.delivered
        pipeline.stage(name).blocked = False
        pipeline.drain(within_ms=600_000)
        assert delivered < pipeline.delivered == pipeline.offered
        assert (pipeline.backlog, pipeline.in_flight) == (0, 0)


def test_a_blocked_stage_takes_in_no_more_than_its_window():
    with seeded(5) as chance:
        pipeline = running(chance, 5)
        pipeline.set_windows([4_096] * 5)
        pipeline.run(100)
        block(pipeline, "store", 60_000)
        assert all(channel.occupied <= 0.86 * 4_096 for channel in pipeline.channels)
        assert pipeline.backlog > 10_000, "the devices wait"


def test_an_idle_pipeline_is_not_stalled():
    with seeded(6) as chance:
        pipeline = Pipeline(Settings(draw_services(chance), Steady(0)), 6).run(20_000)
        assert [channel.window for channel in pipeline.channels] == [4_096] * 5
