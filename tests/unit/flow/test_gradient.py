"""The search for the window beyond which no more goes through."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from penstock.flow.gradient import REST_S, STRETCH_S, Probe

STEP = 64


def searched(rate: Callable[[int], float | None], seconds: int, window: int = 4_096) -> list[int]:
    """The windows of a stage that senders wait for in every second."""
    probe, windows = Probe(), []
    for _ in range(seconds):
        probe, verdict = probe.limited(window, rate(window))
        window = verdict.window + STEP if verdict.kind == "grow" else verdict.window
        windows.append(window)
    return windows


def test_a_rate_that_grows_with_the_window_is_followed():
    assert searched(float, 100)[-1] == 4_096 + 100 * STEP


def test_a_rate_that_stays_ends_the_search_where_its_last_stretch_began():
    windows = searched(lambda _: 1_000.0, 2 * STRETCH_S + REST_S - 1)
    assert max(windows) == 4_096 + (2 * STRETCH_S - 1) * STEP
    assert set(windows[2 * STRETCH_S - 1 :]) == {4_096 + STRETCH_S * STEP}


@pytest.mark.parametrize(("gradient", "follows"), [(0.15, False), (0.4, True)])
def test_a_quarter_of_the_growth_has_to_go_through(gradient, follows):
    windows = searched(lambda window: 1_000 * (window / 4_096) ** gradient, 60)
    assert (windows[-1] == 4_096 + 60 * STEP) == follows


def test_a_window_at_which_less_goes_through_is_left():
    windows = searched(lambda window: 1_000.0 if window <= 4_500 else 500.0, 2 * STRETCH_S)
    assert windows[-1] <= 4_500


@pytest.mark.parametrize("seed", range(5))
def test_a_restless_rate_that_does_not_grow_does_not_carry_the_window_away(seed):
    chance = Random(seed)
    windows = searched(lambda _: chance.uniform(700, 1_300), 600)
    assert windows[-1] < 2 * 4_096


def test_a_plateau_is_tried_again_and_a_stage_that_became_faster_grows():
    probe, window, windows = Probe(), 4_096, []
    for second in range(200):
        flat = second < 60
        probe, verdict = probe.limited(window, 1_000.0 if flat else window / 4)
        window = verdict.window + STEP if verdict.kind == "grow" else verdict.window
        windows.append(window)
    assert max(windows[:60]) < 5_000
    assert windows[-1] > 6_000


def test_seconds_in_which_nobody_waited_say_nothing_and_time_passes_in_them():
    probe = Probe()
    for _ in range(2 * STRETCH_S):
        probe, verdict = probe.limited(4_096, 1_000.0)
    assert verdict.kind == "back"
    for _ in range(REST_S):
        probe = probe.unlimited()
    kinds = []
    for _ in range(STRETCH_S):
        probe, verdict = probe.limited(4_096, 1_000.0)
        kinds.append(verdict.kind)
    assert kinds == ["rest"] * (STRETCH_S - 1) + ["grow"]


def test_seconds_in_which_nothing_was_finished_grow_the_window_and_are_not_compared():
    assert searched(lambda _: None, 20)[-1] == 4_096 + 20 * STEP
