"""The ladder, its hysteresis, and that a lone item never waits for a window."""

from __future__ import annotations

import pytest

from penstock.flow.governor import (
    PUSH_SHARE_MAX,
    PUSH_SHARE_MIN,
    PUSH_WITHIN_MS,
    STEADY,
    Governor,
    Level,
    Load,
    Weights,
    climb,
    hold_ms,
)


@pytest.mark.parametrize(
    ("pressure", "level", "coalesce_ms", "window_ms"),
    [
        (0.0, Level.STEADY, 0.0, 0.5),
        (0.2, Level.STEADY, 0.0, 0.5),
        (0.21, Level.COALESCE, 0.25, 0.5),
        (0.4, Level.COALESCE, 5.0, 0.5),
        (0.41, Level.WIDEN, 5.25, 0.5 + 9.5 / 60),
        (0.7, Level.WIDEN, 12.5, 5.25),
        (1.0, Level.WIDEN, 20.0, 10.0),
    ],
)
def test_each_rung_has_its_published_values(
    pressure: float, level: Level, coalesce_ms: float, window_ms: float
) -> None:
    rung = climb(pressure, STEADY)
    assert rung.level is level
    assert rung.coalesce_ms == pytest.approx(coalesce_ms)
    assert rung.commit_window_ms == pytest.approx(window_ms)
    assert not rung.deferring
    assert not rung.refusing


def test_deferral_needs_three_hot_samples_in_a_row() -> None:
    rung = STEADY
    for pressure, deferring in (
        (0.9, False),
        (0.9, False),
        (0.8, False),
        (0.9, False),
        (0.81, False),
        (1.0, True),
    ):
        rung = climb(pressure, rung)
        assert rung.deferring is deferring


def test_deferral_is_released_only_below_0_6() -> None:
    rung = STEADY
    for _ in range(3):
        rung = climb(0.85, rung)
    for pressure in (0.79, 0.61, 0.6):
        rung = climb(pressure, rung)
        assert (rung.deferring, rung.level) == (True, Level.DEFER)
    rung = climb(0.599, rung)
    assert (rung.deferring, rung.level) == (False, Level.WIDEN)
    assert not climb(0.79, rung).deferring, "once released it takes three hot samples again"


def test_writes_are_refused_when_what_waits_would_take_too_long_and_only_then() -> None:
    assert not climb(1.0, STEADY).refusing
    assert not climb(1.0, STEADY, drain_ms=2_000, drain_ms_max=2_000).refusing
    rung = climb(0.3, STEADY, drain_ms=3_450.2, drain_ms_max=2_000)
    assert (rung.refusing, rung.level, rung.retry_after_ms) == (True, Level.REFUSE, 3_451)
    rung = climb(1.0, rung, drain_ms=100, drain_ms_max=2_000)
    assert (rung.refusing, rung.retry_after_ms) == (False, None)


def test_the_rung_is_a_pure_function_of_pressure_and_the_rung_before() -> None:
    before = climb(0.9, climb(0.9, STEADY))
    assert climb(0.9, before) == climb(0.9, before)
    assert before.hot_samples == 2


@pytest.mark.parametrize("pressure", [0.0, 0.3, 0.5, 0.9, 1.0])
def test_a_lone_item_never_waits_for_a_window(pressure: float) -> None:
    window_ms = climb(pressure, STEADY).commit_window_ms
    assert hold_ms(window_ms, queued=1, since_last_ms=0.0) == 0.0
    assert hold_ms(window_ms, queued=0, since_last_ms=0.0) == 0.0


def test_a_window_is_held_for_several_items_but_counts_from_the_last_group() -> None:
    assert hold_ms(10.0, queued=5, since_last_ms=4.0) == 6.0
    assert hold_ms(10.0, queued=5, since_last_ms=11.0) == 0.0


def test_the_smallest_window_holds_nothing() -> None:
    assert hold_ms(0.5, queued=64, since_last_ms=0.0) == 0.0


def test_an_idle_machine_has_no_pressure_and_a_flooded_one_has_full_pressure() -> None:
    governor = Governor()
    assert governor.sample(Load(0, 4, 0.0, 0.0)).pressure == 0.0
    for _ in range(40):
        governor.sample(Load(400, 4, 50.0, 1.0))
    assert governor.pressure == pytest.approx(1.0)


def test_one_signal_alone_never_defers() -> None:
    for load in (Load(10_000, 1, 0.0, 0.0), Load(0, 1, 10_000.0, 0.0), Load(0, 1, 0.0, 1.0)):
        governor = Governor()
        for _ in range(100):
            governor.sample(load)
        assert not governor.rung.deferring


def test_one_slow_sample_moves_the_smoothed_latency_only_by_its_share() -> None:
    governor = Governor()
    assert governor.sample(Load(0, 1, 5.0, 0.0)).pressure == pytest.approx(0.4 * 0.3)
    assert governor.sample(Load(0, 1, 0.0, 0.0)).pressure == pytest.approx(0.4 * 0.3 * 0.7)


def test_pushing_has_a_quarter_of_the_time_at_least_and_three_quarters_at_most() -> None:
    governor = Governor()
    assert governor.push_share == PUSH_SHARE_MIN
    for _ in range(40):
        governor.share_push(10 * PUSH_WITHIN_MS)
    assert governor.push_share == PUSH_SHARE_MAX
    for _ in range(40):
        governor.share_push(0.0)
    assert governor.push_share == PUSH_SHARE_MIN


def test_the_share_of_pushing_is_what_serves_all_that_waits_soon_enough() -> None:
    governor = Governor()
    for _ in range(40):
        governor.share_push(0.4 * PUSH_WITHIN_MS)
    assert governor.push_share == pytest.approx(0.4)


def test_weights_must_add_up_to_one() -> None:
    with pytest.raises(ValueError, match="add up to 1"):
        Weights(0.5, 0.5, 0.5)
