from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.protocol.errors import JobMoved
from penstock.tables.core.jobs import (
    TRANSITIONS,
    JobStatus,
    RefreshJob,
    may_claim,
    recover,
)
from penstock.tables.core.units import UnitKind

QUEUED = RefreshJob(
    job_id=1,
    graph_version=4,
    unit_key="group:a+b",
    unit_kind=UnitKind.ATOMIC_GROUP,
    members=("a", "b"),
    root="a",
    coordinator="c1",
    enqueued_at_ms=100,
)
RUNNING = QUEUED.claimed("w1", 200)


def test_a_job_goes_from_queued_over_running_to_an_end():
    assert RUNNING.status is JobStatus.RUNNING
    assert (RUNNING.worker, RUNNING.started_at_ms) == ("w1", 200)
    done = RUNNING.succeeded(300)
    assert (done.status, done.finished_at_ms) == (JobStatus.SUCCEEDED, 300)
    failed = RUNNING.failed(300, "no column x", retryable=False)
    assert (failed.status, failed.retryable) == (JobStatus.PERMANENT_FAILED, False)
    again = RUNNING.failed(300, "disk", retryable=True)
    assert (again.status, again.retryable) == (JobStatus.RETRYABLE_FAILED, True)
    assert QUEUED.cancelled(300, "never mind").outcome_detail == "never mind"


MOVES = {
    JobStatus.RUNNING: lambda job: job.claimed("w2", 400),
    JobStatus.SUCCEEDED: lambda job: job.succeeded(400),
    JobStatus.RETRYABLE_FAILED: lambda job: job.failed(400, "x", retryable=True),
    JobStatus.PERMANENT_FAILED: lambda job: job.failed(400, "x", retryable=False),
    JobStatus.CANCELLED: lambda job: job.cancelled(400, "x"),
}


@pytest.mark.parametrize("target", MOVES)
@pytest.mark.parametrize("status", JobStatus)
def test_only_the_listed_transitions_are_possible(status, target):
    job = replace(QUEUED, status=status)
    if target in TRANSITIONS.get(status, ()):
        assert MOVES[target](job).status is target
    else:
        with pytest.raises(JobMoved, match=f"is {status.value} and cannot become {target.value}"):
            MOVES[target](job)


def test_what_has_ended_never_moves_again():
    assert {status for status in JobStatus if status.live} == set(TRANSITIONS)


def test_a_worker_runs_only_a_queued_job_of_this_graph_and_this_coordinator():
    assert may_claim(QUEUED, graph_version=4, coordinator="c1") is None
    assert "the graph is at 5" in may_claim(QUEUED, graph_version=5, coordinator="c1")
    assert "the current one is c2" in may_claim(QUEUED, graph_version=4, coordinator="c2")
    assert "the current one is None" in may_claim(QUEUED, graph_version=4, coordinator=None)
    assert "RUNNING" in may_claim(RUNNING, graph_version=4, coordinator="c1")


def test_recovery_closes_every_job_whose_owner_is_gone():
    orphan = replace(RUNNING, job_id=2, worker="dead")
    ended = replace(RUNNING, job_id=3).succeeded(300)
    found = recover(
        [QUEUED, RUNNING, orphan, ended], coordinator="c2", live_workers={"w1"}, now_ms=900
    )
    by_detail = {job.outcome_detail: job.status for job in found.closed}
    assert by_detail == {
        "found queued when c2 took over": JobStatus.CANCELLED,
        "coordinator c1 is gone": JobStatus.CANCELLED,
        "worker dead is gone": JobStatus.RETRYABLE_FAILED,
    }
    assert [job.worker for job in found.interrupt] == ["w1"]


def test_recovery_of_a_clean_table_does_nothing():
    ended = RUNNING.succeeded(300)
    found = recover([ended], coordinator="c2", live_workers=(), now_ms=900)
    assert found == ((), ())
