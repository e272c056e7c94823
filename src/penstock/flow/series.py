"""Numbers over time in a fixed amount of memory: recent rows by the second, older by the minute.

Two rings of rows, one number for each column. A row of the second ring is a minute: the least, the
mean and the greatest of each column. Nothing to measure is NaN inside and None outside.

>>> series = SeriesRings(1, seconds=4, minutes=2)
>>> for second in range(1, 62):
...     series.add(second * 1_000, [float(second)])
>>> series.seconds([0], since_ms=59_000)
([60000, 61000], [[60.0, 61.0]])
>>> series.minutes([0])
([60000], [([1.0], [30.5], [60.0])])
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from math import inf, nan
from typing import Any, Final

MINUTE_MS: Final = 60_000
Values = list[float | None]
Spread = tuple[Values, Values, Values]
"""A column by the minute: least, mean, greatest."""


class _Ring:
    """The last rows, each with its time; a row is one slice of an array."""

    def __init__(self, rows: int, width: int) -> None:
        self._rows, self._width = rows, width
        self._times = array("q", bytes(8 * rows))
        self._values = array("d", bytes(8 * rows * width))
        self._next = 0  # the row to write
        self._count = 0

    @property
    def size_bytes(self) -> int:
        """The memory of all rows, used or not."""
        return 8 * self._rows * (self._width + 1)

    def add(self, at_ms: int, row: array[float]) -> None:
        start = self._next * self._width
        self._times[self._next] = at_ms
        self._values[start : start + self._width] = row
        self._next = (self._next + 1) % self._rows
        self._count = min(self._count + 1, self._rows)

    def times(self, since_ms: int) -> list[int]:
        """The times of the rows after a time, oldest first."""
        times = self._ordered(self._times).tolist()
        return times[bisect_right(times, since_ms) :]

    def column(self, column: int, count: int) -> Values:
        """The numbers of a column in the last rows, oldest first."""
        if not count:
            return []
        found = self._ordered(self._values[column :: self._width])[-count:].tolist()
        return [value if value == value else None for value in found]  # only NaN is not itself

    def _ordered(self, ring: array[Any]) -> array[Any]:
        if self._count < self._rows:
            return ring[: self._count]
        return ring[self._next :] + ring[: self._next]


class SeriesRings:
    """Columns of numbers, kept by the second and by the minute."""

    def __init__(self, width: int, *, seconds: int, minutes: int) -> None:
        self._width = width
        self._recent = _Ring(seconds, width)
        self._older = _Ring(minutes, 3 * width)
        self._minute: int | None = None  # the one that is being counted
        self._begin(None)

    @property
    def size_bytes(self) -> int:
        """The memory that it takes, however long it runs."""
        return self._recent.size_bytes + self._older.size_bytes

    def add(self, at_ms: int, row: Sequence[float]) -> None:
        """Add a row, later than every row before it; NaN where there was nothing to measure.

        A row belongs to the minute in which its second began.
        """
        self._recent.add(at_ms, array("d", row))
        minute = (at_ms - 1) // MINUTE_MS
        if minute != self._minute:
            if self._minute is not None:
                self._older.add((self._minute + 1) * MINUTE_MS, self._spread())
            self._begin(minute)
        least, total, greatest, counts = self._least, self._total, self._greatest, self._counts
        for column, value in enumerate(row):
            if value == value:  # not NaN; a call would double the cost
                total[column] += value
                counts[column] += 1
                if value < least[column]:
                    least[column] = value
                if value > greatest[column]:
                    greatest[column] = value

    def seconds(self, columns: Sequence[int], since_ms: int = 0) -> tuple[list[int], list[Values]]:
        """The times after one, oldest first, and the values of columns at these times."""
        times = self._recent.times(since_ms)
        return times, [self._recent.column(column, len(times)) for column in columns]

    def minutes(self, columns: Sequence[int], since_ms: int = 0) -> tuple[list[int], list[Spread]]:
        """The ends of complete minutes after a time, and the spread of columns in each."""
        ring, width = self._older, self._width
        times = ring.times(since_ms)
        found = [
            (
                ring.column(column, len(times)),
                ring.column(width + column, len(times)),
                ring.column(2 * width + column, len(times)),
            )
            for column in columns
        ]
        return times, found

    def _begin(self, minute: int | None) -> None:
        self._minute = minute
        self._least = [inf] * self._width
        self._greatest = [-inf] * self._width
        self._total = [0.0] * self._width
        self._counts = [0] * self._width

    def _spread(self) -> array[float]:
        """The minute so far, as a row of the second ring."""
        row = array("d", [nan]) * (3 * self._width)
        for column, count in enumerate(self._counts):
            if count:
                row[column] = self._least[column]
                row[self._width + column] = self._total[column] / count
                row[2 * self._width + column] = self._greatest[column]
        return row
