"""How long what waits would take: measured while more waits than can leave, and only then."""

from __future__ import annotations

import math

import pytest

from penstock.flow.drain import FIRST_RATE, ROOM_MIN, Drain
from penstock.kernel.units import MIB

SPAN_MS = 100


def full(drain: Drain, rate: float, *, samples: int = 30, waiting: int = 512 * MIB) -> None:
    """More waits than can leave, for a while."""
    for _ in range(samples):
        drain.sample(waiting, int(rate * SPAN_MS / 1e3), SPAN_MS)


@pytest.mark.parametrize("rate", [5 * MIB, 50 * MIB, 500 * MIB])
def test_a_full_queue_tells_its_rate_and_so_how_much_may_wait(rate: int) -> None:
    drain = Drain(2_000)
    full(drain, rate)
    assert drain.rate == pytest.approx(rate, rel=0.1)
    assert drain.room == pytest.approx(2 * rate, rel=0.1)
    assert drain.estimate_ms(3 * rate) == pytest.approx(3_000, rel=0.1)


def test_a_queue_that_is_nearly_empty_tells_nothing() -> None:
    """A thousand small writes a second are what came, and not what could be written."""
    drain = Drain(2_000)
    for _ in range(100):
        drain.sample(1_000, 100_000, SPAN_MS)
    assert drain.rate == FIRST_RATE


def test_more_that_leaves_with_time_to_spare_raises_the_rate() -> None:
    drain = Drain(2_000)
    full(drain, 5 * MIB)
    for _ in range(60):
        drain.sample(0, 20 * MIB, SPAN_MS)
    assert drain.rate == pytest.approx(200 * MIB, rel=0.1)


def test_a_queue_that_is_left_in_large_groups_has_the_rate_of_all_of_them() -> None:
    drain, waiting = Drain(2_000), 20 * MIB
    rates = []
    for number in range(200):
        finished = 16 * MIB if number % 10 == 9 else 0
        drain.sample(waiting - finished, finished, SPAN_MS)
        rates.append(drain.rate)
    assert all(rate == pytest.approx(16 * MIB, rel=0.35) for rate in rates[60:])


def test_a_rate_is_learnt_in_two_seconds_and_follows_a_disk_that_becomes_slower() -> None:
    drain = Drain(2_000)
    full(drain, 100 * MIB, samples=20)
    assert drain.rate == pytest.approx(100 * MIB, rel=0.3)
    full(drain, 10 * MIB, samples=60)
    assert drain.rate == pytest.approx(10 * MIB, rel=0.5)


def test_a_rate_that_is_old_gives_way_at_once() -> None:
    drain = Drain(2_000)
    full(drain, MIB)
    for _ in range(200):
        drain.sample(0, 0, SPAN_MS)
    full(drain, 100 * MIB, samples=3)
    assert drain.rate > 50 * MIB


def test_however_slow_the_log_seems_a_little_may_wait() -> None:
    drain = Drain(2_000)
    full(drain, 1_000, waiting=40_000)
    assert drain.room == ROOM_MIN


def test_nothing_may_wait_behind_a_log_that_stands_still_for_longer_than_the_limit() -> None:
    drain = Drain(2_000)
    drain.sample(100, 0, SPAN_MS)
    for _ in range(20):
        drain.sample(100, 0, SPAN_MS)
    assert drain.room > 0, "it may yet go on in time"
    drain.sample(100, 0, SPAN_MS)
    assert drain.room == 0
    assert drain.estimate_ms(100) == 2_100
    drain.sample(100, 50, SPAN_MS)
    assert drain.room > 0


def test_a_large_group_that_is_under_way_does_not_make_the_log_look_slow() -> None:
    drain = Drain(2_000)
    full(drain, 16 * MIB)
    before_ms = drain.estimate_ms(32 * MIB)
    for _ in range(9):
        drain.sample(32 * MIB, 0, SPAN_MS)
    assert drain.estimate_ms(32 * MIB) == before_ms
    drain.sample(32 * MIB, 16 * MIB, SPAN_MS)
    assert drain.rate == pytest.approx(16 * MIB, rel=0.05)


def test_without_a_limit_everything_may_wait() -> None:
    drain = Drain(0)
    full(drain, 10)
    assert drain.room == math.inf


def test_nothing_that_waits_takes_no_time() -> None:
    drain = Drain(2_000)
    full(drain, 0, waiting=10)
    assert drain.estimate_ms(0) == 0
