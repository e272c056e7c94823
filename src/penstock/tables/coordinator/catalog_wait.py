"""Waiting for a catalog that is away or locked: said once when it begins and once when it ends."""

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
"""How long to wait before the next try: first and at most."""


class CatalogWait:
    """The parts of a coordinator that wait for the catalog. Threads may share it."""

    def __init__(self, say: Callable[[str], None], clock: Clock, stop: threading.Event) -> None:
        self._say, self._clock, self._stop = say, clock, stop
        self._lock = threading.Lock()
        self._waiting: set[str] = set()
        self._since_ms: int | None = None
        self._pause_s = _PAUSE_S[0]
        self.trouble: str | None = None
        """Why the catalog cannot be used, if it cannot."""

    def unlocked(self, attempt: Callable[[], T]) -> T:
        """Try again while other writers hold the catalog: what failed for that was never begun."""
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
        """It cannot be used; said the first time."""
        with self._lock:
            self._waiting.add(who)
            self.trouble = error.message
            if self._since_ms is not None:
                return
            self._since_ms, self._pause_s = self._clock.monotonic_ms(), _PAUSE_S[0]
        self._say(f"waiting for the catalog: {error.message}")

    def pause(self) -> None:
        """Wait a little before the next try."""
        self._stop.wait(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _PAUSE_S[1])

    def forget(self, who: str) -> None:
        """One of those who wait has ended; whether the catalog is back, the others will find."""
        with self._lock:
            self._waiting.discard(who)

    def back(self, who: str = LOOP) -> None:
        """One of those who wait can use it; said when all can."""
        with self._lock:
            self._waiting.discard(who)
            if self._since_ms is None or self._waiting:
                return
            away_ms = self._clock.monotonic_ms() - self._since_ms
            self._since_ms = self.trouble = None
        self._say(f"the catalog is back after {format_ms(away_ms)}")
