"""Asynchronous or by a thread: the quicker path is found, kept, and found again."""

from __future__ import annotations

from itertools import cycle, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.write_path import (
    AVOID_NS_MAX,
    AVOID_NS_MIN,
    FLOOR_NS,
    MS,
    PAIRS,
    PAIRS_MIN,
    SETTLE_NS,
    THREAD_EVERY_NS_MAX,
    THREAD_EVERY_NS_MIN,
    PathChooser,
)


class Disk:
    """Groups one after another; each path takes as long as the test says."""

    def __init__(self, *, async_us: int, thread_us: int) -> None:
        self.chooser = PathChooser(0)
        self.async_us = async_us
        self.thread_us = thread_us
        self.now_ns = 0
        self.log: list[tuple[int, bool]] = []

    def run(self, seconds: float) -> float:
        """Write groups for so long; the share of them that was asynchronous."""
        until_ns = self.now_ns + int(seconds * 1e9)
        count = len(self.log)
        while self.now_ns < until_ns:
            self.write()
        written = self.log[count:]
        return sum(is_async for _, is_async in written) / len(written)

    def write(self) -> bool:
        is_async = self.chooser.picks_async(self.now_ns)
        took_ns = (self.async_us if is_async else self.thread_us) * 1_000
        self.log.append((self.now_ns, is_async))
        self.now_ns += took_ns
        tell = self.chooser.async_took if is_async else self.chooser.thread_took
        tell(took_ns, self.now_ns)
        return is_async

    def trials(self) -> list[int]:
        """When groups were asynchronous again after at least a second without."""
        times = [now_ns for now_ns, is_async in self.log if is_async]
        return [b for a, b in pairwise(times) if b - a > 1_000 * MS]


def test_groups_are_asynchronous_while_that_is_not_late() -> None:
    disk = Disk(async_us=240, thread_us=200)
    assert disk.run(10) > 0.99


def test_the_first_groups_use_the_thread_until_the_process_has_settled() -> None:
    chooser = PathChooser()
    assert chooser.avoids_async(0)
    picks = [chooser.picks_async(at_ms * MS) for at_ms in (1_000, 1_100, 1_200)]
    assert picks == [False] * 3
    assert chooser.picks_async(1_000 * MS + SETTLE_NS)


def test_waits_below_the_floor_are_alike() -> None:
    """A busy loop waits for neither path: 1 us against 90 us is no reason to leave one."""
    disk = Disk(async_us=FLOOR_NS // 1_000 - 10, thread_us=1)
    assert disk.run(0.5) > 0.5
    assert not disk.chooser.avoids_async(disk.now_ns)


def test_the_thread_is_timed_often_at_first_and_then_once_a_second() -> None:
    disk = Disk(async_us=240, thread_us=200)
    disk.run(10)
    calls = [now_ns for now_ns, is_async in disk.log if not is_async][PAIRS:]
    gaps = [b - a for a, b in pairwise(calls)]
    assert THREAD_EVERY_NS_MIN <= gaps[0] < 2 * THREAD_EVERY_NS_MIN + 2 * MS
    assert gaps == sorted(gaps) or all(abs(gap - THREAD_EVERY_NS_MAX) < 2 * MS for gap in gaps[5:])
    assert THREAD_EVERY_NS_MAX <= gaps[-1] < THREAD_EVERY_NS_MAX + 2 * MS


def test_late_writes_give_way_to_the_thread_and_are_tried_ever_more_rarely() -> None:
    disk = Disk(async_us=3_400, thread_us=200)
    disk.run(200)
    assert disk.run(200) < 0.001
    gaps = [b - a for a, b in pairwise(disk.trials())]
    assert all(a <= b + 50 * MS for a, b in pairwise(gaps))
    assert gaps[0] < 2 * AVOID_NS_MIN + 50 * MS
    assert AVOID_NS_MAX <= gaps[-1] < AVOID_NS_MAX + 50 * MS


def test_groups_are_asynchronous_again_when_that_is_quick_again() -> None:
    disk = Disk(async_us=3_400, thread_us=200)
    disk.run(100)
    disk.async_us = 240
    disk.run(AVOID_NS_MAX / 1e9)
    assert disk.run(10) > 0.99
    disk.async_us = 3_400
    disk.run(1 + AVOID_NS_MIN / 1e9)
    last_ns = max(now_ns for now_ns, is_async in disk.log if is_async)
    assert disk.now_ns - last_ns < AVOID_NS_MIN, "the first rest is short again"


def test_a_disk_that_is_slower_on_both_paths_is_written_to_asynchronously_all_the_same() -> None:
    disk = Disk(async_us=240, thread_us=200)
    disk.run(5)
    disk.async_us, disk.thread_us = 2_400, 2_000
    assert disk.run(0.5) > 0.9
    assert disk.run(20) > 0.99
    assert not disk.chooser.avoids_async(disk.now_ns)


def test_load_that_comes_during_the_first_trial_grounds_nothing() -> None:
    """An idle loop knew calls of 0.2 ms; then 64 writers came, and a pass takes 2 ms."""
    disk = Disk(async_us=240, thread_us=200)
    for _ in range(PAIRS):
        disk.write()
    disk.async_us, disk.thread_us = 2_400, 2_000
    assert disk.run(0.5) > 0.9
    assert not disk.chooser.avoids_async(disk.now_ns)


def test_a_slow_start_hides_a_late_path_only_for_moments() -> None:
    """A process that just started is slow on both paths; then only the thread is quick."""
    disk = Disk(async_us=1_300, thread_us=1_300)
    for _ in range(2 * PAIRS):
        disk.write()
    disk.async_us, disk.thread_us = 3_000, 250
    disk.run(0.4)
    assert disk.chooser.avoids_async(disk.now_ns)


@pytest.mark.parametrize("calls_us", [(437, 260, 310, 303), (489, 1_449, 378, 3_984)])
def test_a_few_quick_calls_do_not_ground_a_disk_that_is_good(calls_us: tuple[int, ...]) -> None:
    """As seen on a healthy disk: these calls, and asynchronous writes of 0.4 and 0.7 ms."""
    chooser, calls = PathChooser(0), cycle(calls_us)
    async_us = 395 if max(calls_us) < 1_000 else 703
    for now_ns in range(100):
        if chooser.picks_async(now_ns):
            chooser.async_took(async_us * 1_000, now_ns)
        else:
            chooser.thread_took(next(calls) * 1_000, now_ns)
    assert not chooser.avoids_async(100)


def test_one_write_proves_nothing_however_long_it_takes() -> None:
    disk = Disk(async_us=200, thread_us=200)
    disk.run(1)
    disk.chooser.async_took(10**12, disk.now_ns)
    disk.run(0.1)
    assert not disk.chooser.avoids_async(disk.now_ns)


@pytest.mark.parametrize(("async_us", "writes"), [(900, PAIRS_MIN), (8_000, 1)])
def test_on_trial_a_few_hopeless_writes_are_enough(async_us: int, writes: int) -> None:
    """Each would be felt by all that are written meanwhile."""
    disk = Disk(async_us=async_us, thread_us=250)
    disk.run(3.5 * AVOID_NS_MIN / 1e9)
    later = 2  # after four seconds, and after eight more
    assert sum(is_async for _, is_async in disk.log) == PAIRS_MIN + later * writes


def test_after_the_start_one_hopeless_write_is_enough() -> None:
    disk = Disk(async_us=8_000, thread_us=250)
    disk.chooser = PathChooser()
    disk.run(1.0)
    assert sum(is_async for _, is_async in disk.log) == 1
    assert disk.chooser.avoids_async(disk.now_ns)


def test_one_call_that_met_a_busy_disk_does_not_make_late_writes_look_good() -> None:
    disk = Disk(async_us=8_000, thread_us=250)
    disk.write()
    disk.chooser.thread_took(60_000_000, disk.now_ns)
    disk.run(0.2)
    assert disk.chooser.avoids_async(disk.now_ns)


def test_a_trial_is_judged_by_its_own_times() -> None:
    disk = Disk(async_us=4_400, thread_us=2_000)
    disk.run(1)
    assert disk.chooser.avoids_async(disk.now_ns)
    disk.thread_us = disk.async_us = 200
    disk.run(AVOID_NS_MIN / 1e9)
    assert disk.run(3) > 0.99


def test_writes_that_began_before_a_rest_change_nothing() -> None:
    disk = Disk(async_us=3_400, thread_us=200)
    disk.run(0.5)
    assert disk.chooser.avoids_async(disk.now_ns)
    for _ in range(20):
        disk.chooser.async_took(10**9, disk.now_ns)
    assert not disk.chooser.avoids_async(disk.now_ns + AVOID_NS_MIN)


@given(st.lists(st.tuples(st.integers(0, 10**10), st.integers(0, 10**11)), max_size=100))
def test_whatever_it_is_told_it_rests_no_longer_than_it_may(
    told: list[tuple[int, int]],
) -> None:
    chooser, now_ns = PathChooser(0), 0
    for took_ns, gap_ns in told:
        now_ns += gap_ns
        is_async = chooser.picks_async(now_ns)
        (chooser.async_took if is_async else chooser.thread_took)(took_ns, now_ns)
        assert not chooser.avoids_async(now_ns + AVOID_NS_MAX)


@pytest.mark.parametrize("thread_us", [1, 50, 10_000])
def test_nothing_is_judged_before_both_paths_were_taken(thread_us: int) -> None:
    chooser = PathChooser(0)
    for _ in range(PAIRS_MIN):
        assert chooser.picks_async(0)
        assert not chooser.avoids_async(0)
        for now_ns in range(100):
            chooser.async_took(10**9, now_ns)
        assert not chooser.picks_async(100)
        chooser.thread_took(thread_us * 1_000, 100)
    assert chooser.avoids_async(101), "they were far too late"
