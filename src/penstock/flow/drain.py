"""How long a queue would take to drain: what waits ÷ the rate at which it leaves.

The rate is measured only while the queue is saturated: a queue that is often empty shows the
arrival rate, not the capacity. Queues are counted in bytes, unless their owner counts otherwise.

>>> drain = Drain(limit_ms=2_000)
>>> for _ in range(20):
...     drain.sample(waiting=50_000_000, finished=1_000_000, span_ms=100)
>>> round(drain.rate / 1e6), round(drain.estimate_ms(50_000_000)), drain.room > 50_000_000
(11, 4676, False)
"""

from __future__ import annotations

import math
from typing import Final

from penstock.kernel.units import MIB

LIMIT_MS: Final = 2_000
FIRST_RATE: Final = 32 * MIB
"""Bytes per second, until the first measurement."""
ROOM_MIN: Final = MIB
"""This much may always wait.

A disk that is slow to sync looks slow for the few bytes of each sync; only a larger group shows its
throughput.
"""
_WEIGHT_MS: Final = 100.0
"""The span that an old measurement counts for against new ones."""
_FADE: Final = 0.95
"""The decay per sample: the rate covers about two seconds.

Bytes leave in groups, and the largest group takes a second on a slow disk.
"""
_FLOW_EWMA: Final = 0.1
_OLD_MS: Final = 10_000.0
"""A measurement is old after the queue has been empty this long: the disk may have other users by
now.
"""


class Drain:
    """Measures a queue's drain rate and bounds its bytes by a time limit; 0 means no limit.

    `room` is cheap enough to check for every item; `sample` is called about every 100 ms.
    """

    def __init__(
        self,
        limit_ms: float = LIMIT_MS,
        *,
        first_rate: float = FIRST_RATE,
        room_min: float = ROOM_MIN,
    ) -> None:
        self.limit_ms = limit_ms
        self._room_min = room_min
        self._bytes = first_rate * _WEIGHT_MS / 1e3
        self._ms = _WEIGHT_MS
        self._calm_ms = 0.0
        self._stalled_ms = 0.0  # how long something has waited without any bytes leaving
        self._open_ms = 0.0  # the part of that charged to the group that leaves next
        self._fade = 1.0
        self._waited = 0  # at the last sample
        self._flow = 0.0  # recent bytes that leave in a span

    @property
    def rate(self) -> float:
        """Bytes per second that leave while more wait."""
        return self._bytes / self._ms * 1e3

    @property
    def room(self) -> float:
        """How many bytes may wait."""
        if not self.limit_ms:
            return math.inf
        if self._stalled_ms > self.limit_ms:
            return 0.0
        return max(self.rate * self.limit_ms / 1e3, self._room_min)

    def estimate_ms(self, waiting: int) -> float:
        """How long this many bytes would take to drain; at least the current stall."""
        return max(waiting / max(self.rate, 1.0) * 1e3, self._stalled_ms if waiting else 0.0)

    def sample(self, waiting: int, finished: int, span_ms: float) -> None:
        """Record the bytes waiting now and the bytes that left in the span before.

        Spans in which nothing left are charged to the next group that leaves: a large group takes a
        second on a slow disk, and counting that second as a rate of zero would multiply every
        estimate.
        """
        least, self._waited = min(waiting, self._waited), waiting
        self._stalled_ms = self._stalled_ms + span_ms if least and not finished else 0.0
        self._flow += _FLOW_EWMA * (finished - self._flow)
        if least and least >= self._flow:
            if self._calm_ms > _OLD_MS:
                self._weigh(_WEIGHT_MS)
            self._calm_ms = 0.0
            self._open_ms += span_ms
            self._fade *= _FADE
            if finished:
                self._bytes = self._bytes * self._fade + finished
                self._ms = self._ms * self._fade + self._open_ms
                self._open_ms, self._fade = 0.0, 1.0
            return
        self._calm_ms += span_ms
        self._open_ms, self._fade = 0.0, 1.0
        if self._flow > self._bytes / self._ms * span_ms:  # the queue emptied with time to spare
            self._bytes, self._ms = self._flow, span_ms

    def _weigh(self, weight_ms: float) -> None:
        self._bytes, self._ms = self._bytes / self._ms * weight_ms, weight_ms
