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

from penstock.flow.channel import CEILING, TARGET
from penstock.flow.histogram import LatencyHistogram
from penstock.flow.meter import Measurement, StageMeter, StageStatus

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
        self.occupied = 0
        """How many messages are in it, waiting and at work."""
        self.items_in = self.items_out = self.bytes_in = self.credits_granted = 0
        self.refusals = self.shortfalls = 0
        self.latency = LatencyHistogram()
        self._changed = threading.Condition()
        self._window = window
        self._batches = 0
        self._meter = StageMeter(window)

    # the stage's own threads

    @property
    def window(self) -> int:
        """How many messages may be in it."""
        return self._window

    def has_place(self, timeout_s: float) -> bool:
        """Wait until one more batch could come, whatever its size; False if none could in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._batches < BATCHES_MAX, timeout_s)

    def enter(self, count: int, size_bytes: int, timeout_s: float) -> bool:
        """Let a batch in, waiting for room; False if there was none in time."""
        with self._changed:
            if not self._has_room(count):
                self.refusals += self._is_over(count)
                if not self._changed.wait_for(lambda: self._has_room(count), timeout_s):
                    return False
            self.occupied += count
            self._batches += 1
            self.items_in += count
            self.credits_granted += count
            self.bytes_in += size_bytes
            return True

    def leave(self, count: int, latency_ns: int | None = None) -> None:
        """A batch is done; without a latency it was given up and does not count as done."""
        with self._changed:
            self.occupied -= count
            self._batches -= 1
            if latency_ns is not None:
                self.items_out += count
                self.latency.record(latency_ns, count)
            self._changed.notify_all()

    def refused(self) -> None:
        """Note that more was there than the window let in."""
        with self._changed:
            self.refusals += 1

    def starved(self) -> None:
        """Note that the stage had nothing to do."""
        with self._changed:
            self.shortfalls += 1

    def clear(self) -> None:
        """Everything in it is given up."""
        with self._changed:
            self.occupied = self._batches = 0
            self._changed.notify_all()

    def _has_room(self, count: int) -> bool:
        if self._batches >= BATCHES_MAX:
            return False
        return not self.occupied or not self._is_over(count)

    def _is_over(self, count: int) -> bool:
        return self.occupied + count > CEILING * self._window

    # the planner's thread

    def resize(self, window: int) -> None:
        """Set the window."""
        with self._changed:
            self._window = window
            self._changed.notify_all()

    def measure(self, now_ms: int) -> None:
        """Note the occupancy; what is left of a larger window counts up to the ceiling."""
        with self._changed:
            self._meter.sample(self, now_ms, min(self.occupied / self._window, CEILING))

    def report(self, now_ms: int) -> Measurement:
        """What happened since the last report."""
        with self._changed:
            return self._meter.report(self, now_ms)

    def status(self) -> StageStatus:
        """The stage for people and metrics."""
        with self._changed:
            return self._meter.status(self)

    @property
    def latency_total(self) -> LatencyHistogram:
        """How long batches took since the start; each counts once for every message."""
        return self._meter.latency_total


def batch_messages(stages: list[BatchStage]) -> int:
    """How many messages the next batch may have."""
    return max(1, int(SHARE * min(stage.window for stage in stages)))
