"""The worker processes of a coordinator: warm, one job each at a time, replaced when they die."""

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
from penstock.tables.coordinator.host import Host
from penstock.tables.coordinator.worker_forker import Nursery, NurseryLost
from penstock.tables.engine import Factory
from penstock.tables.settings import WarehouseSettings
from penstock.tables.worker.messages import Line

_DEATH_S: Final = 10.0
_POLL_S: Final = 0.001


@dataclass(slots=True)
class Hand:
    """One worker process as the coordinator sees it."""

    name: str
    line: Line
    factory: Factory
    job_id: int | None = None
    ready: bool = False
    kill_at_ms: int | None = None
    progress: dict[str, Any] | None = None


class Crew:
    """Starts, feeds and buries worker processes. For one thread."""

    def __init__(self, settings: WarehouseSettings, size: int) -> None:
        self._settings = settings
        self.size = size
        self.hands: dict[str, Hand] = {}
        self._left: list[Factory] = []
        self._nursery: Nursery | None = None

    def __iter__(self) -> Iterator[Hand]:
        return iter(list(self.hands.values()))

    def prepare(self) -> None:
        """Load what workers need, while whatever they share is being started."""
        if self.size and self._nursery is None:
            self._nursery = Nursery(self._settings.runner)

    def fill(self, host: Host) -> Iterator[Hand]:
        """Start workers until there are as many as may be busy, if what makes them is ready.

        Each takes the place of one that died, if one did. `NurseryLost` says that what makes them
        could not be started.
        """
        while len(self.hands) < self.size:
            nursery = self._ready_nursery()
            if nursery is None:
                return
            hand = self._start(nursery, host.factory(self._left[-1] if self._left else None))
            if hand is not None:
                self._left = self._left[:-1]
                yield hand
        self._left.clear()

    def idle(self) -> Hand | None:
        """A worker that is warm and has no job."""
        return next((h for h in self.hands.values() if h.ready and h.job_id is None), None)

    def bury(self, hand: Hand) -> None:
        """A worker is gone, or has to go."""
        if self.hands.pop(hand.name, None) is not None:
            self._left.append(hand.factory)
        hand.line.close()
        kill(hand.name)

    def close(self) -> None:
        """End every worker."""
        if self._nursery is not None:
            self._nursery.close()
        for hand in self:
            self.bury(hand)

    def _ready_nursery(self) -> Nursery | None:
        """What forks workers; None while it loads."""
        self.prepare()
        nursery = self._nursery
        try:
            return nursery if nursery is not None and nursery.is_ready() else None
        except NurseryLost:
            self._drop_nursery()
            raise

    def _start(self, nursery: Nursery, factory: Factory) -> Hand | None:
        """A new worker; None if what forks them is gone, and has to be loaded again first."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                pid = nursery.fork(theirs)
        except NurseryLost:
            ours.close()
            self._drop_nursery()
            return None
        ours.setblocking(False)
        hand = Hand(processes.process_name(pid), Line(ours), factory)
        hand.line.send({"settings": replace(self._settings, runner=factory).to_json()})
        self.hands[hand.name] = hand
        return hand

    def _drop_nursery(self) -> None:
        if self._nursery is not None:
            self._nursery.close()
            self._nursery = None


def kill(worker: str) -> None:
    """End a process for good: when this returns it does nothing any more."""
    with suppress(ProcessLookupError):
        if processes.is_alive(worker):
            os.kill(processes.pid_of(worker), signal.SIGKILL)
    until = time.monotonic() + _DEATH_S
    while processes.is_alive(worker) and time.monotonic() < until:
        time.sleep(_POLL_S)
