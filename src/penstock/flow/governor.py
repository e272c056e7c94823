"""How hard to push: load becomes one pressure, and pressure a rung of a published ladder.

Each rung adds to the lower ones. Pressure changes when work happens, never whether:

>>> rung = climb(0.7, STEADY)
>>> rung.level.name, rung.coalesce_ms, rung.commit_window_ms
('WIDEN', 12.5, 5.25)
>>> rung = STEADY
>>> for _ in range(3):
...     rung = climb(0.9, rung)
>>> rung.deferring, climb(0.7, rung).deferring, climb(0.59, rung).deferring
(True, True, False)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

SAMPLE_MS: Final = 100
COALESCE_ABOVE: Final = 0.2
COALESCE_MS_MAX: Final = 20.0
WIDEN_ABOVE: Final = 0.4
COMMIT_WINDOW_MS_MIN: Final = 0.5
COMMIT_WINDOW_MS_MAX: Final = 10.0
DEFER_ABOVE: Final = 0.8
DEFER_SAMPLES: Final = 3
RELEASE_BELOW: Final = 0.6
LATENCY_CEILING_MS: Final = 5.0
LATENCY_EWMA: Final = 0.3
PUSH_SHARE_MIN: Final = 0.25
PUSH_SHARE_MAX: Final = 0.75
PUSH_EWMA: Final = 0.3
PUSH_WITHIN_MS: Final = 50.0
"""How soon waiting topics should be served; this sets the share of the loop that they need."""


class Level(IntEnum):
    """The highest rung in force."""

    STEADY = 0
    COALESCE = 1
    WIDEN = 2
    DEFER = 3
    REFUSE = 4


class Rung(NamedTuple):
    """What to do at a pressure. `hot_samples` counts the samples above the deferral mark."""

    level: Level
    pressure: float
    coalesce_ms: float
    commit_window_ms: float
    deferring: bool
    refusing: bool
    hot_samples: int
    drain_ms: float = 0.0
    """How long the queue for the log would take to be written."""

    @property
    def retry_after_ms(self) -> int | None:
        """The delay that a refused writer is given; None while nothing is refused."""
        return math.ceil(self.drain_ms) if self.refusing else None


STEADY: Final = Rung(Level.STEADY, 0.0, 0.0, COMMIT_WINDOW_MS_MIN, False, False, 0)


def climb(
    pressure: float, previous: Rung, *, drain_ms: float = 0.0, drain_ms_max: float = math.inf
) -> Rung:
    """The next rung for a pressure. All hysteresis is here."""
    hot_samples = previous.hot_samples + 1 if pressure > DEFER_ABOVE else 0
    deferring = hot_samples >= DEFER_SAMPLES or (previous.deferring and pressure >= RELEASE_BELOW)
    refusing = drain_ms > drain_ms_max
    return Rung(
        _level(pressure, deferring=deferring, refusing=refusing),
        pressure,
        _between(pressure, COALESCE_ABOVE, 0.0, COALESCE_MS_MAX),
        _between(pressure, WIDEN_ABOVE, COMMIT_WINDOW_MS_MIN, COMMIT_WINDOW_MS_MAX),
        deferring,
        refusing,
        hot_samples,
        drain_ms,
    )


def hold_ms(window_ms: float, *, queued: int, since_last_ms: float) -> float:
    """How long a group may still be held open to collect more before it is written.

    A lone item is never held, and no group longer than the window since the last group began. The
    smallest window holds nothing: items that arrive during a sync form the next group, and waiting
    for more after that would leave the disk idle.
    """
    if queued <= 1 or window_ms <= COMMIT_WINDOW_MS_MIN:
        return 0.0
    return max(0.0, window_ms - since_last_ms)


class Load(NamedTuple):
    """One sample of the machine: queue lengths, waiting times, pool utilisation."""

    ready: int
    workers: int
    latency_ms: float
    pool_busy: float
    drain_ms: float = 0.0
    drain_ms_max: float = math.inf


@dataclass(frozen=True, slots=True)
class Weights:
    """How much each signal counts. One signal alone cannot pass the deferral mark."""

    depth: float = 0.4
    latency: float = 0.4
    pool: float = 0.2

    def __post_init__(self) -> None:
        total = self.depth + self.latency + self.pool
        if min(self.depth, self.latency, self.pool) < 0 or abs(total - 1) > 1e-9:
            raise ValueError(f"the three shares must add up to 1: {self}")


class Governor:
    """Samples load every 100 ms. Any thread may read `pressure` and `rung` without a lock."""

    def __init__(self, weights: Weights | None = None) -> None:
        self._weights = weights or Weights()
        self._latency_ms = 0.0
        self.push_need = 0.0
        self.rung = STEADY

    @property
    def pressure(self) -> float:
        """The pressure of the last sample, 0 to 1."""
        return self.rung.pressure

    @property
    def push_share(self) -> float:
        """The share of its time a loop spends pushing while topics wait, whatever else is ready.

        Enough to serve the waiting topics soon enough, within two bounds: writes must not be
        accepted much faster than they can be delivered, and pushing must not starve writes.
        """
        return min(max(self.push_need, PUSH_SHARE_MIN), PUSH_SHARE_MAX)

    def share_push(self, backlog_ms: float) -> None:
        """Record how long serving every waiting topic would take; called with each sample."""
        self.push_need += PUSH_EWMA * (backlog_ms / PUSH_WITHIN_MS - self.push_need)

    def sample(self, load: Load) -> Rung:
        """Take one sample and move to the rung it calls for."""
        self._latency_ms += LATENCY_EWMA * (load.latency_ms - self._latency_ms)
        pressure = (
            self._weights.depth * _clip(load.ready / max(1, load.workers))
            + self._weights.latency * _clip(self._latency_ms / LATENCY_CEILING_MS)
            + self._weights.pool * _clip(load.pool_busy)
        )
        self.rung = climb(
            pressure, self.rung, drain_ms=load.drain_ms, drain_ms_max=load.drain_ms_max
        )
        return self.rung


def _level(pressure: float, *, deferring: bool, refusing: bool) -> Level:
    if refusing:
        return Level.REFUSE
    if deferring:
        return Level.DEFER
    if pressure > WIDEN_ABOVE:
        return Level.WIDEN
    return Level.COALESCE if pressure > COALESCE_ABOVE else Level.STEADY


def _between(pressure: float, above: float, low: float, high: float) -> float:
    """`low` up to the mark, then in a straight line to `high` at pressure 1."""
    share = _clip((pressure - above) / (1.0 - above))
    return round(low + share * (high - low), 9)


def _clip(value: float) -> float:
    return 0.0 if value < 0.0 else 1.0 if value > 1.0 else value
