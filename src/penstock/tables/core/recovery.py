"""What a coordinator does first: jobs of dead owners are closed, permits follow live workers.

Nothing that was stored before a crash is taken for the state of the world; it is compared with who
is alive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from penstock.tables.core.jobs import Job, JobStatus


class Recovery(NamedTuple):
    """What to write and whom to stop before the first tick."""

    closed: tuple[Job, ...]
    interrupt: tuple[Job, ...]


def recover(
    jobs: Iterable[Job], *, coordinator: str, live_workers: Collection[str], now_ms: int
) -> Recovery:
    """Close every live job that a new coordinator cannot wait for.

    A queued job was never begun: CANCELLED. A running one whose worker is gone: RETRYABLE_FAILED.
    A running one whose worker lives but whose coordinator is gone: CANCELLED, and its worker is
    interrupted; its commit expects a running row and so cannot land any more. Jobs of the new
    coordinator itself, if it was restarted under the same name, are judged alike.
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
    return Recovery(tuple(closed), tuple(interrupt))


def surplus_tokens(held: Mapping[str, int], jobs: Iterable[Job]) -> dict[str, int]:
    """How many permits each holder must give back: what it holds beyond its live jobs.

    Holders are coordinators. Hand in the jobs that are live after recovery.
    """
    busy = Counter(job.coordinator for job in jobs if job.status.live)
    return {holder: count - busy[holder] for holder, count in held.items() if count > busy[holder]}
