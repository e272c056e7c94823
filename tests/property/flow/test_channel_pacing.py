"""Pacing: whatever the receiver does, a channel with an insatiable sender rests inside its zone."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.flow.channel import WindowedChannel

MEASURE_STEPS = 10  # of 10 ms


def saturated(window: int, drains: list[int]) -> tuple[WindowedChannel[int], list[float]]:
    """Offer without end, finish so many items in each step; occupancy at every measurement."""
    channel: WindowedChannel[int] = WindowedChannel(window)
    samples = []
    for step, drain in enumerate(drains, 1):
        channel.try_send_many(range(window))
        channel.done(len(channel.receive_up_to(drain)))
        if step % MEASURE_STEPS == 0:
            channel.measure(step * 10)
            samples.append(channel.occupancy)
    return channel, samples


def inside(samples: list[float]) -> float:
    return sum(0.50 <= sample <= 0.85 for sample in samples) / len(samples)


@st.composite
def drains(draw: st.DrawFn, *, window: int, share_max: float) -> list[int]:
    """Receivers that change their pace every now and then and are uneven within it."""
    steps: list[int] = []
    while len(steps) < 600:
        pace = draw(st.integers(0, int(share_max * window)))
        uneven = draw(st.lists(st.integers(0, 2 * pace), min_size=1, max_size=20))
        steps += (uneven * 60)[: draw(st.integers(10, 200))]
    return steps


@settings(max_examples=40)
@given(st.data(), st.integers(1_024, 131_072))
def test_a_saturated_channel_is_inside_its_zone_for_nine_samples_of_ten(data, window):
    """However the receiver changes its pace, up to a standstill: it never had more than 0.15."""
    _, samples = saturated(window, data.draw(drains(window=window, share_max=0.007)))
    assert inside(samples) >= 0.90


@settings(max_examples=25)
@given(st.integers(1_024, 131_072), st.floats(0, 0.07))
def test_a_receiver_of_any_steady_pace_leaves_it_inside_its_zone(window, share):
    _, samples = saturated(window, [int(share * window)] * 600)
    assert inside(samples) >= 0.95


@settings(max_examples=25)
@given(st.data(), st.integers(1_024, 131_072))
def test_no_receiver_ever_brings_occupancy_above_the_window(data, window):
    _, samples = saturated(window, data.draw(drains(window=window, share_max=0.7)))
    assert max(samples) <= 1.0


@settings(max_examples=25)
@given(st.integers(1_024, 131_072), st.floats(0.03, 0.07))
def test_a_fast_receiver_that_stops_fills_the_channel_and_the_planner_is_told(window, share):
    """What was granted for its pace stays there: congestion as it is, not cut at a ceiling."""
    channel, _ = saturated(window, [int(share * window)] * 200)
    channel.report(2_000)
    channel.try_send_many(range(window))
    for tick in range(1, 11):
        channel.measure(2_000 + 100 * tick)
        channel.try_send_many(range(window))
    assert channel.report(3_000).occupancy > 0.85


@settings(max_examples=40)
@example(before=1_201, after=1_024, drain=8)  # credits of the larger window, spent in the smaller
@given(
    before=st.integers(1_024, 131_072), after=st.integers(1_024, 131_072), drain=st.integers(0, 8)
)
def test_after_any_resize_it_comes_back_to_its_zone_without_losing_an_item(before, after, drain):
    channel, _ = saturated(before, [drain] * 20)
    sent = channel.items_in
    channel.resize(after)
    assert channel.items_in == sent
    per_step = max(drain, 1)
    drained = 0
    while channel.occupied > 0.85 * after:
        drained += len(channel.receive_up_to(per_step))
        channel.done(min(per_step, channel.occupied - len(channel.items)))
        assert channel.try_send_many(range(1)) == 0 or channel.occupied <= after
    channel.try_send_many(range(after))
    channel.measure(1_000)
    assert 0.50 <= channel.occupancy <= 0.85
    assert channel.items_in == channel.items_out + channel.occupied


@settings(max_examples=25)
@given(st.integers(1_024, 20_000), st.data())
def test_a_receiver_that_keeps_up_never_makes_a_sender_wait(window, data):
    channel: WindowedChannel[int] = WindowedChannel(window)
    for step in range(1, 200):
        offered = data.draw(st.integers(0, int(0.7 * window)))
        assert channel.try_send_many(range(offered)) == offered
        channel.done(len(channel.receive_up_to(offered)))
        if step % MEASURE_STEPS == 0:
            channel.measure(step * 10)
    assert channel.refusals == 0
