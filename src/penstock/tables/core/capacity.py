"""What may start now: the units that are ready, most urgent first, and how many of them.

The number is limited by the slots of one coordinator and its share of the cluster's permits.

>>> queue = ReadyQueue()
>>> queue.put("late", UnitUrgency(deadline_ms=5, interval_ms=10, position=0))
>>> queue.put("later", UnitUrgency(deadline_ms=7, interval_ms=10, position=1))
>>> queue.put("often", UnitUrgency(deadline_ms=5, interval_ms=1, position=2))
>>> queue.pop(), queue.pop(), queue.pop(), queue.pop()
('often', 'late', 'later', None)
>>> capacity = Capacity(DispatchSettings(max_concurrent_refreshes=2))
>>> capacity.to_ask(ready=5, running=0, now_ms=0)
2
>>> capacity.lost()
>>> capacity.free(running=0, now_ms=0)
0
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from heapq import heappop, heappush
from typing import NamedTuple

from penstock.kernel.errors import Rejected
from penstock.tables.core.failures import FailurePolicy


class ParallelMode(StrEnum):
    """Whether units run side by side."""

    OFF = "off"
    DRY_RUN = "dry_run"
    ON = "on"


@dataclass(frozen=True, slots=True)
class DispatchSettings:
    """Limits of one coordinator; the cluster's own limit is the permit pool.

    `yield_ms` is how long at most a returned permit is left to other coordinators that wait for
    one.
    """

    parallel_refresh_mode: ParallelMode = ParallelMode.ON
    max_concurrent_refreshes: int = 4
    yield_ms: int = 1_000
    retry: FailurePolicy = field(default_factory=FailurePolicy)

    def __post_init__(self) -> None:
        if self.max_concurrent_refreshes < 1:
            raise Rejected(
                "expected max_concurrent_refreshes of at least 1, "
                f"found {self.max_concurrent_refreshes}"
            )
        if self.yield_ms < 0:
            raise Rejected(f"yield_ms must be at least 0, not {self.yield_ms}")

    @property
    def parallel(self) -> bool:
        """Whether jobs run in workers, under permits."""
        return self.parallel_refresh_mode is ParallelMode.ON

    @property
    def running_max(self) -> int:
        """The maximum number of concurrent jobs."""
        return self.max_concurrent_refreshes if self.parallel else 1


class Capacity:
    """Counts requested permits, and remembers when the pool was empty."""

    def __init__(self, settings: DispatchSettings) -> None:
        self._settings = settings
        self._asked = 0
        self._contended = False
        self._yield_until_ms: int | None = None
        self.starved = False

    def free(self, running: int, now_ms: int) -> int:
        """How many more jobs may start; 0 while the pool is known to be empty or left to others.

        A granted permit is used regardless, so call `won` first.
        """
        yields = self._yield_until_ms is not None and now_ms < self._yield_until_ms
        if self.starved or yields:
            return 0
        return self._settings.running_max - running

    def to_ask(self, ready: int, running: int, now_ms: int) -> int:
        """How many permits to request now; they count as requested."""
        wanted = max(0, min(ready, self.free(running, now_ms)) - self._asked)
        self._asked += wanted
        return wanted

    def won(self) -> None:
        """A permit was granted."""
        self._asked -= 1
        self.starved, self._yield_until_ms = False, None

    def lost(self) -> None:
        """No permit was free; ask again after some time, or when one is returned."""
        self._asked -= 1
        self.starved = True

    def given_back(self, now_ms: int) -> None:
        """A job ended. If others wait, they get its permit first."""
        self.starved = False
        if self._contended:
            self._yield_until_ms = now_ms + self._settings.yield_ms

    def contend(self, contended: bool) -> None:
        """Record whether others wait for permits."""
        self._contended = contended
        if not contended:
            self._yield_until_ms = None


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

    def first(self) -> str | None:
        """The most urgent key; None if empty."""
        while self._heap:
            urgency, key = self._heap[0]
            if self._urgency.get(key) == urgency:  # otherwise removed or re-added since
                return key
            heappop(self._heap)
        return None

    def pop(self) -> str | None:
        """Remove and return the most urgent key; None if empty."""
        key = self.first()
        if key is not None:
            heappop(self._heap)
            del self._urgency[key]
        return key

    def in_order(self) -> list[str]:
        """All keys, most urgent first."""
        return sorted(self._urgency, key=lambda key: (self._urgency[key], key))
