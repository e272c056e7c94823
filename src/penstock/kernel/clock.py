"""Time as something handed in, so that a test or a simulation can own it."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Two readings of time: a wall clock for people, a monotonic one for waiting and ageing."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch. May jump; only for what people see."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds that never go back. For ageing, windows and deadlines."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds that never go back. For measuring how long something took."""
        ...


class SteadyClock:
    """A clock whose wall time neither goes back nor stands still.

    When the wall clock was set back, time goes on from where it was, as fast as ever, until the
    wall clock has caught up: what ends by time still ends.
    """

    def __init__(self, clock: Clock) -> None:
        self._wall_ms = clock.now_ms
        self.monotonic_ms = clock.monotonic_ms
        self.monotonic_ns = clock.monotonic_ns
        self._last_ms = 0
        self._behind: tuple[int, int] | None = None  # time and monotonic time when it went back

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, by the wall clock unless that went back."""
        now_ms = self._wall_ms()
        if now_ms >= self._last_ms:
            self._behind = None
            self._last_ms = now_ms
            return now_ms
        if self._behind is None:
            self._behind = (self._last_ms, self.monotonic_ms())
        from_ms, since_ms = self._behind
        self._last_ms = from_ms + self.monotonic_ms() - since_ms
        return self._last_ms

    def go_on_from(self, time_ms: int) -> None:
        """Time has been this late before."""
        if time_ms > self._last_ms:
            self._last_ms, self._behind = time_ms, None
