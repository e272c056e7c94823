"""The worker processes of a coordinator: warm, one job at a time, replaced when they die."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from penstock.tables import processes
from penstock.tables.coordinator.host import EngineHost
from penstock.tables.coordinator.worker_forker import ForkerLost, WorkerForker
from penstock.tables.engine import Factory
from penstock.tables.settings import WarehouseSettings
from penstock.tables.worker.messages import MessageLine

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
