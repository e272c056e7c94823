"""The quantiles of a short window: counted in coarse buckets, read and cleared once a second.

`LatencyHistogram` is for long runs; reading and clearing its thousands of buckets takes longer than
a sampler may. Here there are eight buckets for each doubling, so a quantile is off by at most 7 %.

>>> window = LatencyWindow()
>>> for value in (100, 200, 300, 90_000):
...     window.record(value)
>>> window.take((0.5, 0.99))
[200, 86016]
>>> window.take((0.5, 0.99)) is None
True
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from penstock.flow.histogram import middle_of

_SUB_BITS: Final = 3
_EXACT: Final = 1 << (_SUB_BITS + 1)
_SHIFT_MAX: Final = 38  # the last bucket begins near 2**42: over an hour in nanoseconds
_SIZE: Final = (_SHIFT_MAX << _SUB_BITS) + _EXACT


class LatencyWindow:
    """Counts of whole numbers since they were last taken. Values past the end count as the last."""

    __slots__ = ("_counts", "count")

    def __init__(self) -> None:
        self._counts: list[int] = [0] * _SIZE
        self.count = 0

    def record(self, value: int) -> None:
        """Count a value; negative ones count as zero."""
        shift = value.bit_length() - (_SUB_BITS + 1)
        if value < _EXACT:
            slot = value if value > 0 else 0
        elif shift <= _SHIFT_MAX:
            slot = (shift << _SUB_BITS) + (value >> shift)
        else:
            slot = _SIZE - 1
        self._counts[slot] += 1
        self.count += 1

    def take(self, shares: Sequence[float]) -> list[int] | None:
        """The quantiles of everything since the last call, and begin again; None if nothing was."""
        if not self.count:
            return None
        upto = list(accumulate(self._counts))
        ranks = [max(1, -int(-share * self.count // 1)) for share in shares]
        self._counts = [0] * _SIZE
        self.count = 0
        return [middle_of(bisect_left(upto, rank), _SUB_BITS) for rank in ranks]
