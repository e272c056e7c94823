"""How much may be in flight between two stages: a FIFO with a window of slots and paced credits.

This is the pure core; `penstock.flow.shell` has the asynchronous and the thread face over it. A
slot is taken when an item is sent and freed when the receiver is *done* with it, so a window
bounds what is queued and what is being worked on.

>>> channel = WindowedChannel(window=10)
>>> sum(channel.try_send(item) for item in range(10))       # 70 % of the window, then wait
7
>>> channel.receive_up_to(3), channel.occupied
([0, 1, 2], 7)
>>> channel.done(3)
>>> channel.resize(4)                                       # below what is in it: grants nothing
>>> channel.try_send("x"), channel.occupied
(False, 4)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Final, Generic, TypeVar

from penstock.flow.histogram import LatencyHistogram
from penstock.kernel.errors import Rejected

T = TypeVar("T")

MEASURE_MS: Final = 100
TARGET: Final = 0.70
CEILING: Final = 0.85
RATE_EWMA: Final = 0.3


class Closed(Rejected):
    """The channel takes nothing more, or has nothing more to give."""

    code = "closed"


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a stage did since the last report, for the planner and for people.

    `refused` says that senders were; `limited` that the receiver came up short as well: only then
    was the window what held the stage back. `stuck_ms` is how long work has been
    waiting without any item finished. `p99_least_ns` is what the p99 is at least when the chance of
    few samples is taken off; None stands for the p99 itself.
    """

    window: int
    occupied: int = 0
    occupancy: float = 0.0
    items_in: int = 0
    items_out: int = 0
    rate_per_s: float = 0.0
    p50_ns: int = 0
    p99_ns: int = 0
    p99_least_ns: int | None = None
    latency_samples: int = 0
    bytes_per_slot: float = 0.0
    credits_granted: int = 0
    refused: bool = False
    limited: bool = False
    stuck_ms: int = 0


class WindowedChannel(Generic[T]):
    """Queue, window, credits and counts of one channel. Not thread-safe; its faces are.

    Credits are paced: every 100 ms `measure` grants `0.70 x window - occupied + predicted drain`,
    never beyond 0.85 of the window; between measurements a sender finds new credit only while less
    than 0.70 of the window is occupied. So a saturated stage rests near 0.70 instead of 1.0, and a
    stage that keeps up is never made to wait.
    """

    def __init__(self, window: int) -> None:
        self.occupied = 0
        self.closed = False
        self.items_in = 0
        self.items_out = 0
        self.bytes_in = 0
        self.credits_granted = 0
        self.refusals = 0
        self.shortfalls = 0
        self.latency = LatencyHistogram()
        self.items: deque[T] = deque()  # sent and not yet received
        self._credits = 0
        self._drain_per_measure = 0.0
        self._bytes_per_slot = 0.0
        self._samples: list[float] = []
        self._out_at_measure = 0
        self._progress_ms: int | None = None
        self._reported = _Totals()
        self.resize(window)

    @property
    def window(self) -> int:
        """How many slots there are."""
        return self._window

    @property
    def occupancy(self) -> float:
        """The share of the window that is taken; above 1 while a shrunken window drains."""
        return self.occupied / self._window

    @property
    def bytes_per_slot(self) -> float:
        """The running mean size of an item, for the planner's budget."""
        return self._bytes_per_slot

    @property
    def room(self) -> int:
        """How many items `try_send` would take now."""
        return max(0, self._credits, self._target - self.occupied)

    @property
    def worth_waking(self) -> int:
        """How many waiting senders to wake: none until an eighth of the target is free.

        Waking one for each freed slot would cost a switch an item. The receiver never starves
        meanwhile: once nothing is queued any room counts.
        """
        room = self.room
        return room if room * 8 >= self._target or not self.items else 0

    def try_send(self, item: T, size_bytes: int = 0) -> bool:
        """Put an item in if there is a credit for it. `Closed` after `close`."""
        if self.closed:
            raise Closed("expected an open channel, found a closed one")
        if self._credits <= 0:
            room = self._target - self.occupied
            if room <= 0:
                self.refusals += 1
                return False
            self._credits = room
            self.credits_granted += room
        self._credits -= 1
        self.occupied += 1
        self.items_in += 1
        self.bytes_in += size_bytes
        self.items.append(item)
        return True

    def try_send_many(self, items: Sequence[T], size_bytes: int = 0) -> int:
        """Put in as many of the items as there are credits for, in order; returns how many.

        `size_bytes` is the size of each.
        """
        if self.closed:
            raise Closed("expected an open channel, found a closed one")
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
        """Take the oldest item; it stays in flight. IndexError if there is none."""
        if not self.items:
            self.shortfalls += 1
        return self.items.popleft()

    def receive_up_to(self, count: int) -> list[T]:
        """Take the oldest items, as many as there are up to `count`. They stay in flight."""
        items = self.items
        if len(items) < count:
            self.shortfalls += 1
            count = len(items)
        return [items.popleft() for _ in range(count)]

    def done(self, count: int = 1, latency_ns: int | None = None) -> None:
        """Free the slots of received items; the latency, if given, counts for each of them."""
        if not 0 <= count <= self.occupied - len(self.items):
            raise Rejected(
                f"expected to finish at most {self.occupied - len(self.items)} received items, "
                f"found {count}"
            )
        self.occupied -= count
        self.items_out += count
        if latency_ns is not None:
            self.latency.record(latency_ns, count)

    def resize(self, window: int) -> None:
        """Set the window at any time. Growing grants at once; shrinking waits for the drain."""
        if window < 1:
            raise Rejected(f"expected a window of at least one slot, found {window}")
        self._window = window
        self._target = ceil(TARGET * window)
        self._ceiling = max(self._target, int(CEILING * window))
        self._draining = self.occupied > self._ceiling
        self._credits = max(0, min(self._credits, self._ceiling - self.occupied))

    def close(self) -> None:
        """Take nothing more. What is in can still be received."""
        self.closed = True

    def measure(self, now_ms: int) -> None:
        """Due every 100 ms: note the occupancy and grant the credits of the next 100 ms."""
        drained = self.items_out - self._out_at_measure
        self._out_at_measure = self.items_out
        self._drain_per_measure += RATE_EWMA * (drained - self._drain_per_measure)
        if drained or not self.occupied or self._progress_ms is None:
            self._progress_ms = now_ms
        self._samples.append(self._occupancy_sample())
        grant = int(self._target - self.occupied + self._drain_per_measure)
        grant = max(0, min(grant, self._ceiling - self.occupied))
        self.credits_granted += max(0, grant - self._credits)
        self._credits = grant

    def report(self, now_ms: int) -> Measurement:
        """Due every second: what happened since the last report."""
        before, self._reported = self._reported, _Totals.of(self, now_ms)
        since = self._reported
        latency, self.latency = self.latency, LatencyHistogram()
        latency_samples = latency.count
        p50_ns, least_ns, p99_ns = latency.quantiles((0.50, sure_share(latency_samples), 0.99))
        samples, self._samples = self._samples or [self.occupancy], []
        items_in = since.items_in - before.items_in
        items_out = since.items_out - before.items_out
        refused = since.refusals > before.refusals
        self._learn_size(since.bytes_in - before.bytes_in, items_in)
        return Measurement(
            window=self._window,
            occupied=self.occupied,
            occupancy=sum(samples) / len(samples),
            items_in=items_in,
            items_out=items_out,
            rate_per_s=items_out * 1_000 / max(1, now_ms - before.at_ms),
            p50_ns=p50_ns,
            p99_ns=p99_ns,
            p99_least_ns=least_ns,
            latency_samples=latency_samples,
            bytes_per_slot=self._bytes_per_slot,
            credits_granted=since.credits_granted - before.credits_granted,
            refused=refused,
            limited=refused and since.shortfalls > before.shortfalls,
            stuck_ms=self._stuck_ms(now_ms),
        )

    def _stuck_ms(self, now_ms: int) -> int:
        if not self.occupied or self._progress_ms is None:
            return 0
        return now_ms - self._progress_ms

    def _occupancy_sample(self) -> float:
        """The occupancy now. What is left over from a larger window counts up to the ceiling.

        That is the first decrease at work, not a reason for the next: simulation showed one
        decrease of a slow stage always followed by those down to the smallest window.
        """
        if self._draining:
            self._draining = self.occupied > self._ceiling
            return min(self.occupancy, CEILING)
        return self.occupancy

    def _learn_size(self, bytes_in: int, items_in: int) -> None:
        if items_in:
            mean = bytes_in / items_in
            known = self._bytes_per_slot
            self._bytes_per_slot = mean if mean > known else known + RATE_EWMA * (mean - known)


def sure_share(samples: int) -> float:
    """The share whose quantile the p99 reaches almost surely: 0.99 less three standard errors.

    Of 1,000 samples, with one in a hundred slow, now 7 and now 13 are slow, and the p99 jumps from
    the fast to the slow ones and back although nothing has changed.
    """
    return max(0.5, 0.99 - 3 * sqrt(0.99 * 0.01 / max(1, samples)))


@dataclass(frozen=True, slots=True)
class _Totals:
    at_ms: int = 0
    items_in: int = 0
    items_out: int = 0
    bytes_in: int = 0
    credits_granted: int = 0
    refusals: int = 0
    shortfalls: int = 0

    @classmethod
    def of(cls, core: WindowedChannel[T], now_ms: int) -> _Totals:
        return cls(
            now_ms,
            core.items_in,
            core.items_out,
            core.bytes_in,
            core.credits_granted,
            core.refusals,
            core.shortfalls,
        )
