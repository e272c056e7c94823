"""The job of three stages behind its topic, in virtual time, under one planner with the edge."""

from __future__ import annotations

import pytest

from tests.simulator.chain import Chain, Costs

MINIMUM = 1_024
LINEAR = Costs(fixed_ms=(15, 30, 20), per_item_ms=(0.05, 0.2, 0.05))
FIXED = Costs(fixed_ms=(60, 120, 80), per_item_ms=(0.005, 0.02, 0.005))
SLOW_STORE = Costs(fixed_ms=(15, 20, 60), per_item_ms=(0.05, 0.05, 0.2), commit_ms=150)
COLD = Costs(fixed_ms=(15, 30, 20), per_item_ms=(0.05, 0.2, 0.05), start_ms=14_000)
ALL = {"linear": LINEAR, "fixed": FIXED, "slow store": SLOW_STORE, "cold": COLD}


def flooded(costs: Costs) -> Chain:
    return Chain(costs, offered_per_s=20_000)


def inside(samples: list[float]) -> float:
    return sum(0.50 <= sample <= 0.85 for sample in samples) / len(samples)


@pytest.mark.parametrize("costs", ALL.values(), ids=ALL)
def test_the_saturated_stages_are_inside_their_zone_for_nine_samples_of_ten(costs):
    chain = flooded(costs).run(30_000)
    samples: dict[str, list[float]] = {stage.name: [] for stage in chain.windows.stages}
    for _ in range(300):
        chain.run(100)
        for stage in chain.windows.stages:
            samples[stage.name].append(stage.status().samples[-1].occupancy)
    assert {name: inside(found) >= 0.90 for name, found in samples.items()} == dict.fromkeys(
        samples, True
    )


@pytest.mark.parametrize("costs", ALL.values(), ids=ALL)
def test_the_stages_of_the_job_have_one_window_all_the_time(costs):
    chain = flooded(costs).run(30_000)
    chain.is_held = True
    chain.run(6_000)
    chain.is_held = False
    chain.run(20_000)
    assert all(len(set(windows[1:])) == 1 for windows in chain.looks)


@pytest.mark.parametrize("costs", ALL.values(), ids=ALL)
def test_windows_are_stable_half_a_minute_after_the_load_came(costs):
    chain = flooded(costs).run(60_000)
    for windows in zip(*chain.looks[300:], strict=True):
        mean = sum(windows) / len(windows)
        assert 0.85 * mean <= min(windows) <= max(windows) <= 1.15 * mean


@pytest.mark.parametrize("costs", ALL.values(), ids=ALL)
def test_a_held_store_takes_all_to_the_minimum_in_five_seconds_and_they_return_in_ten(costs):
    chain = flooded(costs).run(45_000)
    before = chain.looks[-1]
    chain.is_held = True
    chain.run(5_000)
    assert set(chain.looks[-1]) == {MINIMUM}
    assert chain.windows.status().bottleneck == "store"
    chain.run(7_000)
    assert set(chain.looks[-1]) == {MINIMUM}
    chain.is_held = False
    chain.run(10_000)
    returned = [max(windows) for windows in zip(*chain.looks[-100:], strict=True)]
    assert all(now >= was for now, was in zip(returned, before, strict=True))


def test_a_start_of_fourteen_seconds_under_full_load_shrinks_no_window():
    chain = flooded(COLD).run(16_000)
    assert min(map(min, chain.looks)) == 4_096
    assert chain.stored > 0


def test_batches_of_mostly_fixed_cost_grow_and_more_goes_through():
    chain = flooded(FIXED).run(10_000)
    early = chain.stored
    chain.run(80_000)
    late = chain.stored
    chain.run(10_000)
    assert min(chain.looks[-1][1:]) > 2 * 4_096
    assert chain.stored - late > 1.5 * early


def test_batches_whose_cost_is_that_of_their_messages_do_not_grow():
    chain = flooded(LINEAR).run(180_000)
    assert max(map(max, chain.looks)) < 1.5 * 4_096


@pytest.mark.parametrize("costs", [LINEAR, FIXED, SLOW_STORE], ids=["linear", "fixed", "store"])
def test_no_more_stands_in_the_topic_than_drains_in_two_seconds(costs):
    chain = flooded(costs).run(60_000)
    behind, stored = chain.behind[-1], chain.stored
    chain.run(2_500)
    assert chain.stored - stored >= behind


def test_batches_that_take_more_than_a_second_still_follow_one_another_without_a_gap():
    costs = Costs(fixed_ms=(300, 500, 400), per_item_ms=(0.05, 0.05, 0.05))
    chain = flooded(costs).run(60_000)
    stored = chain.stored
    chain.run(30_000)
    batch = chain.stages.batch_messages
    possible = 30_000 / sum(costs.spent_ms(batch)) * batch
    assert chain.stored - stored >= 0.7 * possible


def test_a_load_that_it_keeps_up_with_is_not_held_back():
    chain = Chain(LINEAR, offered_per_s=1_000).run(30_000)
    assert chain.stored >= 29_000
    assert not any(stage.backpressure_events for stage in chain.windows.status().stages)


@pytest.mark.parametrize("slow", range(3))
def test_the_stage_that_is_slowed_is_named(slow):
    per_item_ms = [0.02, 0.02, 0.02]
    per_item_ms[slow] = 0.3
    chain = flooded(Costs((10, 10, 10), tuple(per_item_ms))).run(15_000)
    assert chain.windows.status().bottleneck == ("parse", "evaluate", "store")[slow]


def test_a_slow_store_is_named_although_what_it_lets_in_is_all_in_the_job():
    chain = Chain(Costs((15, 20, 20), (0.01, 0.01, 0.01), commit_ms=1_500), offered_per_s=2_000)
    chain.run(30_000)
    named = [chain.run(100).windows.status().bottleneck for _ in range(100)]
    assert set(named) <= {"evaluate", "store"}, "in a second without the end of a commit the other"
    assert named.count("store") > 60
