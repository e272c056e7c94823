"""How urgent a key is now: manual priority or recency of use, plus waiting time.

The recency term halves every 30 s since the key was last consumed and is 0 after 300 s:

>>> [recency(seconds * 1_000) for seconds in (0, 15, 30, 60, 120, 300)]
[500, 354, 250, 125, 31, 0]
>>> effective_priority(Urgency(priority=-2_000), now_ms=0, waited_ms=0)
-1000
>>> effective_priority(Urgency(last_consumed_ms=0), now_ms=30_000, waited_ms=1_500)
400
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Final, NamedTuple

PRIORITY_MAX: Final = 1_000
RECENCY_MAX: Final = 500
RECENCY_HALF_LIFE_MS: Final = 30_000
RECENCY_FLOOR_MS: Final = 300_000
AGEING_PER_SECOND: Final = 100
AGEING_MS_MAX: Final = 10_000
TICK_MS: Final = 50

# 2^-x as a table, one entry per ageing tick, to avoid a float power on the hot path.
_RECENCY: Final = tuple(
    round(RECENCY_MAX * 2.0 ** (-step * TICK_MS / RECENCY_HALF_LIFE_MS))
    for step in range(RECENCY_FLOOR_MS // TICK_MS)
)


class Urgency(NamedTuple):
    """What a key's owner knows about it: a manual priority, or when it was last consumed.

    `lowered` moves it one band down (routers under pressure), but never into the negative bands and
    never past the ageing limit.
    """

    priority: int | None = None
    auto_priority: bool = True
    last_consumed_ms: int | None = None
    lowered: bool = False


@dataclass(frozen=True, slots=True)
class Bands:
    """Effective priority split into bands; `floors[i]` is where band i + 1 begins."""

    floors: tuple[int, ...]
    weights: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.weights) != len(self.floors) + 1 or sorted(set(self.floors)) != [*self.floors]:
            raise ValueError(
                "expected rising floors and one weight more than floors, "
                f"found floors {self.floors} and weights {self.weights}"
            )

    @property
    def top(self) -> int:
        """The number of the highest band."""
        return len(self.floors)

    def of(self, priority: int, waited_ms: int, *, lowered: bool = False) -> int:
        """The band of an effective priority.

        A key that has waited the full ageing time is in the top band whatever its priority: ageing
        alone lifts a priority of -1000 only to 0, and no key may wait longer than that.
        """
        if waited_ms > AGEING_MS_MAX - TICK_MS:
            return len(self.floors)
        band = bisect_right(self.floors, priority)
        return band - 1 if lowered and band > 1 else band

    def next_floor(self, band: int, *, lowered: bool = False) -> int:
        """The effective priority that lifts a key out of a band below the top."""
        above = self.floors[band + 1 if lowered and band else band :]
        return above[0] if above else self.floors[-1] + PRIORITY_MAX


TOPIC_BANDS: Final = Bands(floors=(0, 250, 500, 750), weights=(1, 1, 2, 4, 8))


def recency(idle_ms: int) -> int:
    """500 for a key consumed just now, halved every 30 s, 0 from 300 s on."""
    if idle_ms >= RECENCY_FLOOR_MS:
        return 0
    return _RECENCY[idle_ms // TICK_MS] if idle_ms > 0 else RECENCY_MAX


def base_priority(urgency: Urgency, now_ms: int) -> int:
    """The part that is independent of waiting: manual if set, else recency, else 0."""
    priority, auto, consumed_ms, _ = urgency
    if priority is not None:
        return max(-PRIORITY_MAX, min(PRIORITY_MAX, priority))
    if not auto or consumed_ms is None:
        return 0
    return recency(now_ms - consumed_ms)


def ageing(waited_ms: int) -> int:
    """100 per second waited, at most 1000."""
    return min(AGEING_MS_MAX, waited_ms) * AGEING_PER_SECOND // 1_000


def effective_priority(urgency: Urgency, *, now_ms: int, waited_ms: int) -> int:
    """Manual priority or recency, plus ageing."""
    return base_priority(urgency, now_ms) + ageing(waited_ms)


def ms_until(target: int, priority: int) -> int:
    """How long ageing takes to lift an effective priority to a target; 0 if already there."""
    return max(0, -((priority - target) * 1_000 // AGEING_PER_SECOND))
