"""The worker processes of a coordinator: warm, one job each at a time, replaced when they die."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from penstock.tables.shell.alive import process_name
from penstock.tables.shell.host import Host
from penstock.tables.shell.refresher import Factory
from penstock.tables.shell.settings import WarehouseSettings
from penstock.tables.shell.wire import Line


@dataclass(slots=True)
class Hand:
    """One worker process as the coordinator sees it."""

    name: str
    process: subprocess.Popen[bytes]
    line: Line
    factory: Factory
    job_id: int | None = None
    ready: bool = False
    kill_at_ms: int | None = None


class Crew:
    """Starts, feeds and buries worker processes. For one thread."""

    def __init__(self, settings: WarehouseSettings, size: int) -> None:
        self._settings = settings
        self.size = size
        self.hands: dict[str, Hand] = {}
        self._left: list[Factory] = []

    def __iter__(self) -> Iterator[Hand]:
        return iter(list(self.hands.values()))

    def fill(self, host: Host) -> list[Hand]:
        """Start workers until there are as many as may be busy; returns the new ones.

        Each takes the place of one that died, if one did.
        """
        made = []
        while len(self.hands) < self.size:
            left = self._left.pop() if self._left else None
            made.append(self._start(host.factory(left)))
        self._left.clear()
        return made

    def idle(self) -> Hand | None:
        """A worker that is warm and has no job."""
        return next((h for h in self.hands.values() if h.ready and h.job_id is None), None)

    def bury(self, hand: Hand) -> None:
        """A worker is gone, or has to go."""
        if self.hands.pop(hand.name, None) is not None:
            self._left.append(hand.factory)
        hand.line.close()
        kill(hand.process)

    def close(self) -> None:
        """End every worker."""
        for hand in self:
            self.bury(hand)

    def _start(self, factory: Factory) -> Hand:
        ours, theirs = socket.socketpair()
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "penstock.tables.shell.worker", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=2,  # what an engine prints is no answer of ours
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                },
            )
        finally:
            theirs.close()
        ours.setblocking(False)
        hand = Hand(process_name(process.pid), process, Line(ours), factory)
        hand.line.send({"settings": replace(self._settings, runner=factory).to_json()})
        self.hands[hand.name] = hand
        return hand


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a process for good, and its entry in the process table."""
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
        process.wait()
