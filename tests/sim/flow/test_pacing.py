"""Under every load beyond its capacity a stage rests inside its zone, with the real channels."""

from __future__ import annotations

import pytest

from penstock.metering.shapes import SHAPES, named_shape
from penstock.testing import seeded, seeds
from tests.simulator.generate import draw_settings
from tests.simulator.latency import Exponential
from tests.simulator.pipeline import Pipeline, Second, Settings
from tests.simulator.stage import Workers


def saturated(second: Second, stage: int) -> bool:
    """Senders were turned away."""
    return second.measured[stage].refused


def samples_when_saturated(pipeline: Pipeline, stage: int) -> list[float]:
    """Occupancy at every 100 ms of the seconds in which it was saturated and had been before."""
    seconds = list(pipeline.seconds)
    return [
        sample[stage]
        for number in range(1, len(seconds))
        if saturated(seconds[number - 1], stage) and saturated(seconds[number], stage)
        for sample in pipeline.occupancies[10 * number : 10 * number + 10]
    ]


def inside(samples: list[float]) -> float:
    return sum(0.50 <= sample <= 0.85 for sample in samples) / len(samples)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", seeds(2))
def test_a_saturated_stage_is_inside_its_zone_for_nine_samples_of_ten(shape, seed):
    with seeded(seed) as chance:
        settings = draw_settings(chance, shape, demand=(1.3, 2.5))
        pipeline = Pipeline(settings, seed).run(40_000)
        found = [samples_when_saturated(pipeline, stage) for stage in range(5)]
        assert max(map(len, found)) >= 150, "some stage is saturated for most of the time"
        for samples in found:
            assert len(samples) < 20 or inside(samples) >= 0.90


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bottleneck", range(5))
def test_the_bottleneck_and_all_above_it_are_saturated_and_all_below_it_run_freely(
    shape, bottleneck
):
    services = [Workers(Exponential(0.2), 4)] * 5
    services[bottleneck] = Workers(Exponential(2.0), 4)  # 2,000 a second
    load = named_shape(shape, low_per_s=3_000, high_per_s=9_000, period_ms=4_000, seed=3)
    pipeline = Pipeline(Settings(tuple(services), load), seed=1).run(25_000)
    for stage in range(5):
        samples = [sample[stage] for sample in pipeline.occupancies[150:]]
        if stage <= bottleneck:
            assert inside(samples) >= 0.90, f"stage {stage}"
        else:
            assert max(samples) < 0.50, f"stage {stage}"
