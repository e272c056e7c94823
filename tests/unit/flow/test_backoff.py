"""Delays double to a cap, jitter is subtracted, the window ends it."""

from __future__ import annotations

from random import Random

import pytest

from penstock.flow.backoff import Backoff

COMMITS = Backoff(base_ms=25 / 32, cap_ms=1_000, jitter=0.0, window_ms=30_000)


def test_nominal_delays_double_from_the_base_to_the_cap() -> None:
    delays = [COMMITS.nominal_ms(n) for n in range(1, 14)]
    assert delays[:8] == [0.78125, 1.5625, 3.125, 6.25, 12.5, 25, 50, 100]
    assert delays[8:] == [200, 400, 800, 1_000, 1_000]
    assert COMMITS.nominal_ms(10**9) == 1_000


def test_jitter_only_shortens_and_fills_its_range() -> None:
    policy = Backoff(base_ms=100, cap_ms=100, jitter=0.5, window_ms=1e9)
    random = Random(1)
    delays = [policy.next_ms(1, elapsed_ms=0, random=random) or 0 for _ in range(5_000)]
    assert min(delays) >= 50
    assert max(delays) <= 100
    assert min(delays) < 51
    assert max(delays) > 99


def test_no_delay_follows_the_end_of_the_window_and_the_last_one_is_cut_to_it() -> None:
    assert COMMITS.next_ms(12, elapsed_ms=29_900, random=Random(1)) == pytest.approx(100)
    assert COMMITS.next_ms(12, elapsed_ms=30_000, random=Random(1)) is None


def test_a_zero_window_makes_the_first_failure_final() -> None:
    policy = Backoff(base_ms=1, cap_ms=1, jitter=0, window_ms=0)
    assert policy.next_ms(1, elapsed_ms=0, random=Random(1)) is None


def test_values_out_of_range_are_clamped() -> None:
    policy = Backoff(base_ms=5, cap_ms=1, jitter=7, window_ms=-1)
    assert (policy.cap_ms, policy.jitter, policy.window_ms) == (5, 1.0, 0)
    assert Backoff(base_ms=-5, cap_ms=-9, jitter=-1, window_ms=1).nominal_ms(3) == 0


def test_there_is_no_delay_before_the_first_failure() -> None:
    with pytest.raises(ValueError, match="at least one failure"):
        COMMITS.nominal_ms(0)
