"""How much is offered when: shapes of load over time, and whole items out of rates.

>>> wave = Square(low_per_s=100, high_per_s=900, period_ms=10_000)
>>> wave.rate_per_s(0), wave.rate_per_s(5_000)
(900, 100)
>>> arrivals = Arrivals(Steady(250))
>>> [arrivals.take(at_ms, span_ms=10) for at_ms in (0, 10, 20, 30)]
[2, 3, 2, 3]
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi
from random import Random as Chance
from typing import Final, Protocol

from penstock.kernel.errors import Rejected


class Shape(Protocol):
    """A rate that depends on time and nothing else."""

    def rate_per_s(self, at_ms: int) -> float:
        """How many items a second are offered at a time."""
        ...


@dataclass(frozen=True, slots=True)
class Steady:
    """The same all the time."""

    per_s: float

    def rate_per_s(self, at_ms: int) -> float:
        return self.per_s


@dataclass(frozen=True, slots=True)
class Square:
    """High for half a period, then low for half a period."""

    low_per_s: float
    high_per_s: float
    period_ms: int

    def rate_per_s(self, at_ms: int) -> float:
        return self.high_per_s if at_ms % self.period_ms * 2 < self.period_ms else self.low_per_s


@dataclass(frozen=True, slots=True)
class Sawtooth:
    """A straight climb from low to high, then back to low at once."""

    low_per_s: float
    high_per_s: float
    period_ms: int

    def rate_per_s(self, at_ms: int) -> float:
        share = at_ms % self.period_ms / self.period_ms
        return self.low_per_s + share * (self.high_per_s - self.low_per_s)


@dataclass(frozen=True, slots=True)
class Ramp:
    """One straight climb from low to high, as straight back within the period, then low."""

    low_per_s: float
    high_per_s: float
    period_ms: int

    def rate_per_s(self, at_ms: int) -> float:
        share = max(0.0, 1 - abs(2 * at_ms / self.period_ms - 1))
        return self.low_per_s + share * (self.high_per_s - self.low_per_s)


@dataclass(frozen=True, slots=True)
class Day:
    """A day in one period: low at night, a peak in the morning and a higher one in the evening."""

    low_per_s: float
    high_per_s: float
    period_ms: int

    def rate_per_s(self, at_ms: int) -> float:
        hour = at_ms % self.period_ms / self.period_ms * 24
        peak = max(0.8 * _hump(hour, 8, 6), _hump(hour, 19, 8))
        return self.low_per_s + peak * (self.high_per_s - self.low_per_s)


class Random:
    """A new rate between low and high, drawn for every stretch of `hold_ms`."""

    def __init__(self, low_per_s: float, high_per_s: float, hold_ms: int, seed: int) -> None:
        self._low_per_s = low_per_s
        self._high_per_s = high_per_s
        self._hold_ms = hold_ms
        self._seed = seed
        self._stretch = -1
        self._per_s = low_per_s

    def rate_per_s(self, at_ms: int) -> float:
        """The rate of the stretch; asking for an earlier time gives the same answer again."""
        stretch = at_ms // self._hold_ms
        if stretch != self._stretch:
            self._stretch = stretch
            chance = Chance(f"{self._seed}:load:{stretch}")
            self._per_s = chance.uniform(self._low_per_s, self._high_per_s)
        return self._per_s

    def __repr__(self) -> str:
        return (
            f"Random({self._low_per_s}, {self._high_per_s}, "
            f"hold_ms={self._hold_ms}, seed={self._seed})"
        )


SHAPES: Final = ("square", "sawtooth", "random", "ramp", "steady", "day")


def named_shape(
    name: str, *, low_per_s: float, high_per_s: float, period_ms: int, seed: int
) -> Shape:
    """A shape by its name; a steady one is at the middle of low and high."""
    match name:
        case "square":
            return Square(low_per_s, high_per_s, period_ms)
        case "sawtooth":
            return Sawtooth(low_per_s, high_per_s, period_ms)
        case "random":
            return Random(low_per_s, high_per_s, max(1, period_ms // 8), seed)
        case "ramp":
            return Ramp(low_per_s, high_per_s, period_ms)
        case "steady":
            return Steady((low_per_s + high_per_s) / 2)
        case "day":
            return Day(low_per_s, high_per_s, period_ms)
    raise Rejected(f"{name!r} is not a shape: use one of {', '.join(SHAPES)}")


class Arrivals:
    """Whole items out of a rate: fractions are carried, so that none is lost to rounding.

    `factor` multiplies the load from now on; it is what a script turns.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.factor = 1.0
        self._carry = 0.0

    def per_s(self, at_ms: int) -> float:
        """The rate offered at a time."""
        return self.factor * self.shape.rate_per_s(at_ms)

    def take(self, at_ms: int, span_ms: int) -> int:
        """How many arrive in the span that begins at a time."""
        due = self._carry + self.per_s(at_ms) * span_ms / 1_000
        count = int(due)
        self._carry = due - count
        return count


def _hump(hour: float, middle: float, width: float) -> float:
    """A smooth rise from 0 to 1 and back around an hour of the day."""
    distance = abs(hour - middle)
    return 0.0 if distance > width / 2 else (1 + cos(2 * pi * distance / width)) / 2
