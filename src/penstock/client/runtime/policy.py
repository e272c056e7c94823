"""How a contended write is retried, and how much a runtime may hold.

>>> policy = CommitBackpressure(jitter=0)
>>> [round(policy.nominal_ms(conflict), 3) for conflict in (1, 2, 3, 6, 8, 12)]
[0.781, 1.562, 3.125, 25.0, 100.0, 1000.0]
>>> CommitBackpressure(base_ms=50, cap_ms=1, jitter=7, window_ms=-1)
CommitBackpressure(base_ms=50, cap_ms=50, jitter=1.0, window_ms=0.0)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.flow.backoff import Backoff
from penstock.kernel.errors import Rejected


@dataclass(frozen=True, slots=True)
class CommitBackpressure(Backoff):
    """When an event whose commit met a conflict runs again, and when it gives up.

    The first delays are tiny, because most conflicts are over once fresh state has arrived; they
    double while a conflict lasts. The window runs from an event's first conflict; with a window of
    0 the first conflict is final. Values out of range are clamped.
    """

    base_ms: float = 25 / 32
    cap_ms: float = 1_000.0
    jitter: float = 0.5
    window_ms: float = 30_000.0


@dataclass(frozen=True, slots=True)
class RuntimeLimits:
    """What a runtime may hold, and how long it waits for a server that does not answer."""

    pending_max: int = 256
    """Unfinished events of one lane and one type."""
    coalesced_max: int = 256
    """Events that may be merged into one pending event when its lane is full."""
    ahead_max: int = 16
    """Events of a lane whose handlers ran while the first of them waits for the server."""
    away: Backoff = field(
        default_factory=lambda: Backoff(base_ms=50, cap_ms=1_000, jitter=0.5, window_ms=300_000)
    )
    """How an unanswered commit is sent again; after its window the event fails."""

    def __post_init__(self) -> None:
        for name in ("pending_max", "ahead_max"):
            if getattr(self, name) < 1:
                raise Rejected(f"expected {name} of at least 1, found {getattr(self, name)}")
        if self.coalesced_max < 0:
            raise Rejected(f"expected coalesced_max of at least 0, found {self.coalesced_max}")
