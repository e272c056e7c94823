"""Where jobs run: in worker processes, or one at a time inside the coordinator.

Workers are warm, take one job at a time, and are replaced when they die. With
`parallel_refresh_mode` off or dry_run there are none. Both runners have the same methods, so a
session does not care; but a job inside the coordinator blocks the session's loop, so the loop
decides when the next one runs.
"""

from __future__ import annotations

import logging
import math
import os
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from penstock.flow.backoff import Backoff
from penstock.kernel.clock import Clock
from penstock.kernel.errors import Unavailable
from penstock.kernel.system import meanwhile
from penstock.tables import processes, rows
from penstock.tables.coordinator.engines import EngineHost, EngineState
from penstock.tables.coordinator.lease import LeasedBatch
from penstock.tables.coordinator.worker_forker import ForkerLost, WorkerForker
from penstock.tables.core.events import (
    Event,
    JobCancelled,
    JobStarted,
    JobSucceeded,
    Refreshed,
    Start,
    WorkerDied,
)
from penstock.tables.core.failures import FailureKind
from penstock.tables.core.jobs import JobStatus, RefreshJob
from penstock.tables.engine import Factory, Refresher
from penstock.tables.settings import WarehouseSettings
from penstock.tables.store import TableStore
from penstock.tables.worker.claim import LockHeld, NotClaimed, claim
from penstock.tables.worker.outcomes import (
    Cancelled,
    Ended,
    Failed,
    MessageLine,
    outcome_event,
    read_outcome,
)
from penstock.tables.worker.unit import UnitWorker

_RESTARTS: Final = Backoff(base_ms=1_000, cap_ms=30_000, jitter=0.0, window_ms=math.inf)
"""Delay before the next start after a worker failed to start: first and maximum."""
_LOG: Final = logging.getLogger("penstock.tables")
_DEATH_S: Final = 10.0
_POLL_S: Final = 0.001


@dataclass(slots=True)
class WorkerHandle:
    """One worker process as the coordinator sees it."""

    name: str
    line: MessageLine
    factory: Factory
    job_id: int | None = None
    ready: bool = False
    kill_at_ms: int | None = None
    progress: dict[str, Any] | None = None


class WorkerPool:
    """Starts and ends worker processes. For one thread."""

    def __init__(self, settings: WarehouseSettings, size: int) -> None:
        self._settings = settings
        self.size = size
        self.workers: dict[str, WorkerHandle] = {}
        self._left: list[Factory] = []
        self._forker: WorkerForker | None = None

    def __iter__(self) -> Iterator[WorkerHandle]:
        return iter(list(self.workers.values()))

    def prepare(self) -> None:
        """Load what workers need, while their shared host is starting."""
        if self.size and self._forker is None:
            self._forker = WorkerForker(self._settings.runner)

    def fill(self, host: EngineHost) -> Iterator[WorkerHandle]:
        """Start workers up to the limit, if the forker is ready.

        Each replaces a dead worker, if there is one. Raises `ForkerLost` if the forker could not be
        started.
        """
        while len(self.workers) < self.size:
            forker = self._ready_forker()
            if forker is None:
                return
            worker = self._start(forker, host.factory(self._left[-1] if self._left else None))
            if worker is not None:
                self._left = self._left[:-1]
                yield worker
        self._left.clear()

    def idle(self) -> WorkerHandle | None:
        """A warm worker without a job."""
        return next((w for w in self.workers.values() if w.ready and w.job_id is None), None)

    def remove(self, worker: WorkerHandle) -> None:
        """End a worker, or record that it is gone."""
        if self.workers.pop(worker.name, None) is not None:
            self._left.append(worker.factory)
        worker.line.close()
        kill(worker.name)

    def close(self) -> None:
        """End every worker."""
        if self._forker is not None:
            self._forker.close()
        for worker in self:
            self.remove(worker)

    def _ready_forker(self) -> WorkerForker | None:
        """The forker; None while it is loading."""
        self.prepare()
        forker = self._forker
        try:
            return forker if forker is not None and forker.is_ready() else None
        except ForkerLost:
            self._drop_forker()
            raise

    def _start(self, forker: WorkerForker, factory: Factory) -> WorkerHandle | None:
        """Start a worker; None if the forker is gone and has to load again first."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                pid = forker.fork(theirs)
        except ForkerLost:
            ours.close()
            self._drop_forker()
            return None
        ours.setblocking(False)
        worker = WorkerHandle(processes.process_name(pid), MessageLine(ours), factory)
        worker.line.send({"settings": replace(self._settings, runner=factory).to_json()})
        self.workers[worker.name] = worker
        return worker

    def _drop_forker(self) -> None:
        if self._forker is not None:
            self._forker.close()
            self._forker = None


def kill(worker: str) -> None:
    """Kill a process and wait for its death, so that it can do nothing more."""
    with suppress(ProcessLookupError):
        if processes.is_alive(worker):
            os.kill(processes.pid_of(worker), signal.SIGKILL)
    until = time.monotonic() + _DEATH_S
    while processes.is_alive(worker) and time.monotonic() < until:
        time.sleep(_POLL_S)


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

    def _committed(self, job: RefreshJob) -> dict[str, Refreshed]:
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
        wait_ms = _RESTARTS.nominal_ms(self._failed_starts)
        self._fill_at_ms = self._clock.now_ms() + int(wait_ms)


class InlineRunner:
    """For one thread. `name` is the worker of its jobs and the holder of their locks."""

    def __init__(
        self,
        name: str,
        store: TableStore,
        settings: WarehouseSettings,
        engines: EngineState,
        clock: Clock,
    ) -> None:
        self.name = name
        self._store, self._settings, self._clock = store, settings, clock
        self._engines = engines
        self._waiting: deque[tuple[Start, bool]] = deque()
        self._engine: Refresher | None = None
        self._worker: UnitWorker | None = None

    @property
    def names(self) -> frozenset[str]:
        """The lock holders that belong to this runner."""
        return frozenset({self.name})

    def start(self, start: Start, *, forced: bool) -> list[Event]:
        """Accept a job whose row is committed; it runs when the loop calls `run`."""
        self._waiting.append((start, forced))
        return []

    def cancel(self, job_id: int, _now_ms: int) -> bool:
        """Cancel a job; True if it had not begun, which is the only case here."""
        kept = [entry for entry in self._waiting if entry[0].job.job_id != job_id]
        found = len(kept) < len(self._waiting)
        self._waiting = deque(kept)
        return found

    @property
    def is_waiting(self) -> bool:
        """Whether a job is pending and engines work."""
        return bool(self._waiting) and self._engines.generation is not None

    def next(self) -> tuple[Start, bool]:
        """The next job, and whether it was forced."""
        return self._waiting.popleft()

    def run(self, start: Start, *, forced: bool) -> Event:
        """Run a job; returns its outcome as an event for the core."""
        job_id = start.job.job_id
        ended = self._run(start, forced)
        self._engines.job_ended(job_id, ended)
        if self._engines.was_lost(ended):
            return WorkerDied(self.name)
        return outcome_event(job_id, ended)

    def kill_overdue(self) -> list[Event]:
        """A no-op: there is no process to kill."""
        return []

    def look_after(self) -> list[Event]:
        """Drop the engine if its shared host was restarted."""
        if self._engines.renew():
            self._close_engine()
        return []

    def report(self) -> list[dict[str, Any]]:
        """The workers, for people: none."""
        return []

    def progress(self) -> dict[int | None, Any]:
        """The progress of jobs: none, because a job here blocks the loop."""
        return {}

    def close(self) -> None:
        """Close the engine."""
        self._close_engine()

    def _run(self, start: Start, forced: bool) -> Ended:
        try:
            worker = self._unit_worker()
        except Unavailable as error:
            return Failed(FailureKind.AWAY, error.message)
        reserve_ms = self._settings.reserve_ms
        try:
            claimed = claim(
                self._store,
                start.job.job_id,
                self.name,
                now_ms=self._clock.now_ms(),
                reserve_ms=reserve_ms,
            )
        except NotClaimed as error:
            return Cancelled(error.message)
        except LockHeld as error:
            return Failed(FailureKind.COLLISION, error.message)
        extend = partial(self._store.lake.extend, claimed.token, reserve_ms)
        with meanwhile(extend, reserve_ms / 4 / 1_000):  # otherwise a sweep would remove its files
            return worker.run(claimed, stale=start.stale, forced=forced, waited_ms=start.waited_ms)

    def _unit_worker(self) -> UnitWorker:
        if self._worker is None:
            self._engine = self._engines.host.factory().refresher(self._store.lake)
            self._worker = UnitWorker(
                self._store,
                self._engine,
                topics=self._settings.topic_positions(),
                api_key=self._settings.topics_api_key,
                now_ms=self._clock.now_ms,
            )
        return self._worker

    def _close_engine(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None
        if self._engine is not None:
            self._engine.close()
            self._engine = None
