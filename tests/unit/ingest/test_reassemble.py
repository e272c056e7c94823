"""Fragments to messages: order, duplicates, bounds, deadlines, ids."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.ingest.frames import ErrorCode, Fragment, FrameError
from penstock.ingest.limits import EdgeLimits
from penstock.ingest.reassemble import WINDOW, EdgeDevice, Message, Outcome, Reassembler, Seen
from penstock.kernel.errors import Rejected

LIMITS = EdgeLimits(
    fragment_bytes_max=1_024,
    message_bytes_max=4_096,
    partial_bytes_max=8_192,
    partials_bytes_max=16_384,
    message_ms=1_000,
)
PAYLOAD = bytes(range(256)) * 4


def pieces(message_id: int, payload: bytes = PAYLOAD, size: int = 256) -> list[Fragment]:
    parts = [payload[at : at + size] for at in range(0, len(payload), size)]
    return [
        Fragment(message_id, number, len(parts), len(payload), part)
        for number, part in enumerate(parts)
    ]


def whole(message_id: int, payload: bytes = b"x") -> Fragment:
    return Fragment(message_id, 0, 1, len(payload), payload)


@pytest.fixture
def desk() -> Reassembler:
    return Reassembler(LIMITS)


@pytest.fixture
def device() -> EdgeDevice:
    return EdgeDevice("a")


def test_a_message_in_one_fragment_is_whole_at_once(desk, device):
    assert desk.take(device, whole(1), 0) == Message(device, 1, b"x")
    assert device.pending == {1}


def test_fragments_may_come_in_any_order_and_twice(desk, device):
    first, second, third, fourth = pieces(1)
    for fragment in (third, third, first, fourth, first):
        assert desk.take(device, fragment, 0) is Outcome.KEPT
    assert desk.take(device, second, 0) == Message(device, 1, PAYLOAD)
    assert (len(desk), desk.partial_bytes, desk.reserved_bytes) == (0, 0, 0)


def test_messages_of_a_device_may_be_mixed(desk, device):
    one, two = pieces(1), pieces(2)
    for fragments in zip(one[:-1], two[:-1], strict=True):
        for fragment in fragments:
            assert desk.take(device, fragment, 0) is Outcome.KEPT
    assert desk.take(device, whole(3), 0) == Message(device, 3, b"x")
    assert desk.take(device, two[-1], 0) == Message(device, 2, PAYLOAD)
    assert desk.take(device, one[-1], 0) == Message(device, 1, PAYLOAD)


def test_a_message_on_its_way_is_not_taken_again(desk, device):
    desk.take(device, whole(1), 0)
    assert desk.take(device, whole(1), 0) is Outcome.KEPT
    assert desk.take(device, pieces(1)[0], 0) is Outcome.KEPT


def test_a_durable_message_is_only_acknowledged_again(desk, device):
    device.seen.add(1)
    assert desk.take(device, whole(1), 0) is Outcome.DURABLE
    assert not device.pending


def refused(desk: Reassembler, device: EdgeDevice, fragment: Fragment) -> ErrorCode:
    before = (set(device.pending), dict(device.partials), desk.reserved_bytes)
    with pytest.raises(FrameError) as caught:
        desk.take(device, fragment, 0)
    assert (set(device.pending), dict(device.partials), desk.reserved_bytes) == before
    return caught.value.error_code


@pytest.mark.parametrize(
    ("fragment", "error_code"),
    [
        (Fragment(1, 0, 0, 1, b"x"), ErrorCode.BAD_BODY),
        (Fragment(1, 1, 1, 1, b"x"), ErrorCode.BAD_BODY),
        (Fragment(1, 0, 2, 256, b"x"), ErrorCode.BAD_BODY),
        (Fragment(1, 0, 5, 1_024, b"x"), ErrorCode.BAD_BODY),
        (Fragment(0, 0, 1, 1, b"x"), ErrorCode.BAD_BODY),
        (Fragment(1, 0, 1, 2, b"x"), ErrorCode.FRAGMENT_MISMATCH),
        (Fragment(1, 0, 1, 4_097, b"x" * 4_097), ErrorCode.MESSAGE_TOO_LARGE),
        (Fragment(1, 0, 9, 2**32 - 1, b"x"), ErrorCode.MESSAGE_TOO_LARGE),
    ],
)
def test_a_fragment_that_cannot_be_is_refused(desk, device, fragment, error_code):
    assert refused(desk, device, fragment) is error_code


@pytest.mark.parametrize(
    "fragment",
    [
        Fragment(1, 1, 3, 1_024, b"x" * 256),
        Fragment(1, 1, 4, 1_000, b"x" * 256),
        Fragment(1, 0, 4, 1_024, b"other"),
        Fragment(1, 1, 4, 1_024, b"x" * 800),
        Fragment(1, 0, 1, 1_024, PAYLOAD),
    ],
)
def test_a_fragment_that_does_not_fit_the_others_is_refused(desk, device, fragment):
    desk.take(device, pieces(1)[0], 0)
    assert refused(desk, device, fragment) is ErrorCode.FRAGMENT_MISMATCH


def test_fragments_that_do_not_add_up_are_refused_and_forgotten(desk, device):
    *most, last = pieces(1)
    for fragment in most:
        desk.take(device, fragment, 0)
    with pytest.raises(FrameError):
        desk.take(device, last._replace(payload=b"short"), 0)
    assert (device.partials, desk.reserved_bytes, len(desk)) == ({}, 0, 0)


def test_a_device_may_not_have_too_much_incomplete(desk, device):
    for message_id in range(1, 9):
        desk.take(device, pieces(message_id)[0], 0)
    assert refused(desk, device, pieces(9)[0]) is ErrorCode.WINDOW_EXCEEDED


def test_memory_is_set_aside_before_the_first_fragment_so_that_who_has_begun_can_end(desk):
    one, two, three = EdgeDevice("a"), EdgeDevice("b"), EdgeDevice("c")
    assert desk.take(one, pieces(1)[0], 0) is Outcome.KEPT
    assert desk.take(two, pieces(1)[0], 0) is Outcome.KEPT
    assert desk.take(three, pieces(1)[0], 0) is Outcome.WAIT
    assert desk.take(three, whole(2), 0) == Message(three, 2, b"x")
    for message_id in range(2, 9):
        assert desk.take(one, pieces(message_id)[0], 0) is Outcome.KEPT
    desk.freed = False
    desk.drop_all(one)
    assert desk.freed
    assert desk.take(three, pieces(1)[0], 0) is Outcome.KEPT
    assert desk.reserved_bytes <= LIMITS.partials_bytes_max


def test_a_message_that_takes_too_long_is_told(desk, device):
    desk.take(device, pieces(1)[0], 0)
    desk.take(device, pieces(2)[0], 500)
    assert desk.overdue(999) == []
    assert desk.overdue(1_000) == [(device, 1)]
    desk.drop(device, 1)
    assert desk.overdue(2_000) == [(device, 2)]


def test_an_id_too_far_above_the_lowest_unacknowledged_is_refused(desk, device):
    desk.take(device, whole(10), 0)
    desk.take(device, whole(9 + WINDOW), 0)
    assert refused(desk, device, whole(10 + WINDOW)) is ErrorCode.WINDOW_EXCEEDED
    device.pending.discard(10)
    assert type(desk.take(device, whole(10 + WINDOW), 0)) is Message


def test_an_id_too_far_below_one_that_is_on_its_way_is_refused(desk, device):
    desk.take(device, whole(1_000), 0)
    assert refused(desk, device, whole(1_000 - WINDOW)) is ErrorCode.WINDOW_EXCEEDED
    assert type(desk.take(device, whole(1_001 - WINDOW), 0)) is Message


def test_an_id_below_all_that_is_remembered_is_refused_and_never_acknowledged(desk):
    device = EdgeDevice("a", Seen(1_000, 1))
    assert refused(desk, device, whole(1_000 - WINDOW)) is ErrorCode.STALE_ID


def test_a_refused_id_changes_nothing_for_the_next(desk, device):
    refused(desk, device, Fragment(2**63, 0, 1, 4_097, b"x" * 4_097))
    assert type(desk.take(device, whole(1), 0)) is Message


def test_incomplete_messages_of_a_lost_connection_leave_no_trace(desk, device):
    desk.take(device, pieces(2**63)[0], 0)
    desk.drop_all(device)
    assert type(desk.take(device, whole(1), 0)) is Message


@pytest.mark.parametrize(
    "wrong",
    [
        {"message_ms": 0},
        {"fragment_bytes_max": 5_000},
        {"partial_bytes_max": 4_000},
        {"partials_bytes_max": 8_000},
    ],
)
def test_limits_that_contradict_each_other_are_refused(wrong):
    with pytest.raises(Rejected):
        replace(LIMITS, **wrong)
