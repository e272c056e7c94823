"""How large items are, and exactly how many bytes any run of them has.

Items are numbered as they arrive and every stage passes them on in order, so what a channel holds
is a run of numbers and its bytes are the difference of two running sums.

>>> sizes = Sizes(random.Random(1), mean_bytes=100, spread=0.0)
>>> sizes.arrive(10)
>>> sizes.between(2, 7)
500
"""

from __future__ import annotations

import random
from bisect import bisect_right


class Sizes:
    """The size of every item that ever arrived; those that arrive together share one.

    Sizes are drawn evenly within `spread` of `mean_bytes` (0.5: half to one and a half times).
    `mean_bytes` may be changed while the simulation runs.
    """

    def __init__(self, chance: random.Random, *, mean_bytes: float, spread: float = 0.5) -> None:
        self.mean_bytes = mean_bytes
        self._spread = spread
        self._chance = chance
        self._first: list[int] = []  # first number of each run of one size
        self._before: list[int] = []  # bytes of all items before that run
        self._size: list[int] = []
        self._count = 0
        self._bytes = 0

    def arrive(self, count: int) -> None:
        """Number the next items and give them a size."""
        if not count:
            return
        drawn = self.mean_bytes * (1 + self._chance.uniform(-self._spread, self._spread))
        size_bytes = max(1, round(drawn))
        self._first.append(self._count)
        self._before.append(self._bytes)
        self._size.append(size_bytes)
        self._count += count
        self._bytes += count * size_bytes

    def between(self, first: int, after: int) -> int:
        """The bytes of the items from one number up to, and without, another."""
        return self._upto(after) - self._upto(first) if after > first else 0

    def _upto(self, number: int) -> int:
        run = bisect_right(self._first, number) - 1
        if run < 0:
            return 0
        return self._before[run] + (number - self._first[run]) * self._size[run]
