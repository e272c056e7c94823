"""Edge, raw topic and a job of three stages in virtual time: the real stages, planner and backlog.

Steps of 10 ms stand for the threads that fetch, work and commit. The edge is a channel in front of
the topic whose receiver appends as far as the backlog has room.

>>> chain = Chain(Costs(fixed_ms=(20, 40, 20), per_item_ms=(0.02, 0.1, 0.02)), offered_per_s=2_000)
>>> chain.run(20_000).stored > 35_000
True
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from penstock.flow.channel import WindowedChannel
from penstock.ingest.backlog import Backlog
from penstock.ingest.windows import Windows
from penstock.spark.pipeline.stages import JobStages
from penstock.testing import ManualClock

STEP_MS = 10
STAGES = ("parse", "evaluate", "store")
APPEND_MAX = 2_000


@dataclass(frozen=True, slots=True)
class Costs:
    """What a batch costs in each stage of its job, and how fast the topic is read."""

    fixed_ms: tuple[float, float, float]
    per_item_ms: tuple[float, float, float]
    commit_ms: float = 10.0
    start_ms: float = 0.0
    read_per_ms: float = 20.0

    def spent_ms(self, count: int) -> list[float]:
        """How long a batch takes in each stage."""
        pairs = zip(self.fixed_ms, self.per_item_ms, strict=True)
        return [fixed + per_item * count for fixed, per_item in pairs]


class Chain:
    """A pipeline whose store can be held. `offered_per_s` may be changed while it runs."""

    def __init__(self, costs: Costs, offered_per_s: float, *, message_bytes: int = 1_500) -> None:
        self.costs = costs
        self.offered_per_s = offered_per_s
        self.is_held = False
        self.now_ms = 0
        self.head = self.read = self.stored = 0
        self.edge = WindowedChannel[int](1, "reassemble", slot_bytes=2_048)
        self.clock = ManualClock()
        self.stages = JobStages(self.clock)
        self.backlog = Backlog()
        self.windows = Windows([self.edge, *self.stages.all])
        self.looks: list[tuple[int, ...]] = []
        self.behind: list[int] = []
        self._bytes = message_bytes
        self._due = 0.0
        self._gathered = 0
        self._job: tuple[int, float, list[float]] | None = None
        self._start_ms = costs.start_ms
        self._made: deque[tuple[int, float]] = deque()
        self._commit_left_ms = 0.0

    def run(self, span_ms: int) -> Chain:
        """Let virtual time pass."""
        for _ in range(span_ms // STEP_MS):
            self.step()
        return self

    def step(self) -> None:
        """Ten milliseconds, the last thread first."""
        self._commit()
        self._work()
        self._fetch()
        self._append()
        self.now_ms += STEP_MS
        self.clock.advance(STEP_MS)
        if self.now_ms % 100 == 0:
            self.windows.tick(self.now_ms)
            self.backlog.measure(self.head - self.stored, self.stored, self.now_ms)
            self.looks.append(tuple(stage.status().window for stage in self.windows.stages))
            self.behind.append(self.head - self.stored)

    @property
    def room(self) -> int:
        """How many more messages the topic may take."""
        slots = sum(stage.window for stage in self.stages.all)
        return self.backlog.room(self.head - self.stored, slots)

    def _append(self) -> None:
        self._due = min(self._due + self.offered_per_s * STEP_MS / 1_000, 5_000)
        self._due -= self.edge.try_send_many(range(int(self._due)), self._bytes)
        room = self.room
        if not room and self.edge.occupied:
            self.stages.refused()
        count = len(self.edge.receive_up_to(min(APPEND_MAX, room)))
        self.edge.done(count, 1_000_000)
        self.head += count

    def _fetch(self) -> None:
        room = self.stages.room(self._gathered)
        waiting = self.head - self.read
        if room <= 0:
            if waiting > 0:
                self.stages.refused()
            return
        count = min(room, waiting, int(self.costs.read_per_ms * STEP_MS))
        if count:
            self.stages.gathered(count, count * self._bytes)
            self._gathered += count
            self.read += count
        self.stages.reading(min(room, waiting) - count)  # the rest of it is on its way

    def _work(self) -> None:
        if self._job is None:
            if not self._gathered or len(self._made) > 1:
                return
            spent_ms = self.costs.spent_ms(self._gathered)
            self._job = (self._gathered, self._start_ms + sum(spent_ms), spent_ms)
            self._start_ms = 0.0
            self._gathered = 0
            self.stages.begun()
        count, left_ms, spent_ms = self._job
        if left_ms > STEP_MS:
            self._job = (count, left_ms - STEP_MS, spent_ms)
            return
        self._job = None
        spent_ns = {name: int(ms * 1e6) for name, ms in zip(STAGES, spent_ms, strict=True)}
        self.stages.made(count, count * self._bytes, spent_ns)
        self._made.append((count, spent_ms[2]))

    def _commit(self) -> None:
        if self.is_held or not self._made:
            return
        self._commit_left_ms += STEP_MS
        if self._commit_left_ms >= self.costs.commit_ms:
            self._commit_left_ms = 0.0
            count, store_ms = self._made.popleft()
            self.stages.stored(count, int((store_ms + self.costs.commit_ms) * 1e6))
            self.stored += count
