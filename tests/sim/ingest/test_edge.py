"""The edge in virtual time: bursts, a topic that blocks, bad networks; nothing lost or doubled."""

from __future__ import annotations

import pytest

from penstock.flow.planner import PlannerPolicy
from penstock.ingest.frames import ErrorCode, encode_fragments, encode_ping
from penstock.ingest.limits import EdgeLimits
from penstock.metering.shapes import SHAPES, Steady, named_shape
from penstock.testing import seeded, seeds
from tests.sim.ingest.world import World

CAPACITY_PER_S = 1_000
MINIMUM = 1_024


def world(seed: int, **more) -> World:
    more.setdefault("devices", 20)
    more.setdefault("capacity_per_s", CAPACITY_PER_S)
    return World(seed, **more)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", seeds(1))
def test_a_burst_of_five_times_the_capacity_makes_devices_wait_and_loses_nothing(shape, seed):
    with seeded(seed):
        load = named_shape(
            shape,
            low_per_s=CAPACITY_PER_S / 10,
            high_per_s=5 * CAPACITY_PER_S,
            period_ms=4_000,
            seed=seed,
        )
        limits = EdgeLimits()
        run = world(seed, shape=load, limits=limits, message_bytes=(200, 800))
        run.run(6_000)
        run.drain(within_ms=60_000)
        run.check()
        assert not any(device.errors for device in run.devices)
        assert run.core.counters.connections == len(run.devices)
        assert run.peak_bytes <= limits.buffered_bytes_max + limits.held_bytes_max
        assert (run.core.held_bytes, run.core.buffered_bytes) == (0, 0)


@pytest.mark.parametrize("seed", seeds(2))
def test_a_blocked_topic_brings_both_windows_to_the_minimum_within_five_seconds(seed):
    with seeded(seed) as random:
        policy = PlannerPolicy(stages=("accept",), window_initial=random.randint(2_000, 131_072))
        run = world(seed, shape=Steady(1.5 * CAPACITY_PER_S), policy=policy)
        run.run(random.randrange(1_000, 4_000, 10))
        run.is_blocked = True
        run.run(5_000)
        assert {stage.window for stage in run.core.stages} == {MINIMUM}
        assert run.windows.status().bottleneck == "reassemble"
        for _ in range(5):
            run.run(1_000)
            assert {stage.window for stage in run.core.stages} == {MINIMUM}
        held = len(run.topic)
        run.is_blocked = False
        run.drain(within_ms=120_000)
        assert len(run.topic) > held
        run.check()
        assert not any(device.errors for device in run.devices)


def test_a_blocked_topic_has_no_more_taken_in_than_the_windows_and_sockets_hold():
    run = world(1, devices=100, shape=Steady(30_000), message_bytes=(100, 100))
    run.is_blocked = True
    run.run(1_000)
    fragments = run.core.accept.occupied + run.core.reassemble.occupied
    assert fragments <= 2 * 4_096
    assert not any(device.reading for device in run.devices if device.core.unacked > 250)
    run.is_blocked, run.capacity_per_s = False, 20_000
    run.drain(within_ms=300_000)
    run.check()


@pytest.mark.parametrize("seed", seeds(2))
def test_lost_connections_lose_and_double_nothing(seed):
    with seeded(seed) as random:
        run = world(seed, shape=Steady(CAPACITY_PER_S / 4), message_bytes=(10, 40_000))
        for _ in range(40):
            run.run(random.randrange(10, 100, 10))
            device = random.choice(run.devices)
            if device.is_connected:
                device.disconnect()
            device.connect()
        run.drain(within_ms=300_000)
        run.check()
        assert not any(device.errors for device in run.devices)


@pytest.mark.parametrize("seed", seeds(2))
def test_large_messages_wait_for_memory_and_all_arrive(seed):
    with seeded(seed):
        limits = EdgeLimits(
            fragment_bytes_max=4_096,
            message_bytes_max=65_536,
            partial_bytes_max=65_536,
            partials_bytes_max=4 * 65_536,
            held_bytes_max=300_000,
        )
        run = world(seed, devices=40, limits=limits, message_bytes=(20_000, 65_000))
        for device in run.devices:
            for _ in range(5):
                device.offer(run.payload())
        run.drain(within_ms=120_000)
        run.check()
        assert not any(device.errors for device in run.devices)
        assert run.core.reassembler.reserved_bytes == 0


def test_a_message_that_is_never_completed_ends_its_connection_and_frees_its_memory():
    run = world(1, devices=3)
    first = run.devices[0]
    first.step()
    first.wire += encode_fragments(1, bytes(50_000), 10_000)[0]
    run.run(29_000)
    assert (run.core.reassembler.reserved_bytes, first.errors) == (524_288, [])
    run.run(3_000)
    assert run.core.reassembler.reserved_bytes == 0
    assert [each.error_code for each in first.errors] == [ErrorCode.TOO_SLOW]
    assert all(not device.errors for device in run.devices[1:])


def test_a_message_that_waits_for_us_may_take_as_long_as_it_takes():
    limits = EdgeLimits(fragment_bytes_max=4_096, message_ms=2_000, buffered_bytes_max=2_000_000)
    run = world(1, devices=30, limits=limits, message_bytes=(50_000, 60_000), capacity_per_s=200)
    for device in run.devices:
        for _ in range(50):
            device.offer(run.payload())
    run.run(300)
    run.is_blocked = True
    run.run(20_000)
    assert len(run.core.reassembler) > 0
    run.is_blocked = False
    run.drain(within_ms=60_000)
    run.check()
    assert not any(device.errors for device in run.devices)


def test_a_slow_drip_ends_and_a_device_that_waits_for_us_does_not():
    run = world(1, devices=2, message_bytes=(100, 100))
    dripping, waiting = run.devices
    run.run(100)
    run.is_blocked = True
    for _ in range(300):
        waiting.offer(run.payload())
    frame = bytes([0xBE, 1, 3, 0, 0, 16, 0, 0])
    for at in range(8):
        dripping.wire += frame[at : at + 1]
        run.run(2_000)
    assert [each.error_code for each in dripping.errors] == [ErrorCode.TOO_SLOW]
    assert waiting.errors == []


def test_silence_is_ended_and_ping_keeps_a_connection():
    run = world(1, devices=2, limits=EdgeLimits(idle_ms=5_000))
    silent, pinging = run.devices
    for _ in range(8):
        pinging.wire += encode_ping()
        run.run(1_000)
    assert [each.error_code for each in silent.errors] == [ErrorCode.IDLE]
    assert pinging.errors == []
