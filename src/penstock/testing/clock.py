"""A clock that moves only on request."""

from __future__ import annotations


class ManualClock:
    """Time stands still until `advance`.

    >>> clock = ManualClock()
    >>> clock.advance(1_500)
    >>> clock.monotonic_ms(), clock.monotonic_ns()
    (1500, 1500000000)
    """

    def __init__(self, *, now_ms: int = 1_700_000_000_000) -> None:
        self._epoch_ms = now_ms
        self._elapsed_ns = 0

    def now_ms(self) -> int:
        return self._epoch_ms + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        return self._elapsed_ns // 1_000_000

    def monotonic_ns(self) -> int:
        return self._elapsed_ns

    def advance(self, ms: float) -> None:
        """Move time forward; it never goes back."""
        if ms < 0:
            raise ValueError(f"time cannot go back by {-ms} ms")
        self._elapsed_ns += round(ms * 1_000_000)
