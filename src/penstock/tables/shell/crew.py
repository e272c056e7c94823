"""The worker processes of a coordinator: warm, one job each at a time, replaced when they die."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.tables.shell.alive import process_name
from penstock.tables.shell.settings import WarehouseSettings
from penstock.tables.shell.wire import Line


@dataclass(slots=True)
class Hand:
    """One worker process as the coordinator sees it."""

    name: str
    process: subprocess.Popen[bytes]
    line: Line
    job_id: int | None = None
    ready: bool = False
    kill_at_ms: int | None = None


class Crew:
    """Starts, feeds and buries worker processes. For one thread."""

    def __init__(self, settings: WarehouseSettings, size: int) -> None:
        self._settings = settings
        self.size = size
        self.hands: dict[str, Hand] = {}

    def __iter__(self) -> Iterator[Hand]:
        return iter(list(self.hands.values()))

    def fill(self) -> list[Hand]:
        """Start workers until there are as many as may be busy; returns the new ones."""
        return [self._start() for _ in range(self.size - len(self.hands))]

    def idle(self) -> Hand | None:
        """A worker that is warm and has no job."""
        return next((h for h in self.hands.values() if h.ready and h.job_id is None), None)

    def bury(self, hand: Hand) -> None:
        """A worker is gone, or has to go."""
        self.hands.pop(hand.name, None)
        hand.line.close()
        kill(hand.process)

    def close(self) -> None:
        """End every worker."""
        for hand in self:
            self.bury(hand)

    def _start(self) -> Hand:
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
        hand = Hand(process_name(process.pid), process, Line(ours))
        hand.line.send({"settings": self._settings.to_json()})
        self.hands[hand.name] = hand
        return hand


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a process for good, and its entry in the process table."""
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
        process.wait()
