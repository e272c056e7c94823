"""The pure channel: credits, pacing, resizing, closing, what it reports."""

from __future__ import annotations

import pytest

from penstock.flow.channel import Closed, WindowedChannel
from penstock.kernel.errors import Rejected


def filled(window: int, count: int) -> WindowedChannel[int]:
    channel: WindowedChannel[int] = WindowedChannel(window)
    assert channel.try_send_many(range(count)) == count
    return channel


def test_a_sender_gets_credits_up_to_the_target_and_then_none() -> None:
    channel: WindowedChannel[int] = WindowedChannel(1_000)
    assert sum(channel.try_send_many([item]) for item in range(1_000)) == 700
    assert channel.room == 0


def test_growing_grants_at_once() -> None:
    channel = filled(100, 70)
    assert not channel.try_send_many([70])
    channel.resize(200)
    assert channel.try_send_many([70])
    assert channel.room == 69


def test_shrinking_below_occupancy_grants_nothing_until_it_has_drained() -> None:
    channel = filled(100, 70)
    channel.resize(10)
    assert channel.occupancy == 7.0
    for left in range(69, 6, -1):
        channel.receive()
        channel.done()
        assert not channel.try_send_many([-1]), f"{left} of 10 slots are taken"
    channel.receive()
    channel.done()
    assert channel.try_send_many([-1])
    assert channel.receive_up_to(99) == [64, 65, 66, 67, 68, 69, -1]


def test_a_received_item_keeps_its_slot_until_it_is_done() -> None:
    channel = filled(10, 7)
    channel.receive_up_to(7)
    assert not channel.try_send_many([8])
    channel.done(1)
    assert channel.try_send_many([8])


def test_finishing_what_was_not_received_is_an_error_and_changes_nothing() -> None:
    channel = filled(10, 5)
    channel.receive_up_to(2)
    for count in (3, -1):
        with pytest.raises(Rejected, match="at most 2 received"):
            channel.done(count)
    assert channel.occupied == 5


def test_a_window_of_one_slot_still_moves_items() -> None:
    channel: WindowedChannel[int] = WindowedChannel(1)
    for item in range(3):
        assert channel.try_send_many([item])
        assert not channel.try_send_many([99])
        assert channel.receive() == item
        channel.done()


def test_close_refuses_senders_and_drains_receivers() -> None:
    channel = filled(10, 3)
    channel.close()
    with pytest.raises(Closed):
        channel.try_send_many([9])
    assert channel.receive_up_to(10) == [0, 1, 2]


@pytest.mark.parametrize("drain", [100, 290])
def test_a_measurement_grants_the_target_plus_what_will_drain(drain: int) -> None:
    channel = filled(1_000, 700)
    for tick in range(50):
        got = channel.receive_up_to(drain)
        channel.done(len(got))
        channel.measure(tick * 100)
        sent = channel.try_send_many(range(channel.room))
        assert tick < 20 or sent == pytest.approx(drain, abs=2), "it settles at the drain rate"
        assert tick < 20 or channel.occupied == pytest.approx(700 + drain, abs=2)


def test_a_receiver_that_slows_down_fills_the_window_beyond_the_zone_and_never_beyond_itself() -> (
    None
):
    channel = filled(1_000, 700)
    for tick in range(60):
        channel.done(len(channel.receive_up_to(290 if tick < 50 else 0)))
        channel.measure(tick * 100)
        channel.try_send_many(range(1_000))
        assert channel.occupied <= 1_000
    assert channel.occupancy > 0.85
    assert channel.report(60_000).occupancy > 0.70


def test_a_window_below_one_slot_is_refused() -> None:
    with pytest.raises(Rejected, match="at least one slot"):
        WindowedChannel(0)


def test_a_report_tells_what_happened_since_the_last_one() -> None:
    channel: WindowedChannel[int] = WindowedChannel(100)
    channel.measure(0)
    channel.report(0)
    channel.try_send_many(range(60), size_bytes=500)
    channel.receive_up_to(40)
    channel.done(40, latency_ns=1_000)
    channel.measure(100)
    report = channel.report(1_000)
    assert (report.items_in, report.items_out, report.rate_per_s) == (60, 40, 40.0)
    assert (report.occupied, report.occupancy, report.bytes_per_slot) == (20, 0.2, 500)
    assert (report.latency_samples, report.p50_ns) == (40, 1_004)
    assert channel.report(2_000).items_in == 0


def test_a_report_says_whether_senders_were_refused() -> None:
    channel = filled(10, 7)
    assert not channel.report(0).refused
    channel.try_send_many([8])
    assert channel.report(0).refused
    assert not channel.report(0).refused


def test_occupancy_is_the_mean_of_every_sample_also_above_the_window() -> None:
    channel = filled(1_000, 700)
    channel.measure(100)
    channel.resize(500)
    channel.measure(200)
    assert channel.report(1_000).occupancy == pytest.approx((0.7 + 1.4) / 2)


def test_a_report_tells_how_long_work_has_been_stuck() -> None:
    channel = filled(10, 2)
    for now_ms in range(0, 3_001, 100):
        channel.measure(now_ms)
    assert channel.report(3_000).stuck_ms == 3_000
    channel.receive()
    channel.done()
    channel.measure(3_100)
    assert channel.report(3_100).stuck_ms == 0


def test_an_empty_channel_is_not_stuck() -> None:
    channel: WindowedChannel[int] = WindowedChannel(10)
    for now_ms in range(0, 9_000, 100):
        channel.measure(now_ms)
    assert channel.report(9_000).stuck_ms == 0


def test_the_mean_size_rises_at_once_and_falls_slowly() -> None:
    channel: WindowedChannel[int] = WindowedChannel(1_000)
    channel.try_send_many(range(10), size_bytes=100)
    assert channel.report(0).bytes_per_slot == 100
    channel.try_send_many(range(10), size_bytes=900)
    assert channel.report(0).bytes_per_slot == 900
    channel.try_send_many(range(10), size_bytes=100)
    assert channel.report(0).bytes_per_slot == pytest.approx(660)
