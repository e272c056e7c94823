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
