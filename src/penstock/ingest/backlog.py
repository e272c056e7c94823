"""How many messages may stand in the raw topic: as many as its readers drain in a given time.

Beyond that they are better off with their devices: a queue that takes half a minute to drain makes
every message half a minute late and lets no more of them through.

>>> backlog = Backlog(limit_ms=2_000)
>>> for second in range(100):                       # 1,000 messages a second leave a full queue
...     backlog.measure(behind=5_000, stored=100 * second, now_ms=100 * second)
>>> backlog.room(behind=500, slots=100_000) in range(1_400, 1_600)
True
>>> backlog.room(behind=500, slots=700)
200
"""

from __future__ import annotations

from typing import Final, Protocol

from penstock.flow.drain import Drain

LIMIT_MS: Final = 2_000
ROOM_MIN: Final = 1_024
"""So many may always be there, the smallest window: a batch has to be worth its fixed cost."""


class Downstream(Protocol):
    """The stages behind the durable topic, which may ask the edge to hold back."""

    @property
    def room(self) -> int:
        """How many more messages may be appended to the topic now."""
        ...

    def refused(self) -> None:
        """Called again and again while messages wait for room."""
        ...

    def measure(self, now_ms: int) -> None:
        """Called every 100 ms."""
        ...


class Backlog:
    """Bounds what stands in a topic by slots and by time; 0 ms means no limit in time.

    Two batches may always be there, however long they take: one that is worked on and one that
    gathers meanwhile. Otherwise a slow batch would leave no room for the next one until it is done,
    which halves the rate, and with it the room.
    """

    def __init__(self, limit_ms: int = LIMIT_MS) -> None:
        first_rate = ROOM_MIN * 1_000 / limit_ms if limit_ms else 1.0
        self._drain = Drain(limit_ms, first_rate=first_rate, room_min=ROOM_MIN)
        self._measured: tuple[int, int] | None = None  # when, and how many were stored by then
        self._batch = 0  # how many were stored at once

    @property
    def drain_per_s(self) -> float:
        """How many messages a second leave the topic while more wait."""
        return self._drain.rate

    def measure(self, behind: int, stored: int, now_ms: int) -> None:
        """Called every 100 ms: how many are not stored, and how many ever were."""
        before, self._measured = self._measured, (now_ms, stored)
        if before is not None and now_ms > before[0]:
            finished = max(0, stored - before[1])
            self._drain.sample(behind, finished, now_ms - before[0])
            self._batch = finished or self._batch

    def room(self, behind: int, slots: int) -> int:
        """How many more may come, of which so many are there and there are so many slots."""
        return max(0, int(min(slots, max(self._drain.room, 2 * self._batch))) - behind)
