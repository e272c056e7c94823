"""The device's side: ids, the window, what is sent again, what is given up; and its fleet."""

from __future__ import annotations

import pytest

from penstock.ingest.device_core import DeviceCore, DeviceRefused
from penstock.ingest.frames import ErrorCode, Failure, FrameReader, Welcome
from penstock.kernel.errors import Rejected


def welcome(**more) -> Welcome:
    return Welcome(1, 100, 1_000, 1_000, 256, 0, 1_000)._replace(**more)


def ids_of(frames: bytes) -> list[int]:
    return [frame.message_id for frame in FrameReader(1_000, opening=False).feed(frames)]


def test_nothing_is_sent_before_welcome():
    assert not DeviceCore().has_room


def test_a_device_goes_on_above_what_the_edge_knows():
    core = DeviceCore()
    core.welcomed(welcome(last_id=41))
    assert core.message(b"x")[0] == 42


def test_the_window_is_a_span_of_ids():
    core = DeviceCore(window_max=3)
    core.welcomed(welcome())
    for _ in range(3):
        core.message(b"x")
    assert not core.has_room
    core.acknowledged([2, 3])
    assert not core.has_room
    core.acknowledged([1])
    assert core.has_room
    assert (core.acked, core.unacked) == (3, 0)


def test_what_is_not_acknowledged_is_sent_again_with_the_same_ids():
    core = DeviceCore()
    core.welcomed(welcome())
    for _ in range(3):
        core.message(b"x" * 150)
    core.acknowledged([2, 2, 9])
    assert ids_of(core.welcomed(welcome(last_id=2))) == [1, 1, 3, 3]
    assert (core.acked, core.resent) == (1, 2)
    assert core.message(b"y")[0] == 4


def test_a_message_the_edge_never_takes_is_given_up_alone():
    core = DeviceCore()
    core.welcomed(welcome())
    core.message(b"x")
    core.message(b"y")
    core.failed(Failure(ErrorCode.MESSAGE_REFUSED, 1, "too large"))
    assert core.refused == [(1, "too large")]
    assert core.unacked == 1
    assert core.failure is None


@pytest.mark.parametrize(
    "error_code", [ErrorCode.UNAUTHORIZED, ErrorCode.STALE_ID, ErrorCode.MESSAGE_REFUSED]
)
def test_a_device_that_is_at_fault_is_told(error_code):
    core = DeviceCore()
    core.welcomed(welcome())
    core.failed(Failure(error_code, 7, "no"))
    with pytest.raises(DeviceRefused):
        core.message(b"x")


@pytest.mark.parametrize(
    "error_code", [ErrorCode.TOO_SLOW, ErrorCode.SHUTTING_DOWN, ErrorCode.TOO_MANY_DEVICES]
)
def test_a_device_that_may_come_again_does(error_code):
    core = DeviceCore()
    core.welcomed(welcome())
    core.failed(Failure(error_code, 0, "later"))
    assert core.failure is None


def test_a_message_over_the_limit_is_refused_before_it_has_an_id():
    core = DeviceCore()
    core.welcomed(welcome())
    with pytest.raises(Rejected):
        core.message(bytes(1_001))
    assert core.next_id == 1
