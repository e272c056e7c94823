"""The edge's core by itself: who is let in, who is acknowledged, what is counted."""

from __future__ import annotations

import pytest

from penstock.ingest.accept import EdgeCore
from penstock.ingest.frames import (
    Ack,
    ErrorCode,
    FrameError,
    FrameReader,
    Pong,
    Welcome,
    encode_fragments,
    encode_hello,
    encode_message,
    encode_ping,
)
from penstock.ingest.limits import EdgeLimits
from penstock.ingest.reassemble import WINDOW
from penstock.ingest.tokens import parse_tokens
from penstock.testing import ManualClock


class Wire:
    """A connection that keeps what the edge sent on it."""

    def __init__(self, core: EdgeCore, data: bytes = b"") -> None:
        self._reader = FrameReader(65_536, opening=False)
        self.sent = []
        self.error: FrameError | None = None
        self.reading = True
        self._core = core
        self.session = core.opened(self)
        self.feed(data)

    def feed(self, data: bytes) -> None:
        if data:
            self._core.feed(self.session, data)

    def send(self, data: bytes) -> None:
        self.sent += self._reader.feed(data)

    def pause(self) -> None:
        self.reading = False

    def resume(self) -> None:
        self.reading = True

    def end(self, error: FrameError) -> None:
        self.error = error


def make(**more) -> EdgeCore:
    core = EdgeCore(more.pop("limits", EdgeLimits()), ManualClock(), **more)
    for stage in core.stages:
        stage.resize(1_024)
    return core


def land(core: EdgeCore) -> list[int]:
    batch = core.take_batch()
    core.landed(batch, 1_000)
    return [message.message_id for message in batch]


def test_a_device_is_welcome_and_told_what_is_durable():
    core = make()
    core.found("a", 7)
    wire = Wire(core, encode_hello("a", b""))
    limits = core.limits
    assert wire.sent == [
        Welcome(1, limits.fragment_bytes_max, limits.message_bytes_max, limits.partial_bytes_max,
                WINDOW, 7, limits.idle_ms)
    ]  # fmt: skip


def test_nothing_is_acknowledged_before_it_is_durable_and_then_in_one_frame():
    core = make()
    wire = Wire(core, encode_hello("a", b"") + b"".join(encode_message(n, b"x") for n in (1, 2, 3)))
    assert len(wire.sent) == 1
    batch = core.take_batch()
    assert len(wire.sent) == 1
    core.landed(batch, 1_000)
    assert wire.sent[1:] == [Ack((1, 2, 3))]
    assert core.counters.messages_acked == 3


def test_a_message_that_comes_again_on_another_connection_is_acknowledged_there():
    core = make()
    first = Wire(core, encode_hello("a", b"") + encode_message(1, b"x"))
    batch = core.take_batch()
    second = Wire(core, encode_hello("a", b"") + encode_message(1, b"x"))
    assert core.take_batch() == []
    assert first.error.error_code is ErrorCode.SUPERSEDED
    core.landed(batch, 0)
    assert second.sent[1:] == [Ack((1,))]
    second.feed(encode_message(1, b"x"))
    assert second.sent[2:] == [Ack((1,))]
    assert core.counters.messages_again == 1


def test_ping_is_answered_with_its_bytes():
    wire = Wire(make(), encode_hello("a", b"") + encode_ping(b"here"))
    assert wire.sent[1:] == [Pong(b"here")]


def test_a_wrong_token_is_counted_and_nothing_behind_it_is_read():
    rejects = []
    core = make(
        tokens=parse_tokens("a right"),
        on_reject=lambda session, error, data: rejects.append((error.error_code, data)),
    )
    data = encode_hello("a", b"wrong") + encode_message(1, b"x")
    wire = Wire(core, data)
    assert wire.error.error_code is ErrorCode.UNAUTHORIZED
    assert (core.counters.unauthorized, core.counters.frame_errors) == (1, 1)
    assert rejects == [(ErrorCode.UNAUTHORIZED, data[:256])]
    assert core.accept.items_in == 0
    assert core.devices == {}


@pytest.mark.parametrize(
    "limits", [EdgeLimits(devices_max=1), EdgeLimits(connections_max=1)], ids=("devices", "sockets")
)
def test_too_many_are_told_to_come_again_later(limits):
    core = make(limits=limits)
    Wire(core, encode_hello("a", b""))
    wire = Wire(core, encode_hello("b", b""))
    assert wire.error.error_code is ErrorCode.TOO_MANY_DEVICES
    assert core.counters.frame_errors == 0
    assert len(core.sessions) == 1


def test_a_connection_without_credits_is_read_no_further_and_goes_on_when_there_are_some():
    core = make()
    wire = Wire(core, encode_hello("a", b""))
    others = [Wire(core, encode_hello(f"d{n}", b"")) for n in range(8)]
    for other in others:
        other.feed(b"".join(encode_message(n, b"x" * 50) for n in range(1, 257)))
    assert not others[-1].reading
    wire.feed(encode_message(1, b"last"))
    assert not wire.reading
    assert core.held_bytes > 0
    landed = 0
    while ids := land(core):
        landed += len(ids)
    assert landed == 8 * 256 + 1
    assert all(each.reading for each in (wire, *others))
    assert (core.held_bytes, core.buffered_bytes) == (0, 0)
    assert wire.sent[1:] == [Ack((1,))]


def test_when_too_much_is_held_nobody_is_read_but_those_who_can_go_on():
    core = make(limits=EdgeLimits(held_bytes_max=5_000))
    idle = Wire(core, encode_hello("idle", b""))
    begun = Wire(core, encode_hello("begun", b"") + encode_fragments(1, bytes(900), 300)[0])
    for n in range(8):
        Wire(core, encode_hello(f"d{n}", b"")).feed(
            b"".join(encode_message(n, b"x" * 50) for n in range(1, 257))
        )
    assert core.held_bytes > 5_000
    assert not idle.reading
    assert begun.reading
    while land(core):
        pass
    assert idle.reading


def test_a_device_with_memory_for_its_message_is_read_though_it_came_when_all_were_held():
    """Else nobody gives memory back, and nobody who waits for it ever goes on."""
    core = make(limits=EdgeLimits(partials_bytes_max=2**20, held_bytes_max=2**20))
    busy = 0
    while core.reassemble.room:
        messages = b"".join(encode_message(n, b"m") for n in range(1, 201))
        Wire(core, encode_hello(f"busy{busy}", b"") + messages)
        busy += 1
    large = bytes(16_000)
    begun = [Wire(core, encode_hello(f"begun{n}", b"")) for n in range(2)]
    for wire in begun:
        wire.feed(encode_fragments(1, large, 8_000)[0])
    others = [Wire(core, encode_hello(f"other{n}", b"")) for n in range(30)]
    for wire in others:
        for first in range(1, 200, 4):
            if wire.reading:
                numbers = range(first, first + 4)
                wire.feed(b"".join(encode_message(n, large, 8_000) for n in numbers))
    assert not any(wire.reading for wire in begun)
    while land(core):
        pass
    assert all(wire.reading for wire in begun)
    for wire in begun:
        wire.feed(encode_fragments(1, large, 8_000)[1])
    while land(core):
        pass
    assert all(wire.reading for wire in others)
    assert (core.held_bytes, core.reassembler.reserved_bytes) == (0, 0)


def test_who_waits_for_memory_with_more_fragments_than_there_is_room_waits_in_peace():
    core = make(limits=EdgeLimits(partials_bytes_max=2**20))
    large = bytes(20_000)
    Wire(core, encode_hello("first", b"") + encode_message(1, large, 8_000))
    land(core)
    slow = []
    while core.reassembler.reserved_bytes + 2**16 <= 2**20:
        wire = Wire(core, encode_hello(f"slow{len(slow)}", b""))
        wire.feed(encode_fragments(1, large, 8_000)[0])
        slow.append(wire)
    wire = Wire(core, encode_hello("busy", b""))
    for number in range(1, 10_000):
        if core.reassemble.room == 1:
            break
        if number % 200 == 0:
            wire = Wire(core, encode_hello(f"busy{number}", b""))
        wire.feed(encode_message(number, b"m"))
    late = Wire(core, encode_hello("late", b"") + encode_message(1, large, 8_000))
    while land(core):
        pass
    for wire in slow:
        wire.feed(b"".join(encode_fragments(1, large, 8_000)[1:]))
    while land(core):
        pass
    assert Ack((1,)) in late.sent


def test_a_device_that_lost_count_is_told_of_what_is_on_its_way():
    core = make()
    Wire(core, encode_hello("a", b"") + encode_message(1, b"x") + encode_message(2, b"y"))
    again = Wire(core, encode_hello("a", b""))
    assert again.sent[0].last_id == 2
    land(core)
    assert Wire(core, encode_hello("a", b"")).sent[0].last_id == 2


def test_a_batch_keeps_to_its_limits_and_to_the_room_behind_the_topic():
    limits = EdgeLimits(batch_records_max=3, batch_bytes_max=100)
    core = make(limits=limits)
    sizes = (10, 10, 10, 10, 60, 60, 200, 5)
    frames = [encode_message(n, b"x" * size) for n, size in enumerate(sizes, 1)]
    Wire(core, encode_hello("a", b"") + b"".join(frames))
    assert core.take_batch(room=0) == []
    batches = [[m.message_id for m in core.take_batch(room=room)] for room in (2, 9, 9, 9, 9, 9)]
    assert batches == [[1, 2], [3, 4, 5], [6], [7], [8], []]


def test_messages_that_are_not_durable_are_bounded_in_bytes():
    core = make(limits=EdgeLimits(buffered_bytes_max=10_000))
    wire = Wire(core, encode_hello("a", b""))
    wire.feed(b"".join(encode_message(n, bytes(4_000)) for n in range(1, 10)))
    assert core.buffered_bytes == 12_000
    assert (core.reassemble.occupied, core.accept.occupied) == (3, 6)
    found = []
    while ids := land(core):
        assert core.buffered_bytes <= 12_000
        found += ids
    assert found == list(range(1, 10))


def test_a_message_that_the_topic_never_takes_is_told_to_its_device():
    core = make()
    wire = Wire(core, encode_hello("a", b"") + encode_message(1, b"x"))
    (message,) = core.take_batch()
    core.refused(message, FrameError(ErrorCode.MESSAGE_REFUSED, "too large", message_id=1))
    assert (wire.error.error_code, wire.error.message_id) == (ErrorCode.MESSAGE_REFUSED, 1)
    assert (core.reassemble.occupied, core.devices["a"].pending) == (0, set())


def test_what_is_left_of_a_closed_connection_is_given_back():
    core = make()
    wire = Wire(core, encode_hello("a", b"") + encode_fragments(1, bytes(900), 300)[0])
    assert core.reassembler.reserved_bytes > 0
    core.closed(wire.session)
    core.closed(wire.session)
    assert (core.reassembler.reserved_bytes, core.sessions) == (0, set())
    wire.feed(encode_message(2, b"x"))
    assert core.take_batch() == []


def test_a_draining_edge_reads_nobody():
    core = make()
    wire = Wire(core, encode_hello("a", b"") + encode_message(1, b"x"))
    core.drain()
    assert not wire.reading
    assert Wire(core).session.paused
    assert land(core) == [1]
    assert not wire.reading
