"""The planner against generated measurements, and in pipelines of generated latencies and load."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.flow.meter import Measurement
from penstock.flow.planner import (
    Growth,
    Plan,
    PlannerMemory,
    PlannerPolicy,
    StageMemory,
    WindowPlanner,
    fit_budget,
)
from penstock.kernel.units import MIB
from penstock.metering.shapes import named_shape
from tests.simulator.generate import batch_service, bimodal
from tests.simulator.latency import Exponential, Latency, Lognormal, Uniform
from tests.simulator.pipeline import STAGES, Pipeline, Settings
from tests.simulator.stage import Service, Workers

WINDOWS = st.integers(1_024, 131_072)
SIZES = st.lists(st.floats(1, 90_000), min_size=5, max_size=5)


@st.composite
def measurements(draw: st.DrawFn, window: int) -> Measurement:
    return Measurement(
        window,
        occupied=draw(st.integers(0, window)),
        occupancy=draw(st.floats(0, 1.5)),
        p99_ns=draw(st.integers(0, 10**10)),
        latency_samples=draw(st.integers(0, 10_000)),
        bytes_per_slot=draw(st.floats(0, 90_000)),
        batch_items=draw(st.floats(1, 5_000)),
        pace_per_s=draw(st.none() | st.floats(0, 1e6)),
        refused=draw(st.booleans()),
        stuck_ms=draw(st.sampled_from((0, 0, 0, 100, 2_999, 3_000, 60_000))),
        warming=draw(st.integers(0, 9)) == 0,
    )


@pytest.mark.parametrize("growth", ["aimd", "cubic"])
@settings(max_examples=40)
@given(data=st.data(), windows=st.lists(WINDOWS, min_size=5, max_size=5), sizes=SIZES)
def test_whatever_is_measured_the_rules_of_every_plan_hold(growth, data, windows, sizes):
    planner = WindowPlanner(PlannerPolicy(stages=STAGES, growth=growth))
    stages = zip(windows, sizes, strict=True)
    memory = PlannerMemory(tuple(StageMemory(w, bytes_per_slot=size) for w, size in stages))
    for _ in range(6):
        seen = [data.draw(measurements(window)) for window in memory.windows]
        plan = planner.plan(memory, seen)
        numbers = [number for number, _ in plan.changes]
        assert numbers == sorted(numbers, reverse=True), "downstream before upstream"
        applied = dict(plan.changes)
        for number, (old, new) in enumerate(zip(seen, plan.memory.windows, strict=True)):
            assert 1_024 <= new <= 131_072
            assert applied.get(number, old.window) == new
        assert within_budget(plan.memory)
        for decision, new in zip(plan.decisions, plan.memory.windows, strict=True):
            assert (decision.window, bool(decision.reason)) == (new, True)
        stalled = last_stalled(seen)
        assert set(plan.memory.windows[: stalled + 1]) <= {1_024}
        for number in range(stalled + 1, 5):
            assert moved_by_a_rule(seen[number], memory.stages[number], plan, number)
        memory = plan.memory


@settings(max_examples=40)
@given(st.sampled_from(("aimd", "cubic")), st.data())
def test_the_stages_of_a_chain_have_one_window_whatever_is_measured(growth, data):
    policy = PlannerPolicy(stages=STAGES, growth=growth)
    planner = WindowPlanner(policy)
    memory = planner.begin([1_000.0] * 5)
    for _ in range(8):
        seen = [data.draw(measurements(window)) for window in memory.windows]
        seen = [*seen[:2], *(replace(each, chain="job") for each in seen[2:])]
        plan = planner.plan(memory, seen)
        told = {decision.window for decision in plan.decisions[2:]}
        assert (len(set(plan.memory.windows[2:])), told) == (1, {plan.memory.windows[2]})
        memory = plan.memory


def last_stalled(seen: list[Measurement]) -> int:
    """The last stage that is stuck for 3 s, none below it being on its way to its first item."""
    for number in reversed(range(len(seen))):
        if seen[number].warming and seen[number].stuck_ms < 60_000:
            return -1
        if seen[number].stuck_ms >= 3_000:
            return number
    return -1


def moved_by_a_rule(seen: Measurement, stage: StageMemory, plan: Plan, number: int) -> bool:
    """Whether a window that no stall and no budget moved went by 64, by 0.7, or along a curve."""
    new, old = plan.memory.windows[number], seen.window
    decision = plan.decisions[number]
    if decision.action in ("return", "probe ended") or "budget" in decision.reason:
        return True
    if decision.action == "decrease":
        return new == max(int(0.7 * old), 1_024)
    if decision.action == "increase" and "curve" not in decision.reason:
        return new == min(old + 64, 131_072) and seen.refused
    return new == old or "curve" in decision.reason


def within_budget(memory: PlannerMemory) -> bool:
    return sum(stage.window * stage.bytes_per_slot for stage in memory.stages) <= 512 * MIB


@settings(max_examples=100)
@given(st.lists(st.tuples(WINDOWS, st.floats(1, 100_000)), min_size=1, max_size=5))
def test_a_cut_is_in_proportion_and_no_deeper_than_needed(pairs):
    windows, sizes = [window for window, _ in pairs], [size for _, size in pairs]
    fitted = fit_budget(windows, sizes, 1_024, 512 * MIB)
    assert sum(w * s for w, s in zip(fitted, sizes, strict=True)) <= 512 * MIB
    shares = [new / old for new, old in zip(fitted, windows, strict=True) if new > 1_024]
    if shares:
        assert max(shares) - min(shares) <= 1 / 1_024, "one factor for all but the smallest"
    one_more = sum((w + 1) * s for w, s in zip(fitted, sizes, strict=True))
    assert fitted == windows or not shares or one_more > 511 * MIB


@st.composite
def latencies(draw: st.DrawFn, mean_ms: float) -> Latency:
    """Any distribution the planner may meet, down to one slow item in five hundred."""
    match draw(st.sampled_from(("exponential", "lognormal", "bimodal", "uniform"))):
        case "exponential":
            return Exponential(mean_ms)
        case "lognormal":
            sigma = draw(st.floats(0.1, 1.2))
            return Lognormal(mean_ms / 2.718281828 ** (sigma**2 / 2), sigma)
        case "bimodal":
            return bimodal(mean_ms, draw(st.floats(0.002, 0.5)), draw(st.floats(2, 30)))
    low_ms = mean_ms * draw(st.floats(0, 1))
    return Uniform(low_ms, 2 * mean_ms - low_ms)


@st.composite
def services(draw: st.DrawFn) -> Service:
    per_s = draw(st.floats(1_000, 12_000))
    if draw(st.integers(0, 3)) == 0:
        return batch_service(
            per_s, items=draw(st.integers(32, 1_000)), fixed=draw(st.floats(0.05, 0.9))
        )
    parallelism = draw(st.sampled_from((1, 4, 32)))
    return Workers(draw(latencies(1_000 * parallelism / per_s)), parallelism)


@st.composite
def pipelines(draw: st.DrawFn, shape: str, growth: Growth) -> Settings:
    stages = draw(st.tuples(*[services()] * 5))
    capacity_per_s = min(service.capacity_per_s for service in stages)
    low_per_s = capacity_per_s * draw(st.floats(0, 1.5))
    return Settings(
        stages,
        named_shape(
            shape,
            low_per_s=low_per_s,
            high_per_s=low_per_s + capacity_per_s * draw(st.floats(0.2, 2)),
            period_ms=draw(st.sampled_from((1_000, 3_000, 10_000, 20_000))),
            seed=draw(st.integers(0, 999)),
        ),
        PlannerPolicy(stages=STAGES, growth=growth),
    )


@pytest.mark.parametrize("growth", ["aimd", "cubic"])
@pytest.mark.parametrize("shape", ["square", "sawtooth", "random"])
@settings(max_examples=4)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_windows_are_stable_within_thirty_seconds(shape, growth, data, seed):
    pipeline = Pipeline(data.draw(pipelines(shape, growth)), seed).run(60_000)
    later = [second.plan.memory.windows for second in pipeline.seconds][30:]
    for name, windows in zip(STAGES, zip(*later, strict=True), strict=True):
        mean = sum(windows) / len(windows)
        assert 0.85 * mean <= min(windows), f"{name}: {windows}"
        assert max(windows) <= 1.15 * mean, f"{name}: {windows}"
