from __future__ import annotations

from penstock.flow.channel import WindowedChannel


def test_senders_that_begin_to_be_refused_are_one_event():
    stage = WindowedChannel(10, "a")
    stage.try_send_many(range(10))
    stage.measure(100)
    stage.try_send_many(["x"])
    stage.try_send_many(["x"])
    stage.try_send_many(["x"])
    stage.measure(200)
    stage.measure(300)
    assert stage.backpressure_events == 1


def test_latencies_are_kept_beyond_the_second_that_the_planner_sees():
    stage = WindowedChannel(10, "a")
    for second in range(3):
        stage.try_send_many(["x"])
        stage.receive()
        stage.done(1, 1_000_000)
        stage.report(1_000 * (second + 1))
    assert stage.latency_total.count == 3
