"""Turns of topics: what waits, what is held back on purpose, and what of it counts as load."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable
from unittest import mock

import pytest

from penstock.flow.governor import PUSH_SHARE_MAX, PUSH_SHARE_MIN, STEADY, Weights, climb
from penstock.flow.priority import Urgency
from penstock.testing.clock import ManualClock
from penstock.topics.engine.turns import SLICE_MS, SLICE_MS_MAX, Turns


class Timers:
    """The two calls of a loop that turns need; `pass_ms` lets time go by."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self.waited_ns = [0]  # for a processor

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.call_later(0.0, callback)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._count += 1
        due_ns = self.clock.monotonic_ns() + round(seconds * 1e9)
        heapq.heappush(self._waiting, (due_ns, self._count, callback))

    def pass_ms(self, ms: float) -> None:
        end_ns = self.clock.monotonic_ns() + round(ms * 1e6)
        while self._waiting and self._waiting[0][0] <= end_ns:
            due_ns, _, callback = heapq.heappop(self._waiting)
            self.clock.advance(max(0, due_ns - self.clock.monotonic_ns()) / 1e6)
            callback()
        self.clock.advance(max(0, end_ns - self.clock.monotonic_ns()) / 1e6)


def start(served: list[str], serving_ms: float = 0) -> tuple[Turns, Timers]:
    clock = ManualClock()
    timers = Timers(clock)
    waited_ns = timers.waited_ns

    def serve(topic: str) -> None:
        served.append(topic)
        clock.advance(serving_ms)

    turns = Turns(
        serve,
        lambda _topic: Urgency(),
        loop=timers,  # type: ignore[arg-type]
        clock=clock,
        on_rung=lambda _rung: None,
        on_busy=lambda _share: None,
        drain=lambda _span_ms: (0.0, math.inf),
        waited_ns=lambda: waited_ns[0],
    )
    turns.start()
    return turns, timers


def test_a_topic_is_served_once_however_often_it_was_marked():
    served: list[str] = []
    turns, timers = start(served)
    for _ in range(3):
        turns.mark("a")
        turns.mark("b")
    timers.pass_ms(0)
    assert sorted(served) == ["a", "b"]


def test_turns_that_were_held_back_on_purpose_do_not_hold_back_later_ones():
    served: list[str] = []
    turns, timers = start(served)
    turns.governor.rung = climb(0.6, STEADY)
    turns.mark("t")
    timers.pass_ms(turns.rung.coalesce_ms - 1)
    assert not served, "under pressure a turn waits for more to carry"
    with mock.patch.object(time, "thread_time_ns", timers.clock.monotonic_ns):  # always busy
        for _ in range(200):
            turns.mark("t")
            timers.pass_ms(5)
    assert served
    assert turns.rung.coalesce_ms < 1, "a busy loop alone is no reason to wait"


def test_topics_that_wait_for_the_loop_raise_the_pressure():
    turns, timers = start([])
    for _ in range(60):
        turns.mark("t")
        timers.clock.advance(10)  # the loop was busy with something else
        timers.pass_ms(0)
    assert turns.rung.coalesce_ms > 0


def test_a_backlog_is_served_without_pauses_once_its_turn_has_come():
    served: list[str] = []
    turns, timers = start(served, serving_ms=1)
    turns.force_pressure(0.7)
    for number in range(200):
        turns.mark(f"t{number}")
    timers.pass_ms(turns.rung.coalesce_ms - 1)
    assert not served, "it is held back once"
    timers.pass_ms(1 + 200)
    assert len(served) == 200, "and not again after each slice of it"


def test_what_is_marked_while_a_backlog_is_served_does_not_hold_it_back():
    served: list[str] = []
    turns, timers = start(served, serving_ms=1)
    turns.force_pressure(0.7)
    serve = turns._serve

    def serve_and_mark(topic: str) -> None:
        serve(topic)
        if len(served) < 200:
            turns.mark(topic)  # as a source with very many routers does

    turns._serve = serve_and_mark
    for number in range(10):
        turns.mark(f"t{number}")
    timers.pass_ms(turns.rung.coalesce_ms + 210)
    assert len(served) >= 200


def test_time_in_the_run_queue_counts_as_busy():
    """A thread that waits for a processor computes nothing, and has no time to spare either."""
    turns, timers = start([])
    for _ in range(20):
        timers.waited_ns[0] += 100_000_000
        timers.pass_ms(100)
    assert turns.rung.pressure == pytest.approx(Weights().pool, abs=0.01)


def passes(timers: Timers, count: int, others_ms: float) -> float:
    """So many passes of a loop that is busy with others; what part of the time was for topics."""
    began_ms = timers.clock.monotonic_ms()
    for _ in range(count):
        timers.clock.advance(others_ms)
        timers.pass_ms(0)
    return 1 - count * others_ms / (timers.clock.monotonic_ms() - began_ms)


def flood(turns: Turns, count: int) -> None:
    for number in range(count):
        turns.mark(f"t{number}")


@pytest.mark.parametrize("others_ms", [10, 40, 120])
def test_topics_that_wait_get_their_share_of_a_pass_however_long_it_is(others_ms):
    served: list[str] = []
    turns, timers = start(served, serving_ms=0.5)
    flood(turns, 100_000)
    assert passes(timers, 20, others_ms) >= PUSH_SHARE_MIN - 0.01


def test_short_passes_are_not_made_much_longer_by_topics_that_wait():
    turns, timers = start([], serving_ms=0.5)
    flood(turns, 1_000)
    timers.clock.advance(0.1)
    before_ms = timers.clock.monotonic_ms()
    timers.pass_ms(0)
    assert timers.clock.monotonic_ms() - before_ms == SLICE_MS


def test_no_pass_is_so_long_that_requests_wait_without_end_for_topics():
    turns, timers = start([], serving_ms=0.5)
    flood(turns, 100_000)
    timers.clock.advance(60_000)
    before_ms = timers.clock.monotonic_ms()
    timers.pass_ms(0)
    assert timers.clock.monotonic_ms() - before_ms == SLICE_MS_MAX


def test_the_share_grows_with_what_waits_and_shrinks_when_it_is_served():
    served: list[str] = []
    turns, timers = start(served, serving_ms=0.5)
    flood(turns, 2_000)
    first = passes(timers, 10, 20)
    assert turns.view()["push_share"] == PUSH_SHARE_MAX
    assert passes(timers, 10, 20) > first
    while len(served) < 2_000:
        passes(timers, 1, 20)
    passes(timers, 100, 20)
    assert turns.view()["push_share"] == PUSH_SHARE_MIN


def test_a_push_that_goes_on_takes_one_step_in_a_short_pass_and_several_in_a_long_one():
    turns, timers = start([])
    steps: list[int] = []

    def step() -> None:
        steps.append(timers.clock.monotonic_ms())
        timers.clock.advance(0.5)
        turns.later(step)

    turns.later(step)
    timers.pass_ms(0)
    assert len(steps) == 1
    timers.clock.advance(30)
    timers.pass_ms(0)
    assert len(steps) == 1 + 30 * PUSH_SHARE_MIN / (1 - PUSH_SHARE_MIN) / 0.5


def test_topics_and_pushes_that_go_on_divide_the_share():
    served: list[str] = []
    turns, timers = start(served, serving_ms=0.5)
    steps: list[int] = []

    def step() -> None:
        steps.append(1)
        timers.clock.advance(0.5)
        turns.later(step)

    turns.later(step)
    flood(turns, 10_000)
    passes(timers, 1, 60)
    half = 60 * PUSH_SHARE_MIN / (1 - PUSH_SHARE_MIN) / 0.5 / 2
    assert len(steps) == half
    assert half <= len(served) < 1.5 * half


def test_a_step_that_fails_stops_no_other():
    turns, timers = start([])
    steps: list[str] = []

    def fail() -> None:
        raise ValueError("boom")

    turns.later(fail)
    turns.later(lambda: steps.append("other"))
    timers.pass_ms(0)
    timers.pass_ms(0)
    assert steps == ["other"]
