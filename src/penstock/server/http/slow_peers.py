"""Peers that are too slow: `Pace` is for what they send, `Stall` for what they do not read.

A body must arrive fast enough in every span: no burst pays for a trickle later.

>>> pace = Pace(0.0)
>>> [pace.keeps_up(size, now_s, span_s=10, least=100) for now_s, size in ((5, 0), (11, 150))]
[True, True]
>>> pace.keeps_up(200, 22.0, span_s=10, least=100)
False

How long a peer has taken nothing, or next to nothing, of what waits for it in a buffer.

>>> stall = Stall(least=3)
>>> [stall.lasted_s(size, now_s) for now_s, size in enumerate([9, 9, 8, 7, 5, 5, 0, 0])]
[0, 1, 2, 3, 0, 1, 0, 0]
>>> [stall.lasted_s(*look) for look in [(9, 0), (12, 1, 3), (12, 2, 3)]]
[0, 1, 0]
"""

from __future__ import annotations


class Pace:
    """Remembers how many bytes had arrived when the current span began."""

    __slots__ = ("_size", "began_s")

    def __init__(self, now_s: float) -> None:
        self.began_s = now_s
        self._size = 0

    def keeps_up(self, size: int, now_s: float, *, span_s: float, least: int) -> bool:
        """Whether at least `least` bytes arrived in the span that just ended, if one did."""
        if now_s - self.began_s <= span_s:
            return True
        came, self._size, self.began_s = size - self._size, size, now_s
        return came >= least

    def excuse(self, span_s: float) -> None:
        """Do not count a time during which the peer was not at fault."""
        self.began_s += span_s


class Stall:
    """Checks a buffer periodically; one that shrinks enough, or is empty, is not stalled.

    Where a buffer may be large, `least` keeps a peer from holding it forever by reading a trickle.
    """

    __slots__ = ("_least", "_since_s", "_size", "_taken")

    def __init__(self, *, least: int = 1) -> None:
        self._least = least
        self._size = 0
        self._taken = 0  # since `_since_s`
        self._since_s = 0.0

    def lasted_s(self, size: int, now_s: float, added: int = 0) -> float:
        """Seconds since enough was read from the buffer, or it was empty.

        `added`: bytes added since the last check, which hide what was read.
        """
        self._taken += max(0, self._size + added - size)
        if not size or not self._size or self._taken >= self._least:
            self._since_s = now_s
            self._taken = 0
        self._size = size
        return now_s - self._since_s
