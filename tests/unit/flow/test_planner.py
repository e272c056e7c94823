"""The planner's rules, one by one, with the published numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from penstock.flow.gradient import Probe
from penstock.flow.meter import Measurement
from penstock.flow.planner import (
    Growth,
    PlannerMemory,
    PlannerPolicy,
    StageMemory,
    WindowPlanner,
    cubic,
    fit_budget,
    size_class,
)
from penstock.kernel.errors import Rejected
from penstock.kernel.units import MIB

STAGES = ("accept", "parse", "store")
MS_NS = 1_000_000


def planner(growth: Growth = "aimd", **numbers: int) -> WindowPlanner:
    return WindowPlanner(PlannerPolicy(stages=STAGES, growth=growth, **numbers))


def memory(*windows: int, baseline_ns: float | None = None) -> PlannerMemory:
    baselines = {} if baseline_ns is None else {1: baseline_ns}
    return PlannerMemory(tuple(StageMemory(window, baselines) for window in windows))


def idle(*windows: int) -> list[Measurement]:
    return [Measurement(window) for window in windows]


def last_window(seen: Measurement, stage: StageMemory, growth: Growth = "aimd") -> int:
    """The window planned for the last of three stages, the others being idle."""
    return last_windows([seen], stage, growth)[0]


def last_windows(
    seconds: Sequence[Measurement], stage: StageMemory, growth: Growth = "aimd"
) -> list[int]:
    """The same for some seconds, each measured at the window that it finds."""
    kept = PlannerMemory((StageMemory(4_096), StageMemory(4_096), stage))
    windows = []
    for each in seconds:
        seen = replace(each, window=kept.windows[2])
        kept = planner(growth).plan(kept, [*idle(4_096, 4_096), seen]).memory
        windows.append(kept.windows[2])
    return windows


@pytest.mark.parametrize(("occupancy", "window"), [(0.85, 8_000), (0.851, 5_600), (1.4, 5_600)])
def test_occupancy_above_085_decreases_by_07_and_at_085_does_not(occupancy, window):
    assert last_window(Measurement(8_000, occupancy=occupancy), StageMemory(8_000)) == window


@pytest.mark.parametrize(("p99_ms", "window"), [(20, 8_000), (20.1, 5_600)])
def test_a_p99_above_twice_the_baseline_decreases_and_at_twice_does_not(p99_ms, window):
    seen = Measurement(8_000, p99_ns=int(p99_ms * MS_NS), latency_samples=5_000)
    assert last_windows([seen] * 2, StageMemory(8_000, {1: 10.0 * MS_NS})) == [8_000, window]


def test_a_p99_that_is_high_for_one_second_is_no_congestion_and_lets_nothing_grow():
    late = Measurement(8_000, p99_ns=50 * MS_NS, latency_samples=5_000, refused=True)
    good = replace(late, p99_ns=10 * MS_NS)
    stage = StageMemory(8_000, {1: 10.0 * MS_NS})
    windows = last_windows([late, good, late, good, late, late, late, late], stage)
    assert windows == [8_000, 8_064, 8_064, 8_128, 8_128, 5_689, 3_982, 2_787]


@pytest.mark.parametrize(("p99_ms", "window"), [(1.0, 8_000), (1.1, 5_600)])
def test_a_p99_of_microseconds_is_noise_whatever_it_usually_is(p99_ms, window):
    seen = Measurement(8_000, p99_ns=int(p99_ms * MS_NS), latency_samples=5_000)
    assert last_windows([seen] * 2, StageMemory(8_000, {1: 0.02 * MS_NS}))[-1] == window


def test_a_p99_that_chance_explains_is_no_congestion():
    seen = Measurement(8_000, p99_ns=25 * MS_NS, p99_least_ns=12 * MS_NS, latency_samples=1_000)
    assert last_window(seen, StageMemory(8_000, {1: 10.0 * MS_NS})) == 8_000


def test_too_few_samples_are_no_evidence():
    seen = Measurement(8_000, p99_ns=90 * MS_NS, latency_samples=999)
    assert last_window(seen, StageMemory(8_000, {1: 10.0 * MS_NS})) == 8_000


@pytest.mark.parametrize(("window", "after"), [(1_463, 1_024), (1_024, 1_024), (131_072, 91_750)])
def test_a_decrease_ends_at_1024(window, after):
    assert last_window(Measurement(window, occupancy=0.9), StageMemory(window)) == after


@pytest.mark.parametrize(("window", "after"), [(4_096, 4_160), (131_040, 131_072)])
def test_an_increase_adds_64_and_ends_at_131072(window, after):
    seen = Measurement(window, refused=True)
    assert last_window(seen, StageMemory(window)) == after


def test_a_window_that_held_nobody_back_is_left_alone():
    plan = planner().plan(memory(4_096, 4_096, 4_096), idle(4_096, 4_096, 4_096))
    assert (plan.changes, plan.memory.windows) == ((), (4_096,) * 3)
    assert str(plan.decisions[2]) == "store: hold 4096, nothing waited for it"


def test_every_tick_in_which_senders_were_refused_adds_64_until_more_lets_no_more_through():
    kept, windows = memory(4_096, 4_096, 4_096), []
    for _ in range(60):
        seen = Measurement(kept.windows[2], refused=True, pace_per_s=1_000.0)
        plan = planner().plan(kept, [*idle(4_096, 4_096), seen])
        kept = plan.memory
        windows.append(kept.windows[2])
    assert windows[:11] == [4_096 + 64 * second for second in range(1, 12)]
    assert windows[11] == 4_096 + 6 * 64, "back to where the second stretch began"
    assert set(windows[11:41]) == {4_480}
    assert windows[41] == 4_544, "tried again after half a minute"
    assert max(windows) <= 4_480 + 6 * 64


def test_a_stage_grows_as_long_as_its_throughput_grows_with_the_window():
    kept = memory(4_096, 4_096, 4_096)
    for _ in range(120):
        window = kept.windows[2]
        seen = Measurement(window, refused=True, pace_per_s=window / (0.2 + window / 40_000))
        kept = planner().plan(kept, [*idle(4_096, 4_096), seen]).memory
    assert kept.windows[2] == 4_096 + 120 * 64, "fixed cost is two thirds of a batch and more"


def test_a_stage_above_one_that_takes_no_more_does_not_grow():
    refused = Measurement(4_096, refused=True, pace_per_s=1_000.0)
    kept = memory(4_096, 4_096, 4_096)
    resting = kept.stages[2]._replace(probe=Probe(4_096, rested_s=0, reason="flat"))
    resting = PlannerMemory((*kept.stages[:2], resting))
    plan = planner().plan(resting, [refused] * 3)
    assert plan.memory.windows == (4_096, 4_096, 4_096)
    assert str(plan.decisions[1]) == "parse: hold 4096, store, below, is the limit"
    assert str(plan.decisions[2]) == "store: hold 4096, more did not go through with more: flat"
    plan = planner().plan(kept, [refused] * 3)
    assert plan.memory.windows == (4_160, 4_160, 4_160)


def test_a_cut_window_that_drains_is_not_cut_again_and_one_that_fills_up_is():
    stage = StageMemory(4_096)
    kept = PlannerMemory((StageMemory(4_096), StageMemory(4_096), stage))
    windows = []
    for occupied, occupancy in [(3_900, 0.95), (3_500, 1.3), (2_800, 1.1), (2_000, 0.8)]:
        seen = Measurement(kept.windows[2], occupied=occupied, occupancy=occupancy)
        kept = planner().plan(kept, [*idle(4_096, 4_096), seen]).memory
        windows.append(kept.windows[2])
    assert windows == [2_867] * 4
    seen = Measurement(2_867, occupied=2_600, occupancy=0.9)
    kept = planner().plan(kept, [*idle(4_096, 4_096), seen]).memory
    assert kept.windows[2] == 2_006
    seen = Measurement(2_006, occupied=2_700, occupancy=1.3)
    kept = planner().plan(kept, [*idle(4_096, 4_096), seen]).memory
    assert kept.windows[2] == 1_404, "more came in than was there: it does not drain"


def learnt(stage: StageMemory, seen: Measurement) -> float | None:
    kept = PlannerMemory((stage, *[StageMemory(4_096)] * 2))
    found = planner().plan(kept, [seen, *idle(4_096, 4_096)]).memory.stages[0].baselines
    return found.get(size_class(seen.batch_items))


def test_the_baseline_begins_with_the_first_p99_and_then_follows_a_tenth():
    seen = Measurement(4_096, p99_ns=1_500, latency_samples=5_000)
    assert learnt(StageMemory(4_096), seen) == 1_500
    assert learnt(StageMemory(4_096, {1: 1_000.0}), seen) == pytest.approx(1_050)


def test_the_baseline_learns_nothing_from_congestion_of_either_kind():
    usual = 10.0 * MS_NS
    slow = Measurement(4_096, p99_ns=21 * MS_NS, latency_samples=5_000)
    full = Measurement(4_096, p99_ns=15 * MS_NS, latency_samples=5_000, occupancy=0.9)
    assert learnt(StageMemory(4_096, {1: usual}), slow) == usual
    assert learnt(StageMemory(4_096, {1: usual}), full) == usual


def test_a_stage_that_stays_slow_never_becomes_its_own_norm():
    usual = 10.0 * MS_NS
    kept = memory(131_072, 131_072, 131_072, baseline_ns=usual)
    for _ in range(60):
        slow = [Measurement(w, p99_ns=30 * MS_NS, latency_samples=5_000) for w in kept.windows]
        kept = planner().plan(kept, slow).memory
    assert kept.windows == (1_024,) * 3
    assert [stage.baselines for stage in kept.stages] == [{1: usual}] * 3


def test_a_large_batch_that_takes_longer_than_a_small_one_is_not_congested():
    small = Measurement(8_000, p99_ns=80 * MS_NS, latency_samples=1_000, batch_items=10)
    kept = PlannerMemory((StageMemory(8_000), *[StageMemory(4_096)] * 2))
    kept = planner().plan(kept, [small, *idle(4_096, 4_096)]).memory
    large = Measurement(8_000, p99_ns=600 * MS_NS, latency_samples=5_000, batch_items=1_400)
    for _ in range(3):
        plan = planner().plan(kept, [large, *idle(4_096, 4_096)])
        assert plan.changes == ()
        kept = plan.memory
    slow = Measurement(8_000, p99_ns=1_201 * MS_NS, latency_samples=5_000, batch_items=1_400)
    plan = planner().plan(kept, [slow, *idle(4_096, 4_096)])
    told = "p99 1.2 s is above 2 × baseline 600 ms"
    assert plan.decisions[0][1:] == ("hold", 8_000, f"{told}, which may pass")
    plan = planner().plan(plan.memory, [slow, *idle(4_096, 4_096)])
    assert plan.decisions[0][1:] == ("decrease", 5_600, told)


@pytest.mark.parametrize(("batch_items", "usual"), [(40, 2_000), (100, 4_000), (10, 1_000)])
def test_a_size_of_batches_never_seen_is_held_against_the_next_smaller_one(batch_items, usual):
    stage = StageMemory(4_096, {5: 1_000.0})
    assert stage.usual_p99_ns(batch_items) == usual


def test_downstream_is_set_before_upstream():
    full = [Measurement(8_000, occupancy=0.9)] * 3
    plan = planner().plan(memory(8_000, 8_000, 8_000), full)
    assert plan.changes == ((2, 5_600), (1, 5_600), (0, 5_600))


def test_a_stall_takes_the_stage_and_all_above_it_to_1024_at_once_and_none_below():
    stuck = Measurement(131_072, occupied=9, stuck_ms=3_000)
    seen = [Measurement(131_072), stuck, Measurement(131_072)]
    plan = planner().plan(memory(131_072, 131_072, 131_072), seen)
    assert plan.changes == ((1, 1_024), (0, 1_024))
    assert str(plan.decisions[0]) == (
        "accept: smallest window 1024, parse has finished nothing for 3 s"
    )


def test_a_stage_that_is_starting_is_warming_and_not_stalled():
    starting = Measurement(4_096, occupied=9, stuck_ms=20_000, warming=True)
    held_up = Measurement(4_096, occupied=9, stuck_ms=19_000)
    plan = planner().plan(memory(4_096, 4_096, 4_096), [held_up, starting, Measurement(4_096)])
    assert plan.changes == ()
    assert str(plan.decisions[1]) == "parse: hold 4096, the stage is starting"


def test_a_stage_below_one_that_is_starting_can_stall():
    starting = Measurement(4_096, occupied=9, stuck_ms=20_000, warming=True)
    stuck = Measurement(4_096, occupied=9, stuck_ms=3_000)
    plan = planner().plan(memory(4_096, 4_096, 4_096), [Measurement(4_096), starting, stuck])
    assert plan.memory.windows == (1_024,) * 3


def test_a_start_that_takes_longer_than_a_minute_is_a_stall():
    starting = Measurement(4_096, occupied=9, stuck_ms=60_000, warming=True)
    plan = planner().plan(memory(4_096, 4_096, 4_096), [*idle(4_096), starting, *idle(4_096)])
    assert plan.memory.windows == (1_024, 1_024, 4_096)


def test_nothing_is_learnt_from_a_stage_that_is_starting():
    seen = Measurement(4_096, p99_ns=9_000, latency_samples=5_000, warming=True)
    assert learnt(StageMemory(4_096), seen) is None


@pytest.mark.parametrize("before", [1_100, 4_096, 131_072])
def test_after_a_stall_windows_return_to_where_they_were_within_ten_seconds(before):
    kept = memory(before, before, 4_096)
    stuck = Measurement(before, occupied=9, stuck_ms=3_000)
    kept = planner().plan(kept, [stuck, stuck, *idle(4_096)]).memory
    assert kept.windows == (1_024, 1_024, 4_096)
    windows = []
    for _ in range(5):  # late items, full windows: that is the stall, not congestion
        late = Measurement(kept.windows[0], occupancy=2.0, p99_ns=10**10, latency_samples=5_000)
        kept = planner().plan(kept, [late, late, *idle(4_096)]).memory
        windows.append(kept.windows[0])
    assert windows == sorted(windows)
    assert windows[-1] == before
    assert kept.stages[0].return_to == 0
    assert kept.stages[0].baselines == {}


def test_a_second_stall_on_the_way_back_keeps_where_the_windows_were_before_the_first():
    kept = memory(8_000, 8_000, 8_000)
    stuck = [Measurement(8_000, occupied=9, stuck_ms=3_000)] * 3
    moving = [Measurement(8_000)] * 3
    for seen in (stuck, moving, moving, stuck, stuck):
        kept = planner().plan(kept, seen).memory
    assert kept.windows == (1_024,) * 3
    for _ in range(5):
        kept = planner().plan(kept, moving).memory
    assert kept.windows == (8_000,) * 3


def test_less_than_three_seconds_are_no_stall():
    seen = [Measurement(8_000, occupied=9, stuck_ms=2_999)] * 3
    assert planner().plan(memory(8_000, 8_000, 8_000), seen).changes == ()


def grown(stage: StageMemory, seconds: int, growth: Growth = "cubic") -> list[int]:
    windows = []
    kept = PlannerMemory((stage, *[StageMemory(4_096)] * 2))
    for _ in range(seconds):
        seen = Measurement(kept.windows[0], refused=True)
        kept = planner(growth).plan(kept, [seen, *idle(4_096, 4_096)]).memory
        windows.append(kept.windows[0])
    return windows


def test_cubic_returns_to_the_old_window_along_the_curve_and_then_probes():
    stage = StageMemory(10_000).decreased(7_000)
    windows = grown(stage, 30)  # the curve is back after the third root of 3,000 / 0.4: 19.6 s
    assert windows[:19] == [cubic(10_000, 7_000, second) for second in range(1, 20)]
    assert windows[19:22] == [10_000, 10_064, 10_128]
    steps = [new - old for old, new in pairwise([7_000, *windows[:20]])]
    assert steps == sorted(steps, reverse=True), "fast at first, flat at the old window"
    assert steps[0] > 400
    assert steps[18] < 5


def test_cubic_after_a_small_decrease_is_no_slower_than_aimd():
    stage = StageMemory(1_300).decreased(1_024)
    aimd = grown(stage, 5, "aimd")
    assert all(new >= min(1_300, old) for new, old in zip(grown(stage, 5), aimd, strict=True))


def test_without_a_decrease_cubic_probes_by_64():
    assert grown(StageMemory(4_096), 3) == [4_160, 4_224, 4_288]


def sized(*windows: int, bytes_per_slot: float) -> list[Measurement]:
    return [Measurement(window, bytes_per_slot=bytes_per_slot) for window in windows]


def test_over_the_budget_all_windows_shrink_in_proportion():
    seen = sized(8_000, 4_000, 4_000, bytes_per_slot=MIB / 16)
    plan = planner().plan(memory(8_000, 4_000, 4_000), seen)
    assert plan.memory.windows == (4_096, 2_048, 2_048)
    assert plan.changes == ((2, 2_048), (1, 2_048), (0, 4_096))


def test_the_budget_takes_no_window_below_1024_and_still_holds():
    assert fit_budget([9_000, 1_100, 1_100], [100, 100, 100], 1_024, 512_000) == [
        3_072,
        1_024,
        1_024,
    ]


def test_a_size_that_is_not_yet_measured_is_the_one_given_at_the_start():
    planning = planner(budget_bytes=64 * MIB)
    kept = planning.begin([4_096, 4_096, 4_096])
    assert kept.windows == (4_096,) * 3
    seen = [*idle(4_096, 4_096), Measurement(4_096, bytes_per_slot=16_384)]
    plan = planning.plan(kept, seen)
    assert sum(w * s for w, s in zip(plan.memory.windows, (4_096, 4_096, 16_384), strict=True)) <= (
        64 * MIB
    )


def test_the_budget_warns_once_until_it_has_room_to_spare_again():
    planning = planner(budget_bytes=48 * MIB)
    kept = planning.begin([4_096] * 3)
    told = []
    sizes = [4_100.0, 4_090.0, 4_110.0, 4_090.0, 4_120.0, 3_900.0, 4_130.0, 2_500.0, 5_000.0]
    for size in sizes:
        plan = planning.plan(kept, sized(*kept.windows, bytes_per_slot=size))
        kept = plan.memory
        told += [(size, plan.warning)] if plan.warning else []
    assert [size for size, _ in told] == [4_100.0, 5_000.0]
    assert "cut to the budget of 48 MiB" in told[0][1]


def test_start_fails_with_the_numbers_if_the_smallest_windows_break_the_budget():
    with pytest.raises(
        Rejected, match=r"3 stages of 1024 slots\) take 600 MiB, more than the budget of 512 MiB"
    ) as e:
        planner().begin([200 * 1_024] * 3)
    assert e.value.detail == {"budget_bytes": 512 * MIB, "least_bytes": 600 * MIB}


def test_start_fits_the_first_windows_into_the_budget():
    kept = planner().begin([100 * 1_024] * 3)
    assert 1_024 <= min(kept.windows) <= max(kept.windows) < 4_096
    assert sum(kept.windows) * 100 * 1_024 <= 512 * MIB


def test_as_many_measurements_as_stages():
    with pytest.raises(Rejected, match="3 stages need as many measurements, not 2"):
        planner().plan(memory(4_096, 4_096, 4_096), idle(4_096, 4_096))


@pytest.mark.parametrize(
    "numbers", [{"window_min": 0}, {"window_initial": 9}, {"window_max": 2_000}]
)
def test_windows_out_of_order_are_refused(numbers):
    with pytest.raises(Rejected, match="window_min <= window_initial <= window_max"):
        planner(**numbers)
