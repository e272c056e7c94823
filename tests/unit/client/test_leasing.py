"""Which jobs are handed out and which leases are extended, whatever the clocks show."""

from __future__ import annotations

from math import inf

import pytest

from penstock.client.leasing import Leases
from penstock.protocol.answers import ClaimedJob, Extended

LEASE_MS = 2_000


class World:
    """A queue's server with a clock of its own, and the leases of one client."""

    def __init__(self, *, skew_s: float = 0.0, extends: bool = True) -> None:
        self.now_s = 100.0
        self.skew_s = skew_s
        self.leases = Leases(extends=extends)
        self.ends_s: dict[int, float] = {}
        self.leases.opened(self.now_s)

    def job(self, seq: int, *, claimed_s: float | None = None) -> ClaimedJob:
        claimed_s = self.now_s if claimed_s is None else claimed_s
        self.ends_s[seq] = claimed_s + LEASE_MS / 1_000
        deadline_ms = round((self.ends_s[seq] + self.skew_s) * 1_000)
        return ClaimedJob(
            seq=seq, lease_id=f"lease_{seq}", deadline_ms=deadline_ms, ts_ms=0, deliveries=1
        )

    def receive(self, *seqs: int, claimed_s: float | None = None) -> None:
        for seq in seqs:
            self.leases.received(self.job(seq, claimed_s=claimed_s), LEASE_MS, self.now_s)

    def take(self) -> int | None:
        lease = self.leases.take(self.now_s)
        return None if lease is None else lease.job.seq

    def extend(self) -> list[int]:
        """Ask the server for all that is due; those whose lease is over are skipped."""
        due = self.leases.due(self.now_s)
        deadlines: dict[int, int] = {}
        for lease in due:
            seq = lease.job.seq
            if self.ends_s[seq] >= self.now_s:
                self.ends_s[seq] = self.now_s + LEASE_MS / 1_000
                deadlines[seq] = round((self.ends_s[seq] + self.skew_s) * 1_000)
        skipped = [lease.job.seq for lease in due if lease.job.seq not in deadlines]
        answer = Extended(topic="q", extended=len(deadlines), skipped=skipped, deadlines=deadlines)
        self.leases.extended(due, answer, self.now_s)
        return sorted(deadlines)


@pytest.fixture(params=[0.0, 86_400.0, -86_400.0], ids=["same", "ahead", "behind"])
def world(request) -> World:
    return World(skew_s=request.param)


def test_a_job_that_came_at_once_is_handed_out(world):
    world.receive(1, 2)
    assert (world.take(), world.take(), world.take()) == (1, 2, None)


def test_leases_are_due_at_half_time_whether_handed_out_or_not(world):
    world.receive(1, 2)
    world.take()
    assert world.leases.next_due_s() == 101.0
    world.now_s = 100.9
    assert world.leases.due(world.now_s) == []
    world.now_s = 101.0
    assert world.extend() == [1, 2]
    assert world.leases.next_due_s() == 102.0


def test_a_job_that_waited_is_handed_out_while_its_lease_is_extended(world):
    world.receive(1, 2)
    world.take()
    for _ in range(10):
        world.now_s += 1.0
        world.extend()
    assert world.take() == 2


def test_a_job_past_its_deadline_is_not_handed_out(world):
    world.receive(1, 2)
    world.take()
    world.now_s += 3.0  # nothing could run meanwhile
    assert world.take() is None
    assert world.extend() == []
    assert world.take() is None
    assert world.leases.next_due_s() == inf


def test_a_job_that_was_read_late_is_not_handed_out(world):
    world.receive(1)
    world.now_s += 1.0
    world.extend()
    world.now_s += 3.0
    world.receive(2, claimed_s=101.5)
    assert world.take() is None
    world.extend()
    world.receive(3)
    assert world.take() == 3


def test_the_first_job_of_a_stream_that_was_quiet_for_long_is_asked_for_again_first(world):
    world.now_s += 60.0
    world.receive(1)
    assert world.take() is None, "it may have waited unread"
    assert world.extend() == [1]
    assert world.take() == 1


def test_a_job_that_comes_again_replaces_the_one_before(world):
    world.receive(1)
    before = world.leases.take(world.now_s)
    world.receive(1)
    assert before.lost
    assert world.take() == 1


def test_settled_jobs_and_jobs_that_the_program_let_go_of_are_not_extended(world):
    world.receive(1, 2, 3)
    done, dropped, _ = (world.leases.take(world.now_s) for _ in range(3))
    done.settled = True
    dropped.is_wanted = False
    world.now_s += 1.0
    assert world.extend() == [3]


def test_what_was_not_handed_out_goes_with_its_stream_and_the_rest_is_asked_for_at_once(world):
    world.receive(1, 2)
    world.take()
    world.leases.stream_lost()
    assert world.take() is None
    assert world.extend() == [1]


def test_a_failed_extension_is_tried_again_before_the_lease_is_over(world):
    world.receive(1)
    world.now_s += 1.0
    world.leases.failed(world.leases.due(world.now_s), world.now_s)
    assert world.leases.due(world.now_s) == []
    world.now_s = world.leases.next_due_s()
    assert world.extend() == [1]


def test_a_refused_extension_is_a_lost_lease(world):
    world.receive(1, 2)
    taken = world.leases.take(world.now_s)
    world.now_s += 1.0
    world.leases.refused(world.leases.due(world.now_s))
    assert taken.lost
    assert world.take() is None


@pytest.mark.parametrize("skew_s", [0.0, 86_400.0, -86_400.0])
def test_without_extension_jobs_are_handed_out_until_their_deadline(skew_s):
    world = World(skew_s=skew_s, extends=False)
    world.receive(1, 2, 3)
    world.now_s += 1.9
    assert world.take() == 1
    assert world.leases.due(world.now_s) == []
    world.now_s += 0.2
    assert world.take() is None
    world.receive(4)
    world.receive(5, claimed_s=world.now_s - 2.1)
    assert (world.take(), world.take()) == (4, None)
