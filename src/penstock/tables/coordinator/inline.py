"""Runs jobs in the coordinator's process, one at a time: `parallel_refresh_mode` off, dry_run.

It has the methods of `worker_runner.WorkerRunner`, so a session does not care where jobs run. But a
job here blocks the session's loop, so the loop decides when the next one runs.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any

from penstock.kernel.clock import Clock
from penstock.kernel.errors import Unavailable
from penstock.kernel.system import meanwhile
from penstock.tables.coordinator.engines import EngineState
from penstock.tables.core.events import Event, Start, WorkerDied
from penstock.tables.core.failures import FailureKind
from penstock.tables.engine import Refresher
from penstock.tables.settings import WarehouseSettings
from penstock.tables.store import TableStore
from penstock.tables.worker.claim import LockHeld, NotClaimed, claim
from penstock.tables.worker.messages import outcome_event
from penstock.tables.worker.outcomes import Cancelled, Ended, Failed
from penstock.tables.worker.unit import UnitWorker


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
