"""Whether a larger window lets more through: the gradient of throughput over the last windows.

A window that senders wait for grows by a step each second. After a stretch of seconds its
throughput is compared with that of the stretch before. If it grew by less than a share of what the
window grew by, the window is not the limit any more: it returns to where the stretch began, rests,
and is tried again after a while, as stages change.

>>> probe, rates = Probe(), [1_000.0] * 12
>>> for second, rate in enumerate(rates):
...     probe, verdict = probe.limited(4_096 + 64 * second, rate)
>>> verdict, probe.base
(Adjustment(kind='back', window=4480, reason='1,000/s at 4,256 and 1,000/s at 4,640'), 4480)
"""

from __future__ import annotations

from math import sqrt
from typing import Final, Literal, NamedTuple

STRETCH_S: Final = 6
"""A stretch: long enough that steps of 64 show in the rate of a window of thousands.

Two of them, which a first search takes, grow the initial window by less than a fifth.
"""
REST_S: Final = 30
GRADIENT_MIN: Final = 0.25
"""A window that grows by 1 % must let at least 0.25 % more through to be worth its memory."""

Kind = Literal["grow", "rest", "back"]


class Adjustment(NamedTuple):
    """What to do with a window that senders wait for, the window to set, and what was seen."""

    kind: Kind
    window: int
    reason: str


class Stretch(NamedTuple):
    """Some seconds at windows that differ little: mean window, mean rate, standard error."""

    window: float
    rate_per_s: float
    error_per_s: float


class Probe(NamedTuple):
    """The search for the window beyond which throughput does not grow. A new one grows.

    `base` is the window at which the present stretch began. Seconds in which the window was not the
    limit say nothing about it and are left out.
    """

    base: int = 0
    seen: tuple[tuple[int, float], ...] = ()  # window and rate by second
    before: Stretch | None = None
    rested_s: int | None = None  # None while the window grows
    reason: str = ""

    def limited(self, window: int, pace_per_s: float | None) -> tuple[Probe, Adjustment]:
        """A second in which senders waited. None: nothing was finished, so no rate is known."""
        probe = self if self.seen else self._replace(base=window)
        if pace_per_s is not None:
            probe = probe._replace(seen=(*probe.seen[1 - STRETCH_S :], (window, pace_per_s)))
        if probe.rested_s is not None:
            return probe._rest(window)
        if len(probe.seen) < STRETCH_S:
            return probe, Adjustment("grow", window, probe.reason)
        return probe._judge(window)

    def unlimited(self) -> Probe:
        """A second in which nothing waited for the window."""
        return self if self.rested_s is None else self._replace(rested_s=self.rested_s + 1)

    def _rest(self, window: int) -> tuple[Probe, Adjustment]:
        rested_s = (self.rested_s or 0) + 1
        if rested_s < REST_S or len(self.seen) < STRETCH_S:
            return self._replace(rested_s=rested_s), Adjustment("rest", window, self.reason)
        return Probe(window, before=_stretch(self.seen)), Adjustment("grow", window, "")

    def _judge(self, window: int) -> tuple[Probe, Adjustment]:
        now, before = _stretch(self.seen), self.before
        if before is None:
            return Probe(window, before=now), Adjustment("grow", window, "")
        seen = (
            f"{before.rate_per_s:,.0f}/s at {before.window:,.0f} and "
            f"{now.rate_per_s:,.0f}/s at {now.window:,.0f}"
        )
        if _is_worth_it(before, now):
            return Probe(window, before=now, reason=seen), Adjustment("grow", window, seen)
        base = min(self.base, window)
        return Probe(base, rested_s=0, reason=seen), Adjustment("back", base, seen)


def _is_worth_it(before: Stretch, now: Stretch) -> bool:
    """Whether the rate grew by its share, and by more than its own unrest explains."""
    if before.rate_per_s <= 0:
        return now.rate_per_s > 0
    window_gain = now.window / before.window - 1
    rate_gain = now.rate_per_s / before.rate_per_s - 1
    unrest = sqrt(before.error_per_s**2 + now.error_per_s**2) / before.rate_per_s
    return rate_gain > GRADIENT_MIN * window_gain + unrest


def _stretch(seen: tuple[tuple[int, float], ...]) -> Stretch:
    count = len(seen)
    rate_per_s = sum(rate for _, rate in seen) / count
    variance = sum((rate - rate_per_s) ** 2 for _, rate in seen) / (count - 1)
    return Stretch(sum(window for window, _ in seen) / count, rate_per_s, sqrt(variance / count))
