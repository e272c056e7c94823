"""The units that may run, most urgent first.

>>> queue = ReadyQueue()
>>> queue.put("late", UnitUrgency(deadline_ms=5, interval_ms=10, position=0))
>>> queue.put("later", UnitUrgency(deadline_ms=7, interval_ms=10, position=1))
>>> queue.put("often", UnitUrgency(deadline_ms=5, interval_ms=1, position=2))
>>> queue.pop(), queue.pop(), queue.pop(), queue.pop()
('often', 'late', 'later', None)
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple


class UnitUrgency(NamedTuple):
    """Sort key: freshness deadline, then shorter interval, then topological position."""

    deadline_ms: int
    interval_ms: int
    position: int


class ReadyQueue:
    """Keys by urgency, each at most once. There are no dependencies here: every entry may run."""

    def __init__(self) -> None:
        self._urgency: dict[str, UnitUrgency] = {}
        self._heap: list[tuple[UnitUrgency, str]] = []

    def __len__(self) -> int:
        return len(self._urgency)

    def __contains__(self, key: object) -> bool:
        return key in self._urgency

    def put(self, key: str, urgency: UnitUrgency) -> None:
        """Add a key, or change its urgency."""
        if self._urgency.get(key) != urgency:
            self._urgency[key] = urgency
            heappush(self._heap, (urgency, key))

    def discard(self, key: str) -> None:
        """Remove a key, if present."""
        self._urgency.pop(key, None)

    def pop(self) -> str | None:
        """Remove and return the most urgent key; None if empty."""
        while self._heap:
            urgency, key = heappop(self._heap)
            if self._urgency.get(key) == urgency:  # otherwise removed or re-added since
                del self._urgency[key]
                return key
        return None

    def in_order(self) -> list[str]:
        """All keys, most urgent first."""
        return sorted(self._urgency, key=lambda key: (self._urgency[key], key))
