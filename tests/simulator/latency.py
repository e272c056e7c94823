"""How long one item takes: distributions to draw from, and a table of draws that is fast to walk.

>>> work = Table(Uniform(1.0, 3.0), random.Random(7), size=4_096)
>>> work.count_within(1_000.0) in range(480, 521)       # about 500 items of 2 ms on average
True
"""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from math import exp
from typing import Final, Protocol

TABLE_SIZE: Final = 4_096
_LEAST_MS: Final = 0.000_1
_NS_PER_MS: Final = 1_000_000


class Latency(Protocol):
    """A distribution of processing times."""

    @property
    def mean_ms(self) -> float:
        """The mean, from which a stage's capacity follows."""
        ...

    def draw_ms(self, chance: random.Random) -> float:
        """One processing time."""
        ...


@dataclass(frozen=True, slots=True)
class Exponential:
    """Many short ones, few long ones: requests to something that queues."""

    mean_ms: float

    def draw_ms(self, chance: random.Random) -> float:
        return chance.expovariate(1 / self.mean_ms)


@dataclass(frozen=True, slots=True)
class Lognormal:
    """A long tail: `sigma` 1 puts the p99 at ten times the median."""

    median_ms: float
    sigma: float

    @property
    def mean_ms(self) -> float:
        return self.median_ms * exp(self.sigma**2 / 2)

    def draw_ms(self, chance: random.Random) -> float:
        return self.median_ms * exp(chance.gauss(0.0, self.sigma))


@dataclass(frozen=True, slots=True)
class Bimodal:
    """Mostly fast, now and then slow: a cache with misses."""

    fast_ms: float
    slow_ms: float
    slow_share: float

    @property
    def mean_ms(self) -> float:
        return self.fast_ms + self.slow_share * (self.slow_ms - self.fast_ms)

    def draw_ms(self, chance: random.Random) -> float:
        middle_ms = self.slow_ms if chance.random() < self.slow_share else self.fast_ms
        return middle_ms * chance.uniform(0.8, 1.2)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Anything between two times."""

    low_ms: float
    high_ms: float

    @property
    def mean_ms(self) -> float:
        return (self.low_ms + self.high_ms) / 2

    def draw_ms(self, chance: random.Random) -> float:
        return chance.uniform(self.low_ms, self.high_ms)


class Table:
    """Draws of one distribution, walked from a random place each round.

    Running sums make "how many items fit into this much time" one binary search, whatever the
    number of items; that is what keeps a simulated minute well below a second.
    """

    def __init__(self, latency: Latency, chance: random.Random, *, size: int = TABLE_SIZE) -> None:
        self._chance = chance
        self._size = size
        draws = [max(_LEAST_MS, latency.draw_ms(chance)) for _ in range(size)]
        self._draws_ns = [int(draw_ms * _NS_PER_MS) for draw_ms in draws] * 2
        self._sums = [0.0, *accumulate(draws * 2)]
        self._at = chance.randrange(size)

    def count_within(self, budget_ms: float) -> int:
        """How many of the next items fit into an amount of work; a table's length at most."""
        found = bisect_right(self._sums, self._sums[self._at] + budget_ms) - 1 - self._at
        return min(found, self._size)

    def work_ms(self, count: int) -> float:
        """How much work the next items are together."""
        return self._sums[self._at + count] - self._sums[self._at]

    def latencies_ns(self, count: int) -> list[int]:
        """The times of the next items."""
        return self._draws_ns[self._at : self._at + count]

    def advance(self, count: int) -> None:
        """Walk past items. At the end of the table go on from a random place."""
        self._at += count
        if self._at >= self._size:
            self._at = self._chance.randrange(self._size)
