"""Samples the server once a second into a fixed amount of memory, from counters alone.

Its cost depends neither on how many topics there are nor on how many watchers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from math import nan
from typing import Final

from penstock.flow.latency_window import LatencyWindow
from penstock.flow.series import SeriesRings
from penstock.protocol.history import MINUTES_KEPT, PLACES, SECONDS_KEPT, SERIES, STEPS, History
from penstock.topics.engine.engine import Engine

SECOND_MS: Final = 1_000
_SPAN_MS_MIN: Final = 200
"""The least time between two samples: after a late one, the next full second may be too near."""
_SHARES: Final = (0.5, 0.99)
_NOTHING: Final = (nan, nan)


class Sampler:
    """The server's numbers of the last 15 minutes and 24 hours."""

    def __init__(self, engine: Engine, streams: Callable[[], int]) -> None:
        """`streams` tells how many push streams are open."""
        self._engine = engine
        self._clock = clock = engine.clock
        self._streams = streams
        self._rings = SeriesRings(len(SERIES), seconds=SECONDS_KEPT, minutes=MINUTES_KEPT)
        self._counted = self._counters()
        self._sampled_ns = clock.monotonic_ns()
        self._last_ms = 0
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.on_sample: list[Callable[[int], None]] = []
        """Called after each sample with its time."""

    @property
    def size_bytes(self) -> int:
        """The memory that history takes."""
        return self._rings.size_bytes

    def start(self) -> None:
        """Sample at every full second from now on."""
        self._counted = self._counters()
        self._sampled_ns = self._clock.monotonic_ns()
        self._schedule()

    def stop(self) -> None:
        """Sample no more; what there is stays."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def sample(self, lag_ms: float) -> None:
        """Add a row for the time since the last one."""
        now_ns = self._clock.monotonic_ns()
        # Two rows never have the same time, even if the clock is set back.
        at_ms = self._last_ms = max(self._clock.now_ms(), self._last_ms + 1)
        span_s = max((now_ns - self._sampled_ns) / 1e9, 1e-3)
        before, self._counted, self._sampled_ns = self._counted, self._counters(), now_ns
        rates = [
            round((now - then) / span_s, 2) for now, then in zip(self._counted, before, strict=True)
        ]
        self._rings.add(at_ms, self._row(rates, lag_ms))
        for tell in self.on_sample:
            tell(at_ms)

    def history(self, names: list[str], step: str, since_ms: int) -> History:
        """Series after a time, oldest first."""
        return history_of(self._rings, names, [PLACES[name] for name in names], step, since_ms)

    def _counters(self) -> tuple[int, int, int, int, int]:
        """What only ever grows: in, in_bytes, pushed, commits, refused."""
        engine = self._engine
        totals = engine.registry.totals
        return (
            totals.in_records,
            totals.in_bytes,
            engine.watchers.pushed,
            engine.journal.counters.frames,
            engine.admission.refused,
        )

    def _row(self, rates: list[float], lag_ms: float) -> list[float]:
        """A number for every series, in their order."""
        engine = self._engine
        counters, rung, bands = engine.journal.counters, engine.turns.rung, engine.turns.bands()
        now_ms = self._clock.monotonic_ms()
        return [
            *rates[:4],
            *_quantiles_ms(counters.commit_ns),
            *_quantiles_ms(engine.turns.recent),
            *_quantiles_ms(counters.fsync_ns),
            round(rung.pressure, 4),
            float(rung.level),
            rung.coalesce_ms,
            rung.commit_window_ms,
            *[float(band.depth) for band in bands],
            *[
                nan if band.oldest_ms is None else float(max(0, now_ms - band.oldest_ms))
                for band in bands
            ],
            float(engine.journal.queue_depth),
            float(engine.waiting_bytes),
            float(self._streams()),
            float(engine.watchers.slow),
            rates[4],
            round(lag_ms, 3),
        ]

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        delay_ms = SECOND_MS - self._clock.now_ms() % SECOND_MS
        if delay_ms < _SPAN_MS_MIN:
            delay_ms += SECOND_MS
        self._due_s = loop.time() + delay_ms / 1e3
        self._timer = loop.call_at(self._due_s, self._tick)

    def _tick(self) -> None:
        lag_ms = max(0.0, asyncio.get_running_loop().time() - self._due_s) * 1e3
        self._schedule()
        self.sample(lag_ms)


def history_of(
    rings: SeriesRings, names: Sequence[str], places: Sequence[int], step: str, since_ms: int
) -> History:
    """Columns after a time by their names, oldest first; by the minute with least and greatest."""
    columns: dict[str, list[float | None]] = {}
    if step == STEPS[0]:
        times, found = rings.seconds(places, since_ms)
        columns.update(zip(names, found, strict=True))
    else:
        times, spreads = rings.minutes(places, since_ms)
        for name, (least, mean, greatest) in zip(names, spreads, strict=True):
            columns[name] = [None if each is None else round(each, 3) for each in mean]
            columns[f"{name}_min"], columns[f"{name}_max"] = least, greatest
    return History(step, times, columns)


def _quantiles_ms(window: LatencyWindow) -> tuple[float, float]:
    """The median and the 99th percentile of the second, in ms; NaN if nothing happened."""
    found = window.take(_SHARES)
    return _NOTHING if found is None else (round(found[0] / 1e6, 3), round(found[1] / 1e6, 3))
