"""How long what waits would take to drain: waiting bytes ÷ the rate at which they leave.

The rate is what was measured while more waited than could leave: a queue that is often empty tells
how much came, not how much could leave.

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
"""Bytes a second, until something was measured."""
ROOM_MIN: Final = MIB
"""So much may always wait. A disk that is slow to sync looks slow for the few bytes of each sync;
only a larger group shows what it can take."""
_WEIGHT_MS: Final = 100.0
"""An old measurement counts for so long against new ones."""
_FADE: Final = 0.95
"""What an earlier sample counts for: those of two seconds make the rate. What leaves does so in
groups, the largest of which take a second on a slow disk."""
_FLOW_EWMA: Final = 0.1
_OLD_MS: Final = 10_000.0
"""A measurement is old when nothing waited for so long: the disk may have other users by now."""


class Drain:
    """Measures a queue's rate and says how much may wait in it, for a limit in time; 0: no limit.

    `room` may be compared with what waits for every item; `sample` is called every 100 ms or so.
    """

    def __init__(self, limit_ms: float = LIMIT_MS) -> None:
        self.limit_ms = limit_ms
        self._bytes = FIRST_RATE * _WEIGHT_MS / 1e3
        self._ms = _WEIGHT_MS
        self._calm_ms = 0.0
        self._stalled_ms = 0.0  # something waits, and nothing has left for so long
        self._open_ms = 0.0  # of that, what counts for the group that leaves next
        self._fade = 1.0
        self._waited = 0  # at the last sample
        self._flow = 0.0  # bytes that leave in a span, of late

    @property
    def rate(self) -> float:
        """Bytes a second that leave while more wait."""
        return self._bytes / self._ms * 1e3

    @property
    def room(self) -> float:
        """How many bytes may wait."""
        if not self.limit_ms:
            return math.inf
        if self._stalled_ms > self.limit_ms:
            return 0.0
        return max(self.rate * self.limit_ms / 1e3, ROOM_MIN)

    def estimate_ms(self, waiting: int) -> float:
        """How long so many bytes would take; at least as long as nothing has left."""
        return max(waiting / max(self.rate, 1.0) * 1e3, self._stalled_ms if waiting else 0.0)

    def sample(self, waiting: int, finished: int, span_ms: float) -> None:
        """So much waits now, and so much left in the span before.

        Spans in which nothing left count when the next group does: a large one takes a second on a
        slow disk, and taken for a second without any rate it would multiply every estimate.
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
        if self._flow > self._bytes / self._ms * span_ms:  # with time to spare
            self._bytes, self._ms = self._flow, span_ms

    def _weigh(self, weight_ms: float) -> None:
        self._bytes, self._ms = self._bytes / self._ms * weight_ms, weight_ms
