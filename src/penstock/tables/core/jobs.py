"""Jobs: one row per attempt to refresh a unit, and the allowed transitions of its status.

```
QUEUED ──claim──▶ RUNNING ──▶ SUCCEEDED | RETRYABLE_FAILED | PERMANENT_FAILED | CANCELLED
   └──────────────────────────────▶ CANCELLED
```
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from penstock.protocol.errors import JobMoved
from penstock.tables.core.units import Unit, UnitKind

RETENTION_MS: Final = 3_600_000


class JobStatus(StrEnum):
    """The status of a job."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    RETRYABLE_FAILED = "RETRYABLE_FAILED"
    PERMANENT_FAILED = "PERMANENT_FAILED"
    CANCELLED = "CANCELLED"

    @property
    def live(self) -> bool:
        """Whether the job has not ended."""
        return self in (JobStatus.QUEUED, JobStatus.RUNNING)


TRANSITIONS: Final = {
    JobStatus.QUEUED: frozenset({JobStatus.RUNNING, JobStatus.CANCELLED}),
    JobStatus.RUNNING: frozenset(
        {
            JobStatus.SUCCEEDED,
            JobStatus.RETRYABLE_FAILED,
            JobStatus.PERMANENT_FAILED,
            JobStatus.CANCELLED,
        }
    ),
}
"""The allowed next statuses of each live status. All others are final."""


@dataclass(frozen=True, slots=True)
class RefreshJob:
    """One row of `scheduler_jobs`. Immutable: a change creates a new row with the same id."""

    job_id: int
    graph_version: int
    unit_key: str
    unit_kind: UnitKind
    members: tuple[str, ...]
    root: str
    coordinator: str
    enqueued_at_ms: int
    status: JobStatus = JobStatus.QUEUED
    worker: str | None = None
    attempt_no: int = 1
    started_at_ms: int | None = None
    finished_at_ms: int | None = None
    outcome_detail: str | None = None
    retryable: bool | None = None

    def claimed(self, worker: str, now_ms: int) -> RefreshJob:
        """A worker is running it."""
        return self._moved(JobStatus.RUNNING, worker=worker, started_at_ms=now_ms)

    def succeeded(self, now_ms: int, detail: str | None = None) -> RefreshJob:
        """All its results are committed."""
        return self._moved(
            JobStatus.SUCCEEDED, finished_at_ms=now_ms, outcome_detail=detail, retryable=None
        )

    def failed(self, now_ms: int, detail: str, *, retryable: bool) -> RefreshJob:
        """It failed, without visible effects."""
        status = JobStatus.RETRYABLE_FAILED if retryable else JobStatus.PERMANENT_FAILED
        return self._moved(
            status, finished_at_ms=now_ms, outcome_detail=detail, retryable=retryable
        )

    def cancelled(self, now_ms: int, detail: str) -> RefreshJob:
        """It was cancelled, without visible effects."""
        return self._moved(
            JobStatus.CANCELLED, finished_at_ms=now_ms, outcome_detail=detail, retryable=True
        )

    def _moved(self, status: JobStatus, **changes: object) -> RefreshJob:
        if status not in TRANSITIONS.get(self.status, ()):
            raise JobMoved(
                f"job {self.job_id} is {self.status.value} and cannot become {status.value}",
                job_id=self.job_id,
            )
        return replace(self, status=status, **changes)  # type: ignore[arg-type]


def job_for(
    unit: Unit, job_id: int, *, graph_version: int, coordinator: str, attempt_no: int, now_ms: int
) -> RefreshJob:
    """A new job for a unit."""
    return RefreshJob(
        job_id=job_id,
        graph_version=graph_version,
        unit_key=unit.key,
        unit_kind=unit.kind,
        members=unit.members,
        root=unit.root,
        coordinator=coordinator,
        enqueued_at_ms=now_ms,
        attempt_no=attempt_no,
    )


def may_claim(job: RefreshJob, *, graph_version: int, coordinator: str | None) -> str | None:
    """None if a worker may run the job, otherwise why it must be cancelled.

    `graph_version` and `coordinator` are the catalog's current values; None if there is no
    coordinator.
    """
    if job.status is not JobStatus.QUEUED:
        return f"the job is {job.status.value}, no longer queued"
    if job.graph_version != graph_version:
        return f"the job is of graph version {job.graph_version}, the graph is at {graph_version}"
    if job.coordinator != coordinator:
        return f"the job is of coordinator {job.coordinator}, the current one is {coordinator}"
    return None


class JobRecovery(NamedTuple):
    """Rows to write and workers to stop before the first tick."""

    closed: tuple[RefreshJob, ...]
    interrupt: tuple[RefreshJob, ...]


def recover(
    jobs: Iterable[RefreshJob], *, coordinator: str, live_workers: Collection[str], now_ms: int
) -> JobRecovery:
    """Close every live job that a new coordinator cannot wait for.

    A queued job was never begun: CANCELLED. A running one whose worker is gone: RETRYABLE_FAILED. A
    running one whose worker lives but whose coordinator is gone: CANCELLED, and its worker is
    interrupted; its commit requires a running row and so can no longer succeed. Jobs of the new
    coordinator itself, if it restarted under the same name, are treated alike.
    """
    closed, interrupt = [], []
    for job in jobs:
        if job.status is JobStatus.QUEUED:
            closed.append(job.cancelled(now_ms, f"found queued when {coordinator} took over"))
        elif job.status is JobStatus.RUNNING and job.worker not in live_workers:
            closed.append(job.failed(now_ms, f"worker {job.worker} is gone", retryable=True))
        elif job.status is JobStatus.RUNNING:
            gone = job.cancelled(now_ms, f"coordinator {job.coordinator} is gone")
            closed.append(gone)
            interrupt.append(gone)
    return JobRecovery(tuple(closed), tuple(interrupt))
