"""How late a member hears the heartbeats of its leaders: what an election would come of.

A leader sends a heartbeat each tick, so that the next is due a tick after the last was heard. One
that is heard late stands for all that were due meanwhile, so that each tick counts once: a silence
of a second is ten late heartbeats, although one of them ends it. What comes earlier than half a
tick before it is due is one more in between, as reads ask for them, and counts for nothing.

>>> heard = Heartbeats(tick_ms=100)
>>> for at_ms in (0, 100, 102, 450):
...     heard.hear(0, leader=2, term=1, now_ns=at_ms * 1_000_000)
>>> heard.counts, heard.late_ms_total  # one in time, one 250 ms late, and with it two more
([1, 0, 1, 0, 1, 1, 0, 0, 0, 0, 0], 450.0)
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

LATE_BOUNDS_MS: Final = (10, 25, 50, 100, 200, 300, 500, 1_000, 2_000, 5_000)
_LATE_TICKS_MAX: Final = 600
"""A process that was stopped for a night counts as one that was stopped for a minute."""


class Heartbeats:
    """Counts of how late heartbeats were, of all partitions together."""

    def __init__(self, tick_ms: int) -> None:
        self.counts = [0] * (len(LATE_BOUNDS_MS) + 1)
        self.late_ms_total = 0.0
        self._tick_ns = tick_ms * 1_000_000
        self._due: dict[int, tuple[int, int, int]] = {}  # leader, term, when the next one is due

    def hear(self, partition: int, *, leader: int, term: int, now_ns: int) -> None:
        """Count a heartbeat; the first one of a leader in its term was due at no time."""
        tick_ns = self._tick_ns
        was_leader, was_term, due_ns = self._due.get(partition, (0, 0, 0))
        if (leader, term) == (was_leader, was_term):
            late_ns = now_ns - due_ns
            if late_ns < -tick_ns // 2:
                return
            self._count(late_ns)
        self._due[partition] = (leader, term, now_ns + tick_ns)

    def _count(self, late_ns: int) -> None:
        for _ in range(_LATE_TICKS_MAX):
            late_ms = max(0, late_ns) / 1e6
            self.counts[bisect_left(LATE_BOUNDS_MS, late_ms)] += 1
            self.late_ms_total += late_ms
            late_ns -= self._tick_ns
            if late_ns < 0:
                return
