"""Pipelines drawn at random: any mix of latency distributions, batches, parallelism and load.

Limits are those of a pipeline that can be operated: a batch is done within a second (three seconds
without a result are a stall by rule) and holds no more than the smallest window.
"""

from __future__ import annotations

import random
from math import exp, log

from penstock.flow.planner import Growth, PlannerPolicy
from penstock.metering.shapes import Shape, named_shape
from tests.simulator.latency import Bimodal, Exponential, Latency, Lognormal, Uniform
from tests.simulator.pipeline import STAGES, Settings
from tests.simulator.stage import Batches, Service, Workers


def draw_latency(chance: random.Random, mean_ms: float) -> Latency:
    """Any distribution with a mean."""
    match chance.randrange(4):
        case 0:
            return Exponential(mean_ms)
        case 1:
            sigma = chance.uniform(0.1, 1.2)
            return Lognormal(mean_ms / exp(sigma**2 / 2), sigma)
        case 2:
            return bimodal(mean_ms, _log_uniform(chance, 0.002, 0.5), chance.uniform(2, 30))
        case _:
            low_ms = mean_ms * chance.random()
            return Uniform(low_ms, 2 * mean_ms - low_ms)


def bimodal(mean_ms: float, slow_share: float, ratio: float) -> Bimodal:
    """Two modes with a mean, the slow one so many times slower."""
    fast_ms = mean_ms / (1 + slow_share * (ratio - 1))
    return Bimodal(fast_ms, ratio * fast_ms, slow_share)


def draw_service(chance: random.Random, per_s: float, *, batches: float = 0.25) -> Service:
    """Workers, or by a chance batches, that do so many items a second."""
    if chance.random() < batches:
        return batch_service(
            per_s, items=_log_uniform(chance, 32, 1_000), fixed=chance.uniform(0.05, 0.9)
        )
    parallelism = chance.choice((1, 2, 4, 8, 32))
    return Workers(draw_latency(chance, 1_000 * parallelism / per_s), parallelism)


def batch_service(per_s: float, *, items: float, fixed: float) -> Batches:
    """Batches that do so many items a second, with a share of the time as fixed cost."""
    items_max = max(1, int(min(items, 0.8 * per_s)))
    full_ms = 1_000 * items_max / per_s
    fixed_ms = fixed * full_ms
    return Batches(
        Uniform(0.8 * fixed_ms, 1.2 * fixed_ms), (full_ms - fixed_ms) / items_max, items_max
    )


def draw_services(chance: random.Random, *, batches: float = 0.25) -> tuple[Service, ...]:
    """Five stages of 1,000 to 20,000 items a second."""
    return tuple(
        draw_service(chance, _log_uniform(chance, 1_000, 20_000), batches=batches) for _ in STAGES
    )


def draw_shape(chance: random.Random, name: str, low_per_s: float, high_per_s: float) -> Shape:
    """A shape between two rates with any period up to 20 s."""
    return named_shape(
        name,
        low_per_s=low_per_s,
        high_per_s=high_per_s,
        period_ms=chance.choice((1_000, 3_000, 10_000, 20_000)),
        seed=chance.getrandbits(32),
    )


def draw_settings(
    chance: random.Random, shape: str, *, demand: tuple[float, float], growth: Growth = "aimd"
) -> Settings:
    """A pipeline under a load between two multiples of what its slowest stage can do."""
    services = draw_services(chance)
    capacity_per_s = min(service.capacity_per_s for service in services)
    low_per_s = capacity_per_s * chance.uniform(*demand)
    high_per_s = low_per_s + capacity_per_s * chance.uniform(0.2, 2.0)
    return Settings(
        services,
        draw_shape(chance, shape, low_per_s, high_per_s),
        PlannerPolicy(stages=STAGES, growth=growth),
    )


def _log_uniform(chance: random.Random, low: float, high: float) -> float:
    return exp(chance.uniform(log(low), log(high)))
