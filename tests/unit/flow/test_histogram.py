"""Quantiles from log-linear buckets are close, whatever the range."""

from __future__ import annotations

from random import Random

import pytest

from penstock.flow.histogram import LatencyHistogram


def test_quantiles_are_within_two_percent_of_the_exact_ones() -> None:
    random = Random(5)
    for spread in (0.3, 1.0, 2.5):
        values = sorted(int(random.lognormvariate(12, spread)) for _ in range(20_000))
        latency = LatencyHistogram()
        for value in values:
            latency.record(value)
        for share in (0.01, 0.5, 0.9, 0.99, 0.999):
            exact = values[max(0, round(share * len(values)) - 1)]
            assert latency.quantiles((share,))[0] == pytest.approx(exact, rel=0.02, abs=1)


def test_every_value_lands_in_a_bucket_next_to_it() -> None:
    for value in [*range(5_000), *(7**n for n in range(5, 15))]:
        latency = LatencyHistogram()
        latency.record(value)
        assert abs(latency.quantiles((1.0,))[0] - value) <= value / 64


def test_values_out_of_range_are_counted_at_the_ends() -> None:
    latency = LatencyHistogram()
    latency.record(-5)
    latency.record(2**80)
    assert latency.count == 2
    assert latency.quantiles((0.5,))[0] == 0
    assert latency.quantiles((1.0,))[0] >= 2**42


def test_one_latency_can_count_for_many_items_and_histograms_add_up() -> None:
    one, other = LatencyHistogram(), LatencyHistogram()
    one.record(10, 99)
    other.record(1_000)
    one.add(other)
    assert (one.count, one.quantiles((0.99,))[0], one.quantiles((1.0,))[0]) == (100, 10, 1_004)
    one.clear()
    assert (one.count, one.quantiles((0.5,))[0]) == (0, 0)


def test_a_histogram_tells_how_many_are_below_bounds():
    latency = LatencyHistogram()
    for value in (1, 5, 5, 100):
        latency.record(value)
    assert latency.cumulative([0, 5, 99, 1_000]) == ([0, 3, 3, 4], 4, 111)
