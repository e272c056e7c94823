"""A Spark stage as the planner sees it: batches of messages, counted by the message.

A batch may enter while the stage stays within the ceiling of its window; an empty stage takes any
batch. The batches of a pipeline take `SHARE` of the smallest window: with one batch at work and one
waiting behind it a saturated stage rests at the target of the flow spec, 0.70. More batches than
these two are never in a stage, however small they are: what comes meanwhile makes the next one
larger, for a small batch costs about as much as a large one.
"""

from __future__ import annotations

import threading
from typing import Final

from penstock.flow.channel import CEILING, RATE_EWMA, TARGET, Measurement, sure_share
from penstock.flow.histogram import LatencyHistogram
from penstock.ingest.stages import StageStatus

SHARE: Final = TARGET / 2
WINDOW_INITIAL: Final = 4_096
BATCHES_MAX: Final = 2


class BatchStage:
    """Counts and window of one stage. Every method may be called from any thread."""

    def __init__(
        self, name: str, *, window: int = WINDOW_INITIAL, slot_bytes: float = 4_096
    ) -> None:
        self.name = name
        self.slot_bytes = slot_bytes
        self.latency = LatencyHistogram()
        self._changed = threading.Condition()
        self._window = window
        self._occupied = 0
        self._batches = 0
        self._items_in = self._items_out = self._bytes_in = 0
        self._refusals = self._shortfalls = self._events = self._granted = 0
        self._recent = LatencyHistogram()
        self._samples: list[float] = []
        self._bytes_per_slot = 0.0
        self._progress_ms: int | None = None
        self._out_at_measure = self._refusals_at_measure = 0
        self._was_refusing = False
        self._reported = (0, 0, 0, 0, 0, 0, 0)
        self._last = Measurement(window)

    # the stage's own threads

    @property
    def window(self) -> int:
        """How many messages may be in it."""
        return self._window

    @property
    def occupied(self) -> int:
        """How many messages are in it, waiting and at work."""
        return self._occupied

    def has_place(self, timeout_s: float) -> bool:
        """Wait until one more batch could come, whatever its size; False if none could in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._batches < BATCHES_MAX, timeout_s)

    def enter(self, count: int, size_bytes: int, timeout_s: float) -> bool:
        """Let a batch in, waiting for room; False if there was none in time."""
        with self._changed:
            if not self._has_room(count):
                self._refusals += self._is_over(count)
                if not self._changed.wait_for(lambda: self._has_room(count), timeout_s):
                    return False
            self._occupied += count
            self._batches += 1
            self._items_in += count
            self._granted += count
            self._bytes_in += size_bytes
            return True

    def leave(self, count: int, latency_ns: int | None = None) -> None:
        """A batch is done; without a latency it was given up and does not count as done."""
        with self._changed:
            self._occupied -= count
            self._batches -= 1
            if latency_ns is not None:
                self._items_out += count
                self._recent.record(latency_ns, count)
            self._changed.notify_all()

    def refused(self) -> None:
        """Note that more was there than the window let in."""
        with self._changed:
            self._refusals += 1

    def starved(self) -> None:
        """Note that the stage had nothing to do."""
        with self._changed:
            self._shortfalls += 1

    def clear(self) -> None:
        """Everything in it is given up."""
        with self._changed:
            self._occupied = self._batches = 0
            self._changed.notify_all()

    def _has_room(self, count: int) -> bool:
        if self._batches >= BATCHES_MAX:
            return False
        return not self._occupied or not self._is_over(count)

    def _is_over(self, count: int) -> bool:
        return self._occupied + count > CEILING * self._window

    # the planner's thread

    def resize(self, window: int) -> None:
        """Set the window."""
        with self._changed:
            self._window = window
            self._changed.notify_all()

    def measure(self, now_ms: int) -> None:
        """Note the occupancy; what is left of a larger window counts up to the ceiling."""
        with self._changed:
            moved = self._items_out > self._out_at_measure or not self._occupied
            if moved or self._progress_ms is None:
                self._progress_ms = now_ms
            self._out_at_measure = self._items_out
            self._samples.append(min(self._occupied / self._window, CEILING))
            refusing = self._refusals > self._refusals_at_measure
            self._refusals_at_measure = self._refusals
            self._events += refusing and not self._was_refusing
            self._was_refusing = refusing

    def report(self, now_ms: int) -> Measurement:
        """What happened since the last report."""
        with self._changed:
            before, self._reported = self._reported, self._totals(now_ms)
            span_ms, items_in, items_out, bytes_in, refusals, shortfalls, granted = (
                now - then for now, then in zip(self._reported, before, strict=True)
            )
            recent, self._recent = self._recent, LatencyHistogram()
            self.latency.add(recent)
            samples, self._samples = self._samples or [0.0], []
            if items_in:
                mean = bytes_in / items_in
                known = self._bytes_per_slot
                self._bytes_per_slot = mean if mean > known else known + RATE_EWMA * (mean - known)
            p50_ns, least_ns, p99_ns = recent.quantiles((0.50, sure_share(recent.count), 0.99))
            is_at_work = self._occupied and self._progress_ms is not None
            stuck_ms = now_ms - (self._progress_ms or 0) if is_at_work else 0
            self._last = Measurement(
                window=self._window,
                occupied=self._occupied,
                occupancy=sum(samples) / len(samples),
                items_in=items_in,
                items_out=items_out,
                rate_per_s=items_out * 1_000 / max(1, span_ms),
                p50_ns=p50_ns,
                p99_ns=p99_ns,
                p99_least_ns=least_ns,
                latency_samples=recent.count,
                bytes_per_slot=self._bytes_per_slot,
                credits_granted=granted,
                refused=refusals > 0,
                limited=refusals > 0 and shortfalls > 0,
                stuck_ms=stuck_ms,
            )
            return self._last

    def status(self) -> StageStatus:
        """The stage for people and metrics."""
        with self._changed:
            last = self._last
            return StageStatus(
                name=self.name,
                window=self._window,
                occupied=self._occupied,
                occupancy=self._occupied / self._window,
                rate_per_s=last.rate_per_s,
                p50_ns=last.p50_ns if last.latency_samples else None,
                p99_ns=last.p99_ns if last.latency_samples else None,
                items_in=self._items_in,
                items_out=self._items_out,
                credits_granted=self._granted,
                backpressure_events=self._events,
                refused=last.refused,
                stuck_ms=last.stuck_ms,
            )

    def _totals(self, now_ms: int) -> tuple[int, int, int, int, int, int, int]:
        return (
            now_ms, self._items_in, self._items_out, self._bytes_in, self._refusals,
            self._shortfalls, self._granted,
        )  # fmt: skip


def batch_messages(stages: list[BatchStage]) -> int:
    """How many messages the next batch may have."""
    return max(1, int(SHARE * min(stage.window for stage in stages)))
