"""When to hand over to the log: at once, or together while the loop has no time to spare.

A group costs the kernel and the loop about as much for one write as for fifty. While there is time,
that does not matter, and whatever waits goes at once. When the loop is busy, a group stays open a
little: until it is large enough that the next one can fill while this one is written, or nothing
more comes, or its time is over. A lone write never waits.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from penstock.kernel.clock import Clock

GROUP_WRITES: Final = 32
HOLD_NS_MAX: Final = 1_000_000
QUIET_NS: Final = 150_000
BUSY_FROM: Final = 0.5
BUSY_FULL: Final = 0.75


class Gathering(Protocol):
    """Something with writes to hand over."""

    def flush(self) -> None:
        """Hand over."""
        ...


class Gather:
    """Holds the hand-over of all lanes, so that their writes share a sync."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._now_ns = clock.monotonic_ns
        self._ready: list[Gathering] = []
        self._seen = 0
        self._grew_ns = 0
        self._until_ns = 0
        self._hold_ns = 0
        self.writes = 0  # in the group that is open; counted by those who add to it

    def set_busy(self, share: float) -> None:
        """How much of its time the loop had something to do, of late."""
        wanted = (share - BUSY_FROM) / (BUSY_FULL - BUSY_FROM)
        self._hold_ns = int(HOLD_NS_MAX * min(max(wanted, 0.0), 1.0))

    def join(self, lane: Gathering) -> None:
        """A lane has something to hand over."""
        if not self._ready:
            self._seen = 1
            self._grew_ns = self._now_ns()
            self._until_ns = self._grew_ns + self._hold_ns
            self._loop.call_soon(self._turn)
        self._ready.append(lane)

    def _turn(self) -> None:
        if self._hold_ns and 1 < self.writes < GROUP_WRITES and self._is_growing():
            self._loop.call_soon(self._turn)
            return
        ready, self._ready = self._ready, []
        self.writes = 0
        for lane in ready:
            lane.flush()

    def _is_growing(self) -> bool:
        now_ns = self._now_ns()
        if self.writes > self._seen:
            self._seen, self._grew_ns = self.writes, now_ns
        return now_ns < self._until_ns and now_ns - self._grew_ns < QUIET_NS
