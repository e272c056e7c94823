"""A rate that is looked at seldom against one that sees every event."""

from __future__ import annotations

from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.flow.rate import SPAN_MS, LazyRate

EVENTS = st.lists(st.integers(1, 3_000), min_size=1, max_size=200)


class SeesAll:
    """Every event adds one over the span, and everything decays."""

    def __init__(self) -> None:
        self.per_s, self.now_ms = 0.0, 0

    def pass_to(self, now_ms: int) -> float:
        self.per_s *= exp((self.now_ms - now_ms) / SPAN_MS)
        self.now_ms = now_ms
        return self.per_s

    def happen(self) -> None:
        self.per_s += 1e3 / SPAN_MS


@given(EVENTS)
def test_looked_at_after_each_event_it_sees_all(gaps_ms: list[int]) -> None:
    """Spread over the time before it, an event counts a little less."""
    seen, lazy = SeesAll(), LazyRate(0, 0)
    now_ms = 0
    for count, gap_ms in enumerate(gaps_ms, 1):
        now_ms += gap_ms
        seen.pass_to(now_ms)
        seen.happen()
        found = lazy.look(count, now_ms, now_ms)
        assert 0 < found <= seen.per_s * 1.001
        assert found >= seen.per_s * exp(-max(gaps_ms) / SPAN_MS) * 0.999


@given(st.integers(1, 500), st.integers(1, 60))
def test_a_steady_rate_is_found_however_often_it_is_looked_at(per_s: int, every_s: int) -> None:
    lazy = LazyRate(0, 0)
    for second in range(every_s, 60 + 2 * every_s, every_s):
        found = lazy.look(per_s * second, second * 1_000, second * 1_000)
    assert found == pytest.approx(per_s, rel=0.01)


@given(st.integers(1, 10**6), st.integers(0, 10**4))
def test_silence_ends_a_rate_whether_it_was_looked_at_meanwhile_or_not(
    count: int, burst_ms: int
) -> None:
    lazy = LazyRate(0, 0)
    assert lazy.look(count, burst_ms, burst_ms + 60 * SPAN_MS) < 1e-6


def test_a_look_at_the_same_time_changes_nothing() -> None:
    lazy = LazyRate(0, 0)
    first = lazy.look(10, 900, 1_000)
    assert lazy.look(99, 1_000, 1_000) == first
    assert lazy.look(99, 1_000, 900) == first
