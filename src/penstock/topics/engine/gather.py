"""When to hand over to the log: at once, or together while the loop has no time to spare.

A group costs the kernel and the loop about as much for one write as for fifty. While there is time,
that does not matter, and whatever waits goes at once. When the loop is busy, a group stays open a
little: until it is large enough that the next one can fill while this one is written, or nothing
more comes, or its time is over. A lone write does not wait.

While very many watchers are written to, one rank after another, it does. Each gets its records when
the round comes to it, and every group that is written meanwhile makes that round longer. With a few
groups in a round, a thousand watchers have their records sooner, counted from when they were sent
(`bench delivery`).
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
ROUND_NS_A_WATCHER: Final = 3_500
"""How long a group stays open for each watcher of a round: about half of what it costs."""
ROUND_NS_MAX: Final = 4_000_000


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
        self._began_ns = 0
        self._grew_ns = 0
        self._hold_ns = 0
        self.round_ns = 0  # how long a group stays open because of the round that goes on
        self.writes = 0  # in the group that is open; counted by those who add to it

    def set_busy(self, share: float) -> None:
        """How much of its time the loop had something to do, of late."""
        wanted = (share - BUSY_FROM) / (BUSY_FULL - BUSY_FROM)
        self._hold_ns = int(HOLD_NS_MAX * min(max(wanted, 0.0), 1.0))

    def set_round(self, watchers: int) -> None:
        """So many watchers are being written to in a round; 0 when it is over."""
        self.round_ns = min(ROUND_NS_A_WATCHER * watchers, ROUND_NS_MAX)

    def join(self, lane: Gathering) -> None:
        """A lane has something to hand over."""
        if not self._ready:
            self._seen = 1
            self._began_ns = self._grew_ns = self._now_ns()
            self._loop.call_soon(self._turn)
        self._ready.append(lane)

    def _turn(self) -> None:
        if (self._hold_ns or self.round_ns) and self.writes < GROUP_WRITES and self._waits():
            self._loop.call_soon(self._turn)
            return
        ready, self._ready = self._ready, []
        self.writes = 0
        for lane in ready:
            lane.flush()

    def _waits(self) -> bool:
        """Whether the group that is open stays so."""
        now_ns = self._now_ns()
        open_ns = now_ns - self._began_ns
        if open_ns < self.round_ns:
            return True
        if self.writes > self._seen:
            self._seen, self._grew_ns = self.writes, now_ns
        return self.writes > 1 and open_ns < self._hold_ns and now_ns - self._grew_ns < QUIET_NS
