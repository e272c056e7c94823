"""Effective priority: the published reference points, clamps, ageing, bands."""

from __future__ import annotations

import pytest

from penstock.flow.priority import (
    TOPIC_BANDS,
    Bands,
    Urgency,
    ageing,
    effective_priority,
    ms_until,
    recency,
)


@pytest.mark.parametrize(
    ("idle_s", "points"),
    [(0, 500), (15, 354), (30, 250), (60, 125), (120, 31), (300, 0), (9_999, 0)],
)
def test_recency_meets_its_reference_points(idle_s: int, points: int) -> None:
    assert abs(recency(idle_s * 1_000) - points) <= 1


def test_recency_follows_the_formula_everywhere_to_one_point() -> None:
    for idle_ms in range(0, 300_000, 7):
        assert abs(recency(idle_ms) - 500 * 2 ** (-idle_ms / 30_000)) <= 1.1


def test_recency_is_zero_from_the_five_minute_floor_on_and_full_for_a_clock_that_went_back() -> (
    None
):
    assert recency(299_999) == 0, "500 / 1024 rounds to nothing"
    assert recency(300_000) == 0
    assert recency(-5) == 500


def test_a_manual_priority_overrides_recency_and_is_clamped() -> None:
    used_now = Urgency(priority=-3, last_consumed_ms=100)
    assert effective_priority(used_now, now_ms=100, waited_ms=0) == -3
    assert effective_priority(Urgency(priority=5_000), now_ms=0, waited_ms=0) == 1_000
    assert effective_priority(Urgency(priority=-5_000), now_ms=0, waited_ms=0) == -1_000


def test_without_auto_priority_or_any_consumer_only_age_counts() -> None:
    assert (
        effective_priority(Urgency(auto_priority=False, last_consumed_ms=0), now_ms=0, waited_ms=0)
        == 0
    )
    assert effective_priority(Urgency(), now_ms=50_000, waited_ms=2_000) == 200


def test_ageing_adds_a_hundred_a_second_and_stops_at_a_thousand() -> None:
    assert [ageing(ms) for ms in (0, 9, 10, 1_000, 9_999, 10_000, 90_000)] == [
        0,
        0,
        1,
        100,
        999,
        1_000,
        1_000,
    ]


@pytest.mark.parametrize(
    ("priority", "band"),
    [
        (-1_000, 0),
        (-1, 0),
        (0, 1),
        (249, 1),
        (250, 2),
        (499, 2),
        (500, 3),
        (749, 3),
        (750, 4),
        (2_000, 4),
    ],
)
def test_topic_bands_begin_where_the_table_says(priority: int, band: int) -> None:
    assert TOPIC_BANDS.of(priority, waited_ms=0) == band


def test_the_full_ageing_time_means_the_top_band_whatever_the_priority() -> None:
    assert TOPIC_BANDS.of(-1_000, waited_ms=10_000) == 4
    assert TOPIC_BANDS.of(-1_000, waited_ms=9_900) == 0


def test_lowered_is_one_band_less_but_never_among_the_negative_ones() -> None:
    bands = [TOPIC_BANDS.of(p, 0, lowered=True) for p in (-1, 0, 250, 500, 750)]
    assert bands == [0, 1, 1, 2, 3]


@pytest.mark.parametrize("priority", [-1_000, -7, 0, 249, 733])
@pytest.mark.parametrize("target", [0, 250, 750])
def test_ms_until_is_the_first_millisecond_at_which_ageing_is_enough(
    priority: int, target: int
) -> None:
    span_ms = ms_until(target, priority)
    assert priority + ageing(span_ms) >= min(target, priority + 1_000)
    assert span_ms == 0 or priority + ageing(span_ms - 1) < target


def test_bands_with_falling_floors_or_missing_weights_are_refused() -> None:
    for floors, weights in (((5, 1), (1, 1, 1)), ((1, 5), (1, 1)), ((1, 1), (1, 1, 1))):
        with pytest.raises(ValueError, match="floors"):
            Bands(floors, weights)
