"""The simulator itself: replayable, conserving, true to the numbers it was given."""

from __future__ import annotations

from random import Random

import pytest

from penstock.flow.planner import Plan
from penstock.metering.shapes import SHAPES, Steady, named_shape
from penstock.testing import seeded, seeds
from tests.simulator.generate import draw_settings
from tests.simulator.latency import Bimodal, Exponential, Latency, Lognormal, Uniform
from tests.simulator.pipeline import STAGES, Lost, Pipeline, Settings
from tests.simulator.stage import Batches, Workers
from tests.simulator.topics import Topics, TopicsSettings

FAST = (Workers(Exponential(0.1), 4),) * 4


def story(seed: int) -> list[tuple[object, ...]]:
    settings = draw_settings(Random(seed), "random", demand=(0.5, 1.5))
    pipeline = Pipeline(settings, seed).run(5_000)
    return [
        (s.at_ms, s.offered, s.delivered, s.measured, s.plan.decisions) for s in pipeline.seconds
    ]


def test_the_same_seed_is_the_same_run_and_another_is_another():
    assert story(7) == story(7)
    assert story(7) != story(8)


def test_topics_replay_too():
    def run() -> tuple[object, ...]:
        topics = Topics(TopicsSettings(Steady(3_000)), 7).run(2_000)
        return topics.written, topics.served, topics.rung, topics.queue.bands()

    assert run() == run()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", seeds(1))
def test_every_item_is_delivered_exactly_once_in_order_whatever_blocks_on_the_way(shape, seed):
    with seeded(seed) as chance:
        settings = draw_settings(chance, shape, demand=(0.5, 2.0))
        pipeline = Pipeline(settings, seed)
        for _ in range(6):
            stage = chance.choice(pipeline.stages)
            stage.blocked = True
            pipeline.run(chance.randrange(100, 2_000, 10))
            stage.blocked = False
            pipeline.set_windows([chance.randint(1_024, 131_072) for _ in STAGES])
            pipeline.run(chance.randrange(100, 2_000, 10))
        pipeline.drain(within_ms=600_000)
        assert 0 < pipeline.offered == pipeline.delivered


def test_an_item_that_overtakes_is_found():
    pipeline = Pipeline(Settings((*FAST, Workers(Exponential(1), 4)), Steady(2_000)), 1).run(1_000)
    items = pipeline.channels[4].items
    items[0], items[1] = items[1], items[0]
    with pytest.raises(Lost):
        pipeline.run(1_000)


def test_an_item_that_vanishes_is_found():
    pipeline = Pipeline(Settings((*FAST, Workers(Exponential(1), 4)), Steady(9_000)), 1).run(1_000)
    pipeline.channels[4].items.popleft()
    with pytest.raises(Lost):
        pipeline.run(1_000)


@pytest.mark.parametrize(
    "latency",
    [Exponential(2.0), Lognormal(1.5, 0.6), Bimodal(1.0, 9.0, 0.2), Uniform(1.0, 5.0)],
    ids=lambda latency: type(latency).__name__,
)
def test_a_saturated_stage_works_at_the_rate_and_latency_of_its_distribution(latency: Latency):
    service = Workers(latency, parallelism=4)
    pipeline = Pipeline(Settings((*FAST, service), Steady(9_000)), 1).run(20_000)
    seconds = list(pipeline.seconds)[5:]
    rates = [second.measured[4].rate_per_s for second in seconds]
    assert sum(rates) / len(rates) == pytest.approx(service.capacity_per_s, rel=0.06)
    draws = sorted(latency.draw_ms(Random(n)) for n in range(4_000))
    medians = [second.measured[4].p50_ns / 1e6 for second in seconds]
    assert sum(medians) / len(medians) == pytest.approx(draws[2_000], rel=0.10)


def test_waiting_for_the_stage_below_is_no_part_of_the_latency():
    free = Pipeline(Settings((*FAST, Workers(Exponential(0.1), 4)), Steady(1_000)), 1)
    held = Pipeline(Settings((*FAST, Workers(Exponential(8), 4)), Steady(1_000)), 1)
    p99s = [p.run(14_000).seconds[-1].measured[3].p99_ns for p in (free, held)]
    assert held.channels[3].occupancy > 0.5
    assert p99s[1] == pytest.approx(p99s[0], rel=0.35)


def test_a_batch_takes_its_fixed_cost_and_a_cost_for_each_item():
    service = Batches(Uniform(100, 100), per_item_ms=0.1, items_max=500)
    pipeline = Pipeline(Settings((*FAST, service), Steady(9_000)), 1).run(10_000)
    seen = pipeline.seconds[-1].measured[4]
    assert seen.p50_ns == pytest.approx(150e6, rel=0.02)
    assert seen.rate_per_s == pytest.approx(500 / 0.150, rel=0.16)  # in steps of a whole batch


def test_windows_are_set_from_the_last_stage_to_the_first():
    pipeline = Pipeline(Settings((*FAST, Workers(Exponential(1), 4)), Steady(9_000)), 1)
    pipeline.run(3_000)
    order: list[int] = []
    for number, channel in enumerate(pipeline.channels):
        resize = channel.resize
        channel.resize = lambda w, n=number, r=resize: (order.append(n), r(w))[1]  # type: ignore[method-assign]
    pipeline.stage("store").blocked = True
    pipeline.run(5_000)
    assert order[-5:] == [4, 3, 2, 1, 0], "the stall, after growth"
    assert order == [4, 3, 2, 1, 0] * (len(order) // 5)


def test_planning_is_told_for_every_stage():
    pipeline = Pipeline(Settings((*FAST, Workers(Exponential(1), 4)), Steady(100)), 1).run(1_000)
    plan: Plan = pipeline.seconds[-1].plan
    assert [decision.stage for decision in plan.decisions] == list(STAGES)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_stays_between_its_rates(shape):
    load = named_shape(shape, low_per_s=100, high_per_s=900, period_ms=4_000, seed=1)
    rates = [load.rate_per_s(at_ms) for at_ms in range(0, 20_000, 10)]
    assert 100 <= min(rates) <= max(rates) <= 900
    if shape != "steady":
        assert min(rates) < 300
        assert max(rates) > 700
