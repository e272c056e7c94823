"""A worker process: warm, with its own engine; runs one job after another.

It is started with the number of a socket. The first message contains settings, later ones jobs.
When the other end disconnects, no coordinator needs the work, and it exits immediately: every
commit is all or nothing, so it may stop at any instruction.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
import threading
from contextlib import suppress
from typing import Any, Final

from penstock.kernel.clock import Clock
from penstock.kernel.errors import PenstockError
from penstock.kernel.system import SystemClock
from penstock.lake.catalog import open_catalog
from penstock.lake.database import CatalogAway
from penstock.tables.core.failures import FailureKind
from penstock.tables.core.history import RefreshProgress
from penstock.tables.engine import Refresher
from penstock.tables.processes import process_name
from penstock.tables.settings import WarehouseSettings
from penstock.tables.store import FOREIGN_MS, TableStore
from penstock.tables.worker.claim import LockHeld, NotClaimed, claim
from penstock.tables.worker.outcomes import (
    Cancelled,
    Ended,
    Failed,
    MessageLine,
    detail_of,
    kind_of,
    outcome_message,
)
from penstock.tables.worker.unit import UnitWorker

TELL_EVERY_MS: Final = 250


class Teller:
    """Reports a job's progress to the coordinator, at a limited rate."""

    def __init__(self, line: MessageLine, job_id: int, clock: Clock) -> None:
        self._line, self._job_id, self._clock = line, job_id, clock
        self._next_ms = 0
        self._lock = threading.Lock()

    def __call__(self, progress: RefreshProgress) -> None:
        if progress.left_ms == 0:
            return  # completion is reported as the job's end
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            if now_ms < self._next_ms:
                return
            self._next_ms = now_ms + TELL_EVERY_MS
        self._line.send({"progress": self._job_id, "at": progress.plain()})


class Worker:
    """A worker's side of the connection: takes jobs, sends back outcomes."""

    def __init__(self, line: MessageLine, settings: WarehouseSettings) -> None:
        self._line = line
        self._settings = settings
        self._clock = SystemClock()
        self._name = process_name()
        self._lake = open_catalog(
            settings.catalog,
            settings.data_path,
            create=False,
            timeout_ms=settings.catalog_timeout_ms,
        )
        if self._lake.bell is not None:
            self._lake.bell.close()
            self._lake.bell = None  # the outcome of a job tells the coordinator
        self._store = TableStore(self._lake)
        self._refresher: Refresher = settings.runner.refresher(self._lake)
        self._unit_worker = UnitWorker(
            self._store,
            self._refresher,
            topics=settings.topic_positions(),
            api_key=settings.topics_api_key,
            now_ms=self._clock.now_ms,
        )
        self._job_id: int | None = None
        self._token: str | None = None

    def run(self, jobs: queue.SimpleQueue[dict[str, Any]]) -> None:
        """Run jobs for ever."""
        threading.Thread(target=self._show_life, daemon=True).start()
        self._line.send({"ready": self._name})
        while True:
            message = jobs.get()
            self._job_id = int(message["run"])
            ended = self._one(message)
            self._job_id = self._token = None
            self._line.send(outcome_message(int(message["run"]), ended))

    def cancel(self, job_id: int) -> None:
        """Cancel a job, from the listening thread; its row is already closed."""
        if self._job_id == job_id:
            self._refresher.interrupt()

    def _one(self, message: dict[str, Any]) -> Ended:
        try:
            claimed = claim(
                self._store,
                int(message["run"]),
                self._name,
                now_ms=self._clock.now_ms(),
                reserve_ms=self._settings.reserve_ms,
            )
        except NotClaimed as error:
            return Cancelled(error.message)
        except LockHeld as error:
            return Failed(FailureKind.COLLISION, error.message)
        except PenstockError as error:
            return Failed(kind_of(error), detail_of(error))
        self._token = claimed.token
        return self._unit_worker.run(
            claimed,
            stale=tuple(message["stale"]),
            forced=bool(message["forced"]),
            waited_ms=int(message["waited_ms"]),
            tell=Teller(self._line, claimed.job.job_id, self._clock),
        )

    def _show_life(self) -> None:
        """Heartbeats for other machines, and for the sweep during a long refresh."""
        pause_s = min(FOREIGN_MS / 3, self._settings.reserve_ms / 4) / 1_000
        waiting = threading.Event()
        while True:
            with suppress(Exception):  # an unreachable catalog may come back
                self._store.show_life(self._name, self._clock.now_ms())
                token = self._token
                if token is not None:
                    self._lake.extend(token, self._settings.reserve_ms)
            waiting.wait(pause_s)


def main(number: int) -> None:
    """Work for the coordinator at the other end of a socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the coordinator handles Ctrl-C
    line = MessageLine(socket.socket(fileno=number))
    first = line.receive()
    while line.is_open and not first:
        first = line.receive()
    if not first:
        return
    jobs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    made: list[Worker] = []
    threading.Thread(target=_listen, args=(line, jobs, made, first[1:]), daemon=True).start()
    try:
        made.append(Worker(line, WarehouseSettings.from_json(first[0]["settings"])))
    except Exception as error:
        line.send({"unfit": detail_of(error)})
        sys.exit(1)
    try:
        made[0].run(jobs)
    except CatalogAway:  # it cannot record its outcome; the coordinator sees it exit
        os._exit(1)


def _listen(
    line: MessageLine,
    jobs: queue.SimpleQueue[dict[str, Any]],
    made: list[Worker],
    messages: list[dict[str, Any]],
) -> None:
    while True:
        for message in messages:
            if "run" in message:
                jobs.put(message)
            elif "cancel" in message and made:
                made[0].cancel(int(message["cancel"]))
        if not line.is_open:
            os._exit(0)
        messages = line.receive()


if __name__ == "__main__":
    main(int(sys.argv[1]))
