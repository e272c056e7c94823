"""Time as a dependency, so that a test or a simulation can control it."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Two readings of time: a wall clock for people, a monotonic one for waiting and ageing."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch. May jump; only for display."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds that never decrease. For ageing, windows and deadlines."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds that never decrease. For measuring durations."""
        ...


class SteadyClock:
    """A clock whose wall time never goes back and never stops.

    When the wall clock is set back, time continues from where it was at normal speed until the wall
    clock has caught up, so timeouts still expire.
    """

    def __init__(self, clock: Clock) -> None:
        self._wall_ms = clock.now_ms
        self.monotonic_ms = clock.monotonic_ms
        self.monotonic_ns = clock.monotonic_ns
        self._last_ms = 0
        self._behind: tuple[int, int] | None = None  # wall and monotonic time when it went back

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, from the wall clock unless that went back."""
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
        """Never report a time earlier than this one."""
        if time_ms > self._last_ms:
            self._last_ms, self._behind = time_ms, None
