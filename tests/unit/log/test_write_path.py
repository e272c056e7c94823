"""Flying or calling: the quicker way is found, kept, and found again when things change."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.write_path import (
    AVOID_NS_MAX,
    AVOID_NS_MIN,
    CHECKS,
    MS,
    THREAD_EVERY_NS,
    PathChooser,
)


class Disk:
    """Groups one after another; each way takes as long as the test says."""

    def __init__(self, *, flight_us: int, call_us: int) -> None:
        self.chooser = PathChooser()
        self.flight_us = flight_us
        self.call_us = call_us
        self.now_ns = 0
        self.log: list[tuple[int, bool]] = []

    def run(self, seconds: float) -> float:
        """Write groups for so long; the share of them that flew."""
        until_ns = self.now_ns + int(seconds * 1e9)
        flown = count = 0
        while self.now_ns < until_ns:
            flies = self.chooser.picks_async(self.now_ns)
            took_ns = (self.flight_us if flies else self.call_us) * 1_000
            self.log.append((self.now_ns, flies))
            self.now_ns += took_ns
            (self.chooser.async_took if flies else self.chooser.thread_took)(took_ns, self.now_ns)
            flown += flies
            count += 1
        return flown / count


def test_groups_fly_while_flights_are_not_late() -> None:
    disk = Disk(flight_us=240, call_us=200)
    assert disk.run(10) > 0.99
    calls = [now_ns for now_ns, flies in disk.log if not flies][CHECKS - 1 :]
    gaps = [b - a for a, b in pairwise(calls)]
    assert all(THREAD_EVERY_NS <= gap < THREAD_EVERY_NS + 2 * MS for gap in gaps)


def test_late_flights_give_way_to_calls_and_are_tried_ever_more_rarely() -> None:
    disk = Disk(flight_us=3_400, call_us=200)
    disk.run(200)
    assert disk.run(200) < 0.001
    trials = [now_ns for (_, before), (now_ns, flies) in pairwise(disk.log) if flies and not before]
    gaps = [b - a for a, b in pairwise(trials)]
    assert gaps == sorted(gaps)
    assert gaps[0] < 2 * AVOID_NS_MIN + 50 * MS
    assert AVOID_NS_MAX <= gaps[-1] < AVOID_NS_MAX + 50 * MS


def test_groups_fly_again_when_flights_are_quick_again() -> None:
    disk = Disk(flight_us=3_400, call_us=200)
    disk.run(100)
    disk.flight_us = 240
    disk.run(AVOID_NS_MAX / 1e9)
    assert disk.run(10) > 0.99
    disk.flight_us = 3_400
    disk.run(1 + AVOID_NS_MIN / 1e9)
    last_ns = max(now_ns for now_ns, flies in disk.log if flies)
    assert disk.now_ns - last_ns < AVOID_NS_MIN, "the first rest is short again"


def test_a_disk_that_is_slower_in_both_ways_is_flown_to_all_the_same() -> None:
    disk = Disk(flight_us=240, call_us=200)
    disk.run(5)
    disk.flight_us, disk.call_us = 2_400, 2_000
    disk.run(5)
    assert disk.run(20) > 0.99


@pytest.mark.parametrize("calls_us", [(437, 260, 310, 303), (489, 1_449, 378, 3_984)])
def test_a_few_quick_calls_do_not_ground_a_disk_that_is_good(calls_us: tuple[int, ...]) -> None:
    """As seen on a healthy disk: these calls, and flights of 0.4 and 0.7 ms."""
    chooser = PathChooser()
    chooser.async_took(400_000, 0)
    for _ in range(CHECKS):
        chooser.thread_took(200_000, 0)
    flight_us = 395 if max(calls_us) < 1_000 else 703
    while chooser.picks_async(0) and chooser.async_ns < flight_us * 990:
        chooser.async_took(flight_us * 1_000, 0)
    for call_us in calls_us:
        chooser.thread_took(call_us * 1_000, 0)
    assert not chooser.avoids_async(0)


def test_one_flight_proves_nothing_however_long_it_takes() -> None:
    disk = Disk(flight_us=200, call_us=200)
    disk.run(1)
    disk.chooser.async_took(10**12, disk.now_ns)
    assert not disk.chooser.avoids_async(disk.now_ns)


def test_on_trial_one_hopeless_flight_is_enough() -> None:
    """Each would be felt by all that are written meanwhile."""
    disk = Disk(flight_us=8_000, call_us=250)
    disk.run(3.5 * AVOID_NS_MIN / 1e9)
    assert sum(flies for _, flies in disk.log) == 3, "at the start, after a rest, and a longer one"


def test_a_flight_on_trial_is_compared_with_calls_of_the_same_moment() -> None:
    """An idle loop knew calls of 0.2 ms; then 64 writers came, and a pass takes 2 ms."""
    disk = Disk(flight_us=240, call_us=200)
    disk.run(0.002)
    disk.flight_us, disk.call_us = 2_400, 2_000
    assert disk.run(0.5) > 0.95
    assert not disk.chooser.avoids_async(disk.now_ns)


def test_one_call_that_met_a_busy_disk_does_not_make_late_flights_look_good() -> None:
    disk = Disk(flight_us=8_000, call_us=250)
    disk.chooser.async_took(8_000_000, disk.now_ns)
    for took_us in (250, 250, 60_000, 250):
        disk.chooser.thread_took(took_us * 1_000, disk.now_ns)
    assert disk.run(1) < 0.01


def test_a_trial_is_judged_by_its_own_flights_and_by_what_calls_take_then() -> None:
    disk = Disk(flight_us=4_400, call_us=2_000)
    disk.run(1)
    assert disk.chooser.avoids_async(disk.now_ns)
    disk.call_us = disk.flight_us = 200
    disk.run(AVOID_NS_MIN / 1e9)
    assert disk.run(3) > 0.99


def test_groups_that_become_larger_cost_a_few_calls_and_no_rest() -> None:
    disk = Disk(flight_us=240, call_us=200)
    disk.run(3)
    disk.flight_us, disk.call_us = 2_400, 2_000
    assert disk.run(0.5) > 0.95
    assert not disk.chooser.avoids_async(disk.now_ns)


def test_flights_that_began_before_a_rest_change_nothing() -> None:
    disk = Disk(flight_us=3_400, call_us=200)
    disk.run(0.5)
    flight_ns = disk.chooser.async_ns
    assert disk.chooser.avoids_async(disk.now_ns)
    for _ in range(20):
        disk.chooser.async_took(10**9, disk.now_ns)
    assert disk.chooser.async_ns == flight_ns
    assert not disk.chooser.avoids_async(disk.now_ns + AVOID_NS_MIN)


@given(st.lists(st.tuples(st.integers(0, 10**10), st.integers(0, 10**11)), max_size=100))
def test_whatever_it_is_told_it_rests_no_longer_than_it_may(
    told: list[tuple[int, int]],
) -> None:
    chooser, now_ns = PathChooser(), 0
    for took_ns, gap_ns in told:
        now_ns += gap_ns
        (chooser.async_took if chooser.picks_async(now_ns) else chooser.thread_took)(
            took_ns, now_ns
        )
        assert not chooser.avoids_async(now_ns + AVOID_NS_MAX)


@pytest.mark.parametrize("call_us", [1, 50, 10_000])
def test_flights_are_not_judged_before_calls_were_made(call_us: int) -> None:
    chooser = PathChooser()
    assert chooser.picks_async(0)
    for now_ns in range(100):
        chooser.async_took(10**9, now_ns)
    assert not chooser.avoids_async(100)
    for now_ns in range(100, 100 + CHECKS):
        assert not chooser.picks_async(now_ns)
        chooser.thread_took(call_us * 1_000, now_ns)
    assert chooser.avoids_async(100 + CHECKS), "the first of them was far too late"
