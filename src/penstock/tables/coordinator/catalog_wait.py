"""Waiting for a catalog that is away or locked; reported once when it begins and ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TypeVar

from penstock.kernel.clock import Clock
from penstock.kernel.units import format_ms
from penstock.lake.errors import CatalogAway, CatalogLocked

T = TypeVar("T")
LOOP: Final = "loop"
_PAUSE_S: Final = (0.1, 1.0)
"""Delay before the next attempt: first and maximum."""


class CatalogWait:
    """Tracks which parts of a coordinator are waiting for the catalog. Thread-safe."""

    def __init__(self, say: Callable[[str], None], clock: Clock, stop: threading.Event) -> None:
        self._say, self._clock, self._stop = say, clock, stop
        self._lock = threading.Lock()
        self._waiting: set[str] = set()
        self._since_ms: int | None = None
        self._pause_s = _PAUSE_S[0]
        self.trouble: str | None = None
        """Why the catalog is unusable, or None."""

    def unlocked(self, attempt: Callable[[], T]) -> T:
        """Retry while other writers hold the catalog; a failed attempt changed nothing."""
        waited = False
        while True:
            try:
                found = attempt()
            except CatalogLocked as error:
                if self._stop.is_set():
                    raise
                waited = True
                self.away(error)
                self.pause()
            else:
                if waited:
                    self.back()
                return found

    def away(self, error: CatalogAway, who: str = LOOP) -> None:
        """The catalog is unusable for `who`; reported the first time."""
        with self._lock:
            self._waiting.add(who)
            self.trouble = error.message
            if self._since_ms is not None:
                return
            self._since_ms, self._pause_s = self._clock.monotonic_ms(), _PAUSE_S[0]
        self._say(f"waiting for the catalog: {error.message}")

    def pause(self) -> None:
        """Wait briefly before the next attempt."""
        self._stop.wait(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _PAUSE_S[1])

    def forget(self, who: str) -> None:
        """A waiting part has ended. The others will notice whether the catalog is back."""
        with self._lock:
            self._waiting.discard(who)

    def back(self, who: str = LOOP) -> None:
        """One part can use the catalog again; reported once all can."""
        with self._lock:
            self._waiting.discard(who)
            if self._since_ms is None or self._waiting:
                return
            away_ms = self._clock.monotonic_ms() - self._since_ms
            self._since_ms = self.trouble = None
        self._say(f"the catalog is back after {format_ms(away_ms)}")
