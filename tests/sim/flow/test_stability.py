"""Windows rest where nothing is wrong, move when something is, and come to rest again."""

from __future__ import annotations

import pytest

from penstock.flow.planner import Growth, PlannerPolicy
from penstock.metering.shapes import Steady
from penstock.testing import seeded, seeds
from tests.simulator.generate import bimodal, draw_settings
from tests.simulator.latency import Exponential
from tests.simulator.pipeline import STAGES, Pipeline, Settings
from tests.simulator.stage import Workers

QUICK = Workers(Exponential(0.2), 4)


def assert_stable(seconds: list[tuple[int, ...]]) -> None:
    """No stage's window leaves 15 % around its mean."""
    for name, windows in zip(STAGES, zip(*seconds, strict=True), strict=True):
        mean = sum(windows) / len(windows)
        assert 0.85 * mean <= min(windows), f"{name}: {windows}"
        assert max(windows) <= 1.15 * mean, f"{name}: {windows}"


def later_windows(pipeline: Pipeline) -> list[tuple[int, ...]]:
    return [second.plan.memory.windows for second in pipeline.seconds][30:]


@pytest.mark.parametrize("growth", ["aimd", "cubic"])
@pytest.mark.parametrize("shape", ["square", "sawtooth", "random"])
@pytest.mark.parametrize("seed", seeds(1))
def test_windows_are_stable_within_thirty_seconds(shape: str, growth: Growth, seed: int):
    with seeded(seed) as chance:
        settings = draw_settings(chance, shape, demand=(0.0, 1.5), growth=growth)
        assert_stable(later_windows(Pipeline(settings, seed).run(60_000)))


@pytest.mark.parametrize("slow_share", [0.004, 0.005, 0.006])
@pytest.mark.parametrize("seed", seeds(1))
def test_a_slow_item_now_and_then_is_no_congestion(slow_share, seed):
    with seeded(seed):
        evaluate = Workers(bimodal(1.0, slow_share, ratio=20), 2)
        settings = Settings((QUICK, QUICK, QUICK, evaluate, QUICK), Steady(1_200))
        pipeline = Pipeline(settings, seed).run(60_000)
        assert {windows[3] for windows in later_windows(pipeline)} == {4_096}


@pytest.mark.parametrize("growth", ["aimd", "cubic"])
def test_a_stage_that_becomes_slow_shrinks_and_returns_when_it_is_needed(growth: Growth):
    policy = PlannerPolicy(stages=STAGES, growth=growth)
    evaluate = Workers(Exponential(0.5), 4)
    pipeline = Pipeline(Settings((QUICK, QUICK, QUICK, evaluate, QUICK), Steady(1_500), policy), 1)
    pipeline.run(10_000)
    assert pipeline.channels[3].window == 4_096
    pipeline.stage("evaluate").slowdown = 4
    pipeline.run(3_000)
    assert pipeline.channels[3].window == 2_006, "a second that might pass, and two decreases"
    pipeline.run(10_000)
    assert pipeline.channels[3].window == 1_024
    assert [c.window for n, c in enumerate(pipeline.channels) if n != 3] == [4_096] * 4


def test_a_cut_window_that_drains_for_seconds_is_not_cut_again():
    store = Workers(Exponential(1.0), 1)
    pipeline = Pipeline(Settings((QUICK, QUICK, QUICK, QUICK, store), Steady(5_000)), 1)
    pipeline.run(30_000)
    windows = pipeline.memory.windows
    assert pipeline.channels[4].occupancy > 0.6
    pipeline.set_windows([*windows[:4], int(0.4 * windows[4])])
    pipeline.run(10_000)
    later = [second.plan.decisions[4] for second in list(pipeline.seconds)[30:]]
    assert "items drain to the smaller window" in later[0].reason
    assert not [decision for decision in later if decision.action == "decrease"]
    assert 0.5 <= pipeline.channels[4].occupancy <= 0.85
