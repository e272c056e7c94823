"""What a worker tells of its progress: not too often, and nothing that its end tells anyway."""

from __future__ import annotations

import socket

import pytest

from penstock.tables.core.history import RefreshProgress
from penstock.tables.worker.outcomes import MessageLine
from penstock.tables.worker.process import TELL_EVERY_MS, Teller
from penstock.testing.clock import ManualClock


@pytest.fixture
def line():
    ours, theirs = (MessageLine(end) for end in socket.socketpair())
    theirs.connection.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


def test_progress_is_told_no_more_often_than_people_can_see(line):
    ours, theirs = line
    clock = ManualClock()
    tell = Teller(ours, 7, clock)
    for done in (1, 2):
        tell(RefreshProgress(tasks=9, tasks_done=done))
    clock.advance(TELL_EVERY_MS)
    tell(RefreshProgress(tasks=9, tasks_done=3))
    assert [m["at"]["tasks_done"] for m in theirs.receive()] == [1, 3]


def test_the_end_of_a_query_is_not_told_beside_the_end_of_its_job(line):
    ours, theirs = line
    Teller(ours, 7, ManualClock())(RefreshProgress(tasks=9, tasks_done=9, left_ms=0))
    assert theirs.receive() == []
