"""How long a peer has taken nothing of what waits for it in a buffer.

>>> stall = Stall()
>>> [stall.lasted_s(size, now_s) for now_s, size in enumerate([9, 9, 9, 5, 7, 7, 0, 0])]
[0, 1, 2, 0, 1, 2, 0, 0]
>>> [stall.lasted_s(*look) for look in [(9, 0), (12, 1, 3), (14, 2, 3)]]
[0, 1, 0]
"""

from __future__ import annotations


class Stall:
    """Looks at a buffer now and then; one that shrinks or is empty is not stalled."""

    __slots__ = ("_since_s", "_size")

    def __init__(self) -> None:
        self._size = 0
        self._since_s = 0.0

    def lasted_s(self, size: int, now_s: float, added: int = 0) -> float:
        """Seconds since the buffer last shrank or was empty.

        `added`: bytes that came to it since the last look, which hide what was taken.
        """
        if not size or not self._size or size - added < self._size:
            self._since_s = now_s
        self._size = size
        return now_s - self._since_s
