"""How much may be in flight between two stages: a FIFO with a window of slots and paced credits.

A slot is taken when an item is sent and freed when the receiver is *done* with it, so the window
bounds queued items plus items in progress.

>>> channel = WindowedChannel(window=10)
>>> channel.try_send_many(range(10))       # 70 % of the window, then wait
7
>>> channel.receive_up_to(3), channel.occupied
([0, 1, 2], 7)
>>> channel.done(3)
>>> channel.resize(4)                                       # below what is in it: grants nothing
>>> channel.try_send_many(["x"]), channel.occupied
(0, 4)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import ceil
from typing import Final, Generic, TypeVar

from penstock.flow.histogram import LatencyHistogram
from penstock.flow.meter import Measurement, StageMeter, StageStatus
from penstock.kernel.errors import Rejected

T = TypeVar("T")

MEASURE_MS: Final = 100
TARGET: Final = 0.70
DRAIN_EWMA: Final = 0.3
DRAINS_SURE: Final = 3
"""No more is predicted to drain than did in each of the last measurements.

A receiver that takes a third of the window three times a second would otherwise be granted that
third in advance, and fill the window beyond its zone while it works.
"""


class Closed(Rejected):
    """The channel accepts no more items, or has no more to deliver."""

    code = "closed"


class WindowedChannel(Generic[T]):
    """Queue, window, credits and counts of one channel. Not thread-safe; its wrappers are.

    Credits are paced: every 100 ms `measure` grants `0.70 x window - occupied + predicted drain`,
    never beyond the window; between measurements a sender finds new credit only while less than
    0.70 of the window is occupied. So a saturated stage settles near 0.70 instead of 1.0, a stage
    that keeps up never waits, and one that finishes less than it was predicted to fills up beyond
    0.85: that is congestion, and the planner sees it.

    For the planner, a channel with its receiver is a `Stage`; hence `name` and `slot_bytes`.
    """

    def __init__(self, window: int, name: str = "", *, slot_bytes: float = 1_024) -> None:
        self.name = name
        self.chain = ""
        self.slot_bytes = slot_bytes
        self.occupied = 0
        self.closed = False
        self.items_in = 0
        self.items_out = 0
        self.bytes_in = 0
        self.credits_granted = 0
        self.refusals = 0
        self.busy_ns = 0
        self.finished_ms: float | None = None
        self.warming = False
        self.latency = LatencyHistogram()
        self.items: deque[T] = deque()  # sent and not yet received
        self._window = window
        self._credits = 0
        self._drain_per_measure = 0.0
        self._drains: deque[int] = deque(maxlen=DRAINS_SURE)
        self.resize(window)
        self._meter = StageMeter(window)

    @property
    def window(self) -> int:
        """The number of slots."""
        return self._window

    @property
    def occupancy(self) -> float:
        """The share of the window in use; above 1 while a shrunken window drains."""
        return self.occupied / self._window

    @property
    def bytes_per_slot(self) -> float:
        """The running mean size of an item, for the planner's budget."""
        return self._meter.bytes_per_slot

    @property
    def latency_total(self) -> LatencyHistogram:
        """Item latencies since the start; `latency` has those since the last report."""
        return self._meter.latency_total

    @property
    def backpressure_events(self) -> int:
        """How often senders started being refused."""
        return self._meter.backpressure_events

    @property
    def room(self) -> int:
        """How many items `try_send` would accept now."""
        return max(0, self._credits, self._target - self.occupied)

    def try_send_many(self, items: Sequence[T], size_bytes: int = 0) -> int:
        """Add as many of the items as there are credits for, in order; return how many.

        `size_bytes` is the size of each item.
        """
        if self.closed:
            raise Closed("the channel is closed")
        room = self.room
        taken = items if len(items) <= room else items[:room]
        if len(taken) < len(items):
            self.refusals += 1
        count = len(taken)
        self.credits_granted += max(0, count - self._credits)
        self._credits = max(0, self._credits - count)
        self.occupied += count
        self.items_in += count
        self.bytes_in += size_bytes * count
        self.items.extend(taken)
        return count

    def receive(self) -> T:
        """Take the oldest item; it stays in flight. Raises IndexError if the queue is empty."""
        return self.items.popleft()

    def receive_up_to(self, count: int) -> list[T]:
        """Take up to `count` of the oldest items. They stay in flight."""
        items = self.items
        return [items.popleft() for _ in range(min(count, len(items)))]

    def done(self, count: int = 1, latency_ns: int | None = None) -> None:
        """Free the slots of received items; a latency is that of all of them together."""
        if not 0 <= count <= self.occupied - len(self.items):
            raise Rejected(
                f"expected to finish at most {self.occupied - len(self.items)} received items, "
                f"found {count}"
            )
        self.occupied -= count
        self.items_out += count
        if latency_ns is not None:
            self.busy_ns += latency_ns
            self.latency.record(latency_ns, count)

    def resize(self, window: int) -> None:
        """Set the window at any time.

        Growing grants credits at once; shrinking waits for the drain, and takes back credits that
        were paced for the larger window.
        """
        if window < 1:
            raise Rejected(f"a window needs at least one slot, not {window}")
        shrinks = window < self._window
        self._window = window
        self._target = ceil(TARGET * window)
        ceiling = self._target if shrinks else window
        self._credits = max(0, min(self._credits, ceiling - self.occupied))

    def close(self) -> None:
        """Accept no more items. Queued items can still be received."""
        self.closed = True

    def measure(self, now_ms: int) -> None:
        """Due every 100 ms: record the occupancy and grant the credits for the next 100 ms."""
        drained = self._meter.sample(self, now_ms)
        self._drain_per_measure += DRAIN_EWMA * (drained - self._drain_per_measure)
        self._drains.append(drained)
        predicted = min(self._drain_per_measure, *self._drains)
        grant = int(self._target - self.occupied + predicted)
        grant = max(0, min(grant, self._window - self.occupied))
        self.credits_granted += max(0, grant - self._credits)
        self._credits = grant

    def report(self, now_ms: int) -> Measurement:
        """Due every second: what happened since the last report."""
        return self._meter.report(self, now_ms)

    def status(self) -> StageStatus:
        """The channel and its receiver, for people and metrics."""
        return self._meter.status(self)
