"""What a coordinator does before its first turn: clean up after a dead predecessor."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from contextlib import suppress

from penstock.tables import processes, rows
from penstock.tables.coordinator.batch import LeasedBatch
from penstock.tables.coordinator.permits import PermitPool
from penstock.tables.coordinator.upkeep import forget
from penstock.tables.core.jobs import Job, recover
from penstock.tables.store import MANUAL


def recover_catalog(batch: LeasedBatch, permits: PermitPool, identity: str, now_ms: int) -> None:
    """Close jobs, locks, reservations and permits of dead coordinators and workers."""
    store = batch.store
    found = store.jobs(live_only=True)
    live = {job.worker for job in found if job.worker and store.is_alive(job.worker, now_ms)}
    ours = [job for job in found if not (_is_manual(job) and job.worker in live)]
    recovery = recover(
        ours,
        coordinator=identity,
        live_workers=frozenset(name for name in live if name),
        now_ms=now_ms,
    )
    with batch():
        for job in recovery.closed:
            batch.close_job(job)
            if job.worker is not None:
                batch.run(rows.RELEASE_LOCKS, job.worker)
    for job in recovery.interrupt:
        _kill(job.worker)
    forget(store)
    drop_dead_locks(batch, (), now_ms)
    permits.recover(now_ms)


def drop_dead_locks(batch: LeasedBatch, ours: Collection[str], now_ms: int) -> None:
    """Release the locks of dead processes."""
    for (holder,) in batch.store.lake.query(rows.SELECT_LOCK_HOLDERS):
        if holder not in ours and not batch.store.is_alive(holder, now_ms):
            batch.run_alone(rows.RELEASE_LOCKS, holder)


def _is_manual(job: Job) -> bool:
    return job.coordinator.startswith(MANUAL)


def _kill(worker: str | None) -> None:
    """Kill a worker whose coordinator is dead; never a process that also does other work."""
    if (
        worker is not None
        and "#" not in worker
        and processes.is_here(worker)
        and processes.is_alive(worker)
    ):
        with suppress(ProcessLookupError):
            os.kill(processes.pid_of(worker), signal.SIGKILL)
