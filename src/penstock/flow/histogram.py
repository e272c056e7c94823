"""A latency histogram that costs two list increments per event.

Buckets are log-linear: exact below 128, then 64 for each doubling, so a quantile is off by at most
1.6 %. Any whole unit will do; the rest of Penstock records nanoseconds. One measurement may count
for many items: quantiles are those of the items, evidence is counted in measurements.

>>> latency = LatencyHistogram()
>>> for value in range(1, 1_001):
...     latency.record(value)
>>> latency.count, latency.quantiles((0.5, 0.99))
(1000, [502, 988])
>>> latency.quantile_least(0.99)
980
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from math import ceil, sqrt
from typing import Final

_SUB_BITS: Final = 6
_EXACT: Final = 1 << (_SUB_BITS + 1)
_SHIFT_MAX: Final = 36  # the last bucket begins near 2**42: over an hour in nanoseconds
_SIZE: Final = (_SHIFT_MAX << _SUB_BITS) + _EXACT
_CHANCE: Final = 0.00135
"""How often chance alone may look like evidence: three standard deviations, on one side."""
_EXACT_MAX: Final = 10_000
"""Up to so many measurements the chance is computed exactly, beyond them as a normal deviation."""


class LatencyHistogram:
    """Counts of values in log-linear buckets. Values past the last bucket are counted in it."""

    __slots__ = ("_counts", "_measured")

    def __init__(self) -> None:
        self._counts: list[int] = [0] * _SIZE
        self._measured: list[int] = [0] * _SIZE

    def record(self, value: int, count: int = 1) -> None:
        """Count one measurement, for one item or several. Negative values count as zero."""
        shift = value.bit_length() - 7
        if value < 128:
            slot = value if value > 0 else 0
        elif shift <= 36:
            slot = (shift << 6) + (value >> shift)
        else:
            slot = _SIZE - 1
        self._counts[slot] += count
        self._measured[slot] += 1

    @property
    def count(self) -> int:
        """How many items were counted."""
        return sum(self._counts)

    @property
    def measurements(self) -> int:
        """How many values were recorded, each for one item or several."""
        return sum(self._measured)

    def quantiles(self, shares: Iterable[float]) -> list[int]:
        """The values that these shares of all values do not exceed, in one pass; 0 if empty.

        Each is the middle of its bucket.
        """
        upto = list(accumulate(self._counts))
        total = upto[-1]
        ranks = [max(1, -int(-share * total // 1)) for share in shares]
        return [middle_of(bisect_left(upto, rank)) if total else 0 for rank in ranks]

    def quantile_least(self, share: float) -> int:
        """A value that the quantile reaches almost surely; 0 where there is too little evidence.

        With one slow item in a hundred, 1,000 measurements have 7 slow ones at one time and 13 at
        another, and 8 measurements one of them now and then: a quantile jumps although nothing has
        changed. So many large values must be there that chance does not explain them.
        """
        upto = list(accumulate(self._measured))
        rank = upto[-1] + 1 - evidence_needed(upto[-1], 1 - share)
        return middle_of(bisect_left(upto, rank)) if rank > 0 else 0

    def cumulative(self, bounds: Iterable[int]) -> tuple[list[int], int, int]:
        """How many values are at or below each bound, the total count, and the sum.

        A bucket is represented by its middle, for the bounds and for the sum.
        """
        found = [(middle_of(slot), count) for slot, count in enumerate(self._counts) if count]
        upto = [sum(count for value, count in found if value <= bound) for bound in bounds]
        total = sum(count for _, count in found)
        return upto, total, sum(value * count for value, count in found)

    def add(self, other: LatencyHistogram) -> None:
        """Add the counts of another histogram."""
        self._counts = _sums(self._counts, other._counts)
        self._measured = _sums(self._measured, other._measured)

    def clear(self) -> None:
        """Reset all counts."""
        self._counts = [0] * _SIZE
        self._measured = [0] * _SIZE


def evidence_needed(measured: int, share: float) -> int:
    """How many of the measured values must be large before more than `share` of all surely are.

    >>> [evidence_needed(measured, 0.01) for measured in (1, 8, 100, 1_000)]
    [2, 3, 6, 22]
    """
    if measured > _EXACT_MAX:
        return ceil(measured * share + 3 * sqrt(measured * share * (1 - share)))
    chance = (1 - share) ** measured  # of exactly so many, and beginning with none
    remaining = 1.0
    for count in range(measured + 1):
        remaining -= chance
        if remaining < _CHANCE:
            return count + 1
        chance *= (measured - count) / (count + 1) * share / (1 - share)
    return measured + 1


def _sums(mine: list[int], theirs: list[int]) -> list[int]:
    return [one + other for one, other in zip(mine, theirs, strict=True)]


def middle_of(slot: int, sub_bits: int = _SUB_BITS) -> int:
    """The middle of a log-linear bucket, with 2^`sub_bits` buckets for each doubling.

    >>> [middle_of(slot, sub_bits=3) for slot in (0, 15, 16, 17, 24)]
    [0, 15, 17, 19, 34]
    """
    if slot < 1 << (sub_bits + 1):
        return slot
    shift = (slot >> sub_bits) - 1
    low = (slot - (shift << sub_bits)) << shift
    return low + ((1 << shift) >> 1)
