"""The Spark stages as the planner sees them: batches of messages, counted by the message.

Parse, evaluate and the writing of files are one job, so a batch in the job, and what gathers behind
it, takes slots of all three: their windows are one window, and the planner sizes them as one. Each
stage gets the time that was measured for it inside the job; that time names the bottleneck, and
the stage that took longest lately is where the job is taken to be while nothing finishes.

A batch takes `SHARE` of the window: with one batch at work and one gathering behind it the stages
rest at the target of the flow spec, 0.70. What comes meanwhile makes the next batch larger, for a
small batch costs about as much as a large one.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

from penstock.flow.channel import TARGET
from penstock.flow.histogram import LatencyHistogram
from penstock.flow.meter import Measurement, StageMeter, StageStatus
from penstock.flow.planner import OCCUPANCY_MAX
from penstock.kernel.clock import Clock
from penstock.kernel.system import SystemClock

CHAIN: Final = "job"
SHARE: Final = TARGET / 2
WINDOW_INITIAL: Final = 4_096
WARM_BATCHES: Final = 5
"""On a Spark that has just started, a second batch that is larger than the first may take seconds
as well."""
RECENT: Final = 0.3
"""The weight of the last batch in what counts as lately."""


class BatchStage:
    """Counts and window of one stage. Every method may be called from any thread."""

    def __init__(
        self,
        name: str,
        *,
        chain: str = "",
        clock: Clock | None = None,
        window: int = WINDOW_INITIAL,
        slot_bytes: float = 4_096,
    ) -> None:
        self.name = name
        self.chain = chain
        self.finished_ms: float | None = None
        self._clock: Clock = clock or SystemClock()
        self.slot_bytes = slot_bytes
        self.occupied = 0
        """How many messages are in it, waiting and at work."""
        self.items_in = self.items_out = self.bytes_in = self.credits_granted = 0
        self.refusals = self.busy_ns = 0
        self.warming = True
        """Whether it has yet to finish its first batches: Spark may be starting."""
        self.is_waited_for = True
        """Whether it is what keeps the messages in it from being done."""
        self._batches_to_warm = WARM_BATCHES
        self.latency = LatencyHistogram()
        self._changed = threading.Lock()
        self._window = window
        self._meter = StageMeter(window)

    # the stage's own threads

    @property
    def window(self) -> int:
        """How many messages may be in it."""
        return self._window

    def enter(self, count: int, size_bytes: int, expected: int = 0) -> None:
        """Messages came, where so many were expected and had slots already."""
        with self._changed:
            self.occupied += count - expected
            self.items_in += count
            self.credits_granted += count
            self.bytes_in += size_bytes

    def leave(self, count: int, latency_ns: int) -> None:
        """Messages are done, after so long."""
        with self._changed:
            self._batches_to_warm = max(0, self._batches_to_warm - 1)
            self.warming = self._batches_to_warm > 0
            self.finished_ms = self._clock.monotonic_ns() / 1e6
            self.occupied -= count
            self.items_out += count
            self.busy_ns += latency_ns
            self.latency.record(latency_ns, count)

    def occupy(self, count: int) -> None:
        """Count so many more messages in it, or fewer, that neither came nor are done."""
        with self._changed:
            self.occupied += count

    def wait_for(self, is_waited_for: bool) -> None:
        """Note whether the messages in it wait for this stage, or for another of their job."""
        with self._changed:
            self.is_waited_for = is_waited_for

    def refused(self) -> None:
        """Note that more was there than the window let in."""
        with self._changed:
            self.refusals += 1

    def clear(self) -> None:
        """Everything in it is given up; the Spark of the next batch may have to start."""
        with self._changed:
            self.occupied = 0
            self.warming = self.is_waited_for = True
            self._batches_to_warm = WARM_BATCHES

    # the planner's thread

    def resize(self, window: int) -> None:
        """Set the window."""
        with self._changed:
            self._window = window

    def measure(self, now_ms: int) -> None:
        """Note the occupancy as it is; above 1 while a smaller window drains."""
        with self._changed:
            self._meter.sample(self, now_ms)
            if not self.is_waited_for:
                self._meter.excuse(now_ms)

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


class JobStages:
    """Parse, evaluate and store, as batches pass through them in one job each.

    Called from the threads that fetch, work and commit.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.parse, self.evaluate, self.store = (
            BatchStage(name, chain=CHAIN, clock=clock) for name in ("parse", "evaluate", "store")
        )
        self.all = [self.parse, self.evaluate, self.store]
        self._spent_ns = dict.fromkeys((stage.name for stage in self.all), 0.0)
        self._lock = threading.Lock()
        self._at = self.parse
        self._inside = 0  # waiting for the job or in it
        self._reading = 0  # on their way from the topic

    @property
    def window(self) -> int:
        """How many messages may be in the job, before it, and waiting to be committed."""
        return min(stage.window for stage in self.all)

    @property
    def batch_messages(self) -> int:
        """How many messages the next batch may have: `SHARE` of the window, rounded to fit.

        With a batch that is being committed the stages are full to `OCCUPANCY_MAX`; what is beside
        it is at least half of the window then, also where the window is odd.
        """
        window = self.window
        return max(1, min(int(SHARE * window), int(OCCUPANCY_MAX * window) - (window + 1) // 2))

    def room(self, gathered: int) -> int:
        """How many more messages may come, where so many wait for the job.

        An empty chain takes any batch, so that something always moves.
        """
        occupied = max(stage.occupied for stage in self.all)
        free = int(OCCUPANCY_MAX * self.window) - occupied
        return min(self.batch_messages - gathered, free if occupied else self.batch_messages)

    def refused(self) -> None:
        """Note that more waits, in the topic or before it, than the window lets in."""
        for stage in self.all:
            stage.refused()

    def reading(self, count: int) -> None:
        """Note that so many messages, and no others, are on their way: their slots are taken."""
        with self._lock:
            for stage in self.all:
                stage.occupy(count - self._reading)
            self._reading = count

    def gathered(self, count: int, size_bytes: int) -> None:
        """Messages were read and wait for the job; no others are on their way.

        In one step: in between, their slots would look free to a measurement.
        """
        with self._lock:
            expected, self._reading = self._reading, 0
            self._inside += count
            self.parse.enter(count, size_bytes, expected)
            self.evaluate.occupy(count - expected)
            self.store.occupy(count - expected)
            self._wait()

    def clear(self) -> None:
        """Everything in them is given up."""
        with self._lock:
            self._at, self._inside, self._reading = self.parse, 0, 0
            for stage in self.all:
                stage.clear()

    def held_up_by(self, stage: BatchStage) -> None:
        """The job waits for a stage."""
        with self._lock:
            self._at = stage
            self._wait()

    def begun(self) -> None:
        """A job begins, or begins again."""
        with self._lock:
            self._at = max(self.all, key=lambda stage: self._spent_ns[stage.name])
            self._wait()

    def made(self, count: int, size_bytes: int, spent_ns: Mapping[str, int]) -> None:
        """A job is done: its batch waits to be committed."""
        with self._lock:
            self._inside -= count
            self.parse.leave(count, spent_ns["parse"])
            for stage in (self.evaluate, self.store):
                stage.occupy(-count)
                stage.enter(count, size_bytes)
            self.evaluate.leave(count, spent_ns["evaluate"])
            for stage in (self.parse, self.evaluate):
                self._note(stage, spent_ns[stage.name])
            self._wait()

    def stored(self, count: int, store_ns: int) -> None:
        """A batch is committed; store took so long, in its job and afterwards."""
        with self._lock:
            self._note(self.store, store_ns)
            self.store.leave(count, store_ns)
            self._wait()

    def _wait(self) -> None:
        """What is in the job waits for one stage; what waits to be committed, for store."""
        is_committing = self.store.occupied > self._inside + self._reading
        for stage in self.all:
            stage.wait_for(stage is (self.store if is_committing else self._at))

    def _note(self, stage: BatchStage, spent_ns: int) -> None:
        before = self._spent_ns[stage.name]
        self._spent_ns[stage.name] = before + RECENT * (spent_ns - before)
