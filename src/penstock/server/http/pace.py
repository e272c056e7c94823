"""Whether a body comes in fast enough, span after span: no burst pays for a trickle later.

>>> pace = Pace(0.0)
>>> [pace.keeps_up(size, now_s, span_s=10, least=100) for now_s, size in ((5, 0), (11, 150))]
[True, True]
>>> pace.keeps_up(200, 22.0, span_s=10, least=100)
False
"""

from __future__ import annotations


class Pace:
    """Remembers how much had come when the span began that is looked at."""

    __slots__ = ("_size", "began_s")

    def __init__(self, now_s: float) -> None:
        self.began_s = now_s
        self._size = 0

    def keeps_up(self, size: int, now_s: float, *, span_s: float, least: int) -> bool:
        """Whether at least so many bytes came in the span that is over, if one is."""
        if now_s - self.began_s <= span_s:
            return True
        came, self._size, self.began_s = size - self._size, size, now_s
        return came >= least

    def excuse(self, span_s: float) -> None:
        """It was not the peer who was slow for so long."""
        self.began_s += span_s
