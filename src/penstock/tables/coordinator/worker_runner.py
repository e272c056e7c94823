"""Runs jobs in worker processes: hands them out, hears how they end, replaces workers that die."""

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
"""How long to wait before the next worker is started after one could not start: first, at most."""
_LOG: Final = logging.getLogger("penstock.tables")


class WorkerRunner:
    """For one thread. The selector of its loop gets every worker's line, with what hears it."""

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
        """The holders of locks that are its own."""
        return frozenset(self._pool.workers)

    def start(self, start: Start, *, forced: bool) -> list[Event]:
        """WorkerHandle a job whose row is committed to a worker, or keep it until one is idle."""
        self._waiting.append((start, forced))
        return self._assign()

    def cancel(self, job_id: int, now_ms: int) -> bool:
        """Give a job up; True if it had not begun. A worker that goes on is killed."""
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
        """Take what a worker sent."""
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
        """Start missing workers, unless they could not start just now.

        Workers of an earlier generation of what they share cannot work any more and are ended.
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
        """How far jobs have come, by job."""
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

        With `engine_lost` the job was cancelled because the engine died, which it may have caused.
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
        except ForkerLost as error:  # workers that run go on
            self._engines.unfit = error.message
            self._fill_later()

    def _fill_later(self) -> None:
        """Wait before the next start: the last one failed."""
        self._failed_starts += 1
        first_ms, most_ms = RESTART_MS
        wait_ms = min(first_ms * 2 ** min(self._failed_starts, 10), most_ms)
        self._fill_at_ms = self._clock.now_ms() + wait_ms
