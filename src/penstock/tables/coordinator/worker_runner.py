"""Runs jobs in worker processes: assigns them, receives outcomes, replaces dead workers."""

from __future__ import annotations

import logging
import selectors
from collections import deque
from functools import partial
from typing import Any, Final

from penstock.kernel.clock import Clock
from penstock.tables import rows
from penstock.tables.coordinator.batch import LeasedBatch
from penstock.tables.coordinator.engines import EngineState
from penstock.tables.coordinator.worker_forker import ForkerLost
from penstock.tables.coordinator.worker_pool import WorkerHandle, WorkerPool
from penstock.tables.core.events import (
    Event,
    JobCancelled,
    JobStarted,
    JobSucceeded,
    Refreshed,
    Start,
    WorkerDied,
)
from penstock.tables.core.jobs import Job, JobStatus
from penstock.tables.settings import WarehouseSettings
from penstock.tables.worker.messages import outcome_event, read_outcome

RESTART_MS: Final = (500, 30_000)
"""Delay before the next start after a worker failed to start: first and maximum."""
_LOG: Final = logging.getLogger("penstock.tables")


class WorkerRunner:
    """For one thread. Registers every worker's connection with the loop's selector."""

    def __init__(
        self,
        settings: WarehouseSettings,
        engines: EngineState,
        batch: LeasedBatch,
        selector: selectors.BaseSelector,
        clock: Clock,
    ) -> None:
        self._settings, self._engines, self._clock = settings, engines, clock
        self._batch, self._store = batch, batch.store
        self._selector = selector
        self._pool = WorkerPool(settings, settings.max_concurrent_refreshes)
        self._waiting: deque[tuple[Start, bool]] = deque()
        self._failed_starts = 0
        self._fill_at_ms = 0

    @property
    def names(self) -> frozenset[str]:
        """The lock holders that belong to this runner."""
        return frozenset(self._pool.workers)

    def start(self, start: Start, *, forced: bool) -> list[Event]:
        """Send a job whose row is committed to a worker, or keep it until one is idle."""
        self._waiting.append((start, forced))
        return self._assign()

    def cancel(self, job_id: int, now_ms: int) -> bool:
        """Cancel a job; True if it had not begun. A worker that does not stop is killed."""
        for entry in self._waiting:
            if entry[0].job.job_id == job_id:
                self._waiting.remove(entry)
                return True
        for worker in self._pool:
            if worker.job_id == job_id:
                worker.line.send({"cancel": job_id})
                worker.kill_at_ms = now_ms + self._settings.cancel_ms
        return False

    def listen(self, worker: WorkerHandle) -> list[Event]:
        """Handle a worker's messages."""
        events: list[Event] = []
        for message in worker.line.receive():
            if "ready" in message:
                worker.ready, self._failed_starts, self._engines.unfit = True, 0, None
            elif "unfit" in message:
                if self._engines.unfit != message["unfit"]:
                    _LOG.warning("workers cannot start: %s", message["unfit"])
                self._engines.unfit = message["unfit"]
            elif "progress" in message:
                if message["progress"] == worker.job_id:
                    worker.progress = message["at"]
            else:
                ended = read_outcome(message)
                if self._engines.was_lost(ended):
                    return [*events, *self._died(worker, engine_lost=True)]
                worker.job_id = worker.kill_at_ms = worker.progress = None
                self._engines.job_ended(int(message["job"]), ended)
                events.append(outcome_event(int(message["job"]), ended))
        events += self._assign()
        return events if worker.line.is_open else [*events, *self._died(worker)]

    def kill_overdue(self) -> list[Event]:
        """Kill workers that did not give up a cancelled job in time."""
        now_ms = self._clock.now_ms()
        overdue = [w for w in self._pool if w.kill_at_ms is not None and now_ms >= w.kill_at_ms]
        return [event for worker in overdue for event in self._died(worker)]

    def look_after(self) -> list[Event]:
        """Start missing workers, unless the last start just failed.

        Workers of an earlier generation of the shared host can no longer work and are ended.
        """
        events: list[Event] = []
        self._pool.prepare()
        if self._engines.renew():
            for worker in self._pool:
                events += self._died(worker)
            self._fill_at_ms = 0
        if self._engines.generation is not None and self._clock.now_ms() >= self._fill_at_ms:
            self._fill()
        return events

    def report(self) -> list[dict[str, Any]]:
        """The workers, for people."""
        return [{"worker": w.name, "ready": w.ready, "job_id": w.job_id} for w in self._pool]

    def progress(self) -> dict[int | None, Any]:
        """Progress by job."""
        return {worker.job_id: worker.progress for worker in self._pool}

    def close(self) -> None:
        """End every worker."""
        self._pool.close()

    def _assign(self) -> list[Event]:
        events: list[Event] = []
        while self._waiting and (worker := self._pool.idle()) is not None:
            start, forced = self._waiting.popleft()
            worker.job_id = start.job.job_id
            worker.line.send(
                {
                    "run": start.job.job_id,
                    "stale": start.stale,
                    "forced": forced,
                    "waited_ms": start.waited_ms,
                }
            )
            events.append(JobStarted(start.job.job_id, worker.name))
        return events

    def _died(self, worker: WorkerHandle, *, engine_lost: bool = False) -> list[Event]:
        """Remove a worker. Its job may have committed just before, or been cancelled.

        With `engine_lost` the job was cancelled because the engine died, possibly because of this
        job.
        """
        self._selector.unregister(worker.line)
        self._pool.remove(worker)
        if not worker.ready:
            self._fill_later()
        self._batch.run_alone(rows.RELEASE_LOCKS, worker.name)
        if worker.job_id is None:
            return []
        job = self._store.job(worker.job_id)
        if job is not None and job.status is JobStatus.SUCCEEDED:
            return [JobSucceeded(job.job_id, self._committed(job))]
        if job is not None and job.status is JobStatus.CANCELLED and not engine_lost:
            return [JobCancelled(job.job_id, job.outcome_detail or "cancelled")]
        return [WorkerDied(worker.name)]

    def _committed(self, job: Job) -> dict[str, Refreshed]:
        with self._store.lake.look() as reader:
            known = self._store.frontiers(reader)
        return {
            name: Refreshed(known[name].frontier, known[name].position)
            for name in job.members
            if name in known
        }

    def _fill(self) -> None:
        try:
            for worker in self._pool.fill(self._engines.host):
                hear = partial(self.listen, worker)
                self._selector.register(worker.line, selectors.EVENT_READ, hear)
        except ForkerLost as error:  # running workers continue
            self._engines.unfit = error.message
            self._fill_later()

    def _fill_later(self) -> None:
        """Delay the next start: the last one failed."""
        self._failed_starts += 1
        first_ms, most_ms = RESTART_MS
        wait_ms = min(first_ms * 2 ** min(self._failed_starts, 10), most_ms)
        self._fill_at_ms = self._clock.now_ms() + wait_ms
