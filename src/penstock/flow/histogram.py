"""A latency histogram that costs one list increment per event.

Buckets are log-linear: exact below 128, then 64 for each doubling, so a quantile is off by at most
1.6 %. Any whole unit will do; the rest of Penstock records nanoseconds.

>>> latency = LatencyHistogram()
>>> for value in range(1, 1_001):
...     latency.record(value)
>>> latency.count, latency.quantile(0.5), latency.quantile(0.99)
(1000, 502, 988)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from typing import Final

_SUB_BITS: Final = 6
_EXACT: Final = 1 << (_SUB_BITS + 1)
_SHIFT_MAX: Final = 36  # the last bucket begins near 2**42: over an hour in nanoseconds
_SIZE: Final = (_SHIFT_MAX << _SUB_BITS) + _EXACT


class LatencyHistogram:
    """Counts of values in log-linear buckets. Values past the last bucket are counted in it."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: list[int] = [0] * _SIZE

    def record(self, value: int, count: int = 1) -> None:
        """Count a value, once or several times. Negative values count as zero."""
        shift = value.bit_length() - 7
        if value < 128:
            self._counts[value if value > 0 else 0] += count
        elif shift <= 36:
            self._counts[(shift << 6) + (value >> shift)] += count
        else:
            self._counts[_SIZE - 1] += count

    @property
    def count(self) -> int:
        """How many values were recorded."""
        return sum(self._counts)

    def quantile(self, share: float) -> int:
        """The value that `share` of all values do not exceed (middle of its bucket); 0 if empty."""
        return self.quantiles((share,))[0]

    def quantiles(self, shares: Iterable[float]) -> list[int]:
        """Several quantiles in one pass."""
        upto = list(accumulate(self._counts))
        total = upto[-1]
        ranks = [max(1, -int(-share * total // 1)) for share in shares]
        return [_middle(bisect_left(upto, rank)) if total else 0 for rank in ranks]

    def cumulative(self, bounds: Iterable[int]) -> tuple[list[int], int, int]:
        """How many values are at or below each bound, the total count, and the sum.

        A bucket is represented by its middle, for the bounds and for the sum.
        """
        found = [(_middle(slot), count) for slot, count in enumerate(self._counts) if count]
        upto = [sum(count for value, count in found if value <= bound) for bound in bounds]
        total = sum(count for _, count in found)
        return upto, total, sum(value * count for value, count in found)

    def add(self, other: LatencyHistogram) -> None:
        """Add the counts of another histogram."""
        self._counts = [
            mine + theirs for mine, theirs in zip(self._counts, other._counts, strict=True)
        ]

    def clear(self) -> None:
        """Reset all counts."""
        self._counts = [0] * _SIZE


def _middle(slot: int) -> int:
    if slot < _EXACT:
        return slot
    shift = (slot >> _SUB_BITS) - 1
    low = (slot - (shift << _SUB_BITS)) << shift
    return low + ((1 << shift) >> 1)
