"""What may stand in the raw topic: as much as drains in time, and never less than two batches."""

from __future__ import annotations

import pytest

from penstock.ingest.backlog import ROOM_MIN, Backlog

SLOTS = 1_000_000


def drained(backlog: Backlog, *, batch: int, every_ms: int, seconds: int = 20) -> Backlog:
    """A queue that is never empty and loses a batch every so often."""
    for now_ms in range(0, seconds * 1_000, 100):
        backlog.measure(behind=10**6, stored=now_ms // every_ms * batch, now_ms=now_ms)
    return backlog


def test_until_something_was_stored_the_smallest_window_may_come():
    backlog = Backlog(2_000)
    assert backlog.room(0, SLOTS) == ROOM_MIN
    assert backlog.room(ROOM_MIN - 10, SLOTS) == 10


@pytest.mark.parametrize("limit_ms", [1_000, 2_000, 10_000])
def test_no_more_comes_than_drains_in_time(limit_ms):
    backlog = drained(Backlog(limit_ms), batch=1_000, every_ms=200)
    assert backlog.drain_per_s == pytest.approx(5_000, rel=0.1)
    assert backlog.room(0, SLOTS) == pytest.approx(5 * limit_ms, rel=0.1)
    assert backlog.room(SLOTS, SLOTS) == 0


def test_slots_bound_it_as_well():
    backlog = drained(Backlog(2_000), batch=1_000, every_ms=200)
    assert backlog.room(100, 3_000) == 2_900


def test_batches_that_take_longer_than_the_limit_leave_room_for_the_next_one():
    backlog = drained(Backlog(2_000), batch=1_400, every_ms=3_000, seconds=31)
    assert backlog.room(1_400, SLOTS) == 1_400
    assert backlog.room(2_800, SLOTS) == 0


def test_a_store_that_does_not_move_takes_no_more_than_two_batches():
    backlog = drained(Backlog(2_000), batch=500, every_ms=100)
    for now_ms in range(20_000, 26_000, 100):
        backlog.measure(behind=4_000, stored=100_000, now_ms=now_ms)
    assert backlog.room(1_000, SLOTS) == 0


def test_without_a_limit_in_time_only_slots_count():
    backlog = drained(Backlog(0), batch=1, every_ms=1_000)
    assert backlog.room(100, SLOTS) == SLOTS - 100
