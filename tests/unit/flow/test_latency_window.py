"""Quantiles of a short window."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.flow.latency_window import LatencyWindow


@given(st.lists(st.integers(0, 2**41), min_size=1, max_size=300), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_quantile_is_off_by_at_most_seven_per_cent(values: list[int], share: float) -> None:
    window = LatencyWindow()
    for value in values:
        window.record(value)
    found = window.take((share,))
    assert found is not None
    exact = sorted(values)[max(1, -int(-share * len(values) // 1)) - 1]
    assert abs(found[0] - exact) <= 0.07 * exact


def test_taking_begins_again_and_nothing_is_not_zero() -> None:
    window = LatencyWindow()
    assert window.take((0.5,)) is None
    window.record(0)
    assert window.take((0.5, 0.99)) == [0, 0]
    assert window.take((0.5,)) is None
    window.record(9)
    assert window.take((0.5,)) == [9]


def test_values_out_of_range_count_as_the_first_and_the_last_bucket() -> None:
    window = LatencyWindow()
    window.record(-5)
    window.record(2**80)
    found = window.take((0.5, 1.0))
    assert found is not None
    assert found[0] == 0
    assert found[1] > 2**41


def test_both_sides_of_the_exact_buckets() -> None:
    for value in (15, 16):
        window = LatencyWindow()
        window.record(value)
        found = window.take((0.5,))
        assert found is not None
        assert abs(found[0] - value) <= 1
