"""A rate that costs nothing until it is looked at: from a counter and the time it last grew.

An exponentially weighted mean over 5 s. Whatever happened since the last look is taken as spread
evenly up to the time of the last event, and as quiet after it; so a look after an hour of silence
finds nothing, and looks once a second follow a change within seconds.

>>> rate = LazyRate(count=0, now_ms=0)
>>> round(rate.look(count=1_000, last_ms=10_000, now_ms=10_000))  # 100/s for two spans
86
>>> round(rate.look(count=1_000, last_ms=10_000, now_ms=15_000))  # then quiet for one
32
"""

from __future__ import annotations

from math import exp
from typing import Final

SPAN_MS: Final = 5_000


class LazyRate:
    """Events a second, as of the last look."""

    __slots__ = ("_count", "_looked_ms", "per_s")

    def __init__(self, count: int, now_ms: int, per_s: float = 0.0) -> None:
        """`per_s` is what is known at the first look."""
        self._count = count
        self._looked_ms = now_ms
        self.per_s = per_s

    def look(self, count: int, last_ms: int, now_ms: int) -> float:
        """The rate now; `last_ms` is when the counter last grew."""
        if now_ms <= self._looked_ms:
            return self.per_s
        more, self._count = count - self._count, count
        quiet_since_ms = min(max(last_ms, self._looked_ms), now_ms) if more > 0 else self._looked_ms
        busy_ms = max(1, quiet_since_ms - self._looked_ms)
        if more > 0:
            spread = more * 1e3 / busy_ms
            self.per_s = spread + (self.per_s - spread) * exp(-busy_ms / SPAN_MS)
        self.per_s *= exp((quiet_since_ms - now_ms) / SPAN_MS)
        self._looked_ms = now_ms
        return self.per_s
