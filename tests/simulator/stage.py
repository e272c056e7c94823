"""One simulated stage: takes from its channel, works for a drawn time, hands on in order.

A stage that cannot hand on holds what it finished and takes nothing new; that wait is not part of
its processing latency. A slot of its channel is free again when the item was handed on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.flow.channel import WindowedChannel
from tests.simulator.latency import Latency, Table

HandOn = Callable[[Sequence[int]], int]
"""Offers items to what comes next; returns how many it took."""

_NS_PER_MS: Final = 1_000_000


class Service(Protocol):
    """How a stage works; `begin` makes the worker of one stage."""

    @property
    def capacity_per_s(self) -> float:
        """The rate a stage cannot exceed however much waits."""
        ...

    def begin(self, channel: WindowedChannel[int], chance: random.Random) -> Worker:
        """A worker over a channel."""
        ...


class Worker(Protocol):
    """What a stage is doing."""

    def finish(self, step_ms: int, slowdown: float) -> list[int]:
        """Work for a step; returns what was finished in it, in order."""
        ...


@dataclass(frozen=True, slots=True)
class Workers:
    """Some items at a time, each for its own time."""

    latency: Latency
    parallelism: int = 1

    @property
    def capacity_per_s(self) -> float:
        return 1_000 * self.parallelism / self.latency.mean_ms

    def begin(self, channel: WindowedChannel[int], chance: random.Random) -> Worker:
        return _WorkerPool(channel, self.parallelism, Table(self.latency, chance))


@dataclass(frozen=True, slots=True)
class Batches:
    """Whole batches at a fixed cost and a cost for each item, as Spark works.

    A batch takes what waits, up to `items_max`; each of its items took as long as the batch.
    """

    fixed: Latency
    per_item_ms: float
    items_max: int

    @property
    def capacity_per_s(self) -> float:
        full_ms = self.fixed.mean_ms + self.per_item_ms * self.items_max
        return 1_000 * self.items_max / full_ms

    def begin(self, channel: WindowedChannel[int], chance: random.Random) -> Worker:
        return _BatchWorker(channel, self, chance)


class Stage:
    """A worker between its channel and what comes next.

    Blocked, it does nothing at all; `slowdown` is how many times as long everything takes.
    """

    def __init__(
        self, channel: WindowedChannel[int], service: Service, chance: random.Random
    ) -> None:
        self.channel = channel
        self.blocked = False
        self.slowdown = 1.0
        self._worker = service.begin(channel, chance)
        self._held: list[int] = []  # finished and not yet handed on

    def step(self, step_ms: int, hand_on: HandOn) -> None:
        """One step: hand on what is held, and only if nothing is left work on."""
        if self.blocked:
            return
        self._hand_on(hand_on)
        if not self._held:
            self._held = self._worker.finish(step_ms, self.slowdown)
            self._hand_on(hand_on)

    def _hand_on(self, hand_on: HandOn) -> None:
        if self._held:
            sent = hand_on(self._held)
            self.channel.done(sent)
            self._held = self._held[sent:] if sent < len(self._held) else []


class _WorkerPool:
    """Workers as one pool of working time that items use up in their order.

    An item takes as long as it was drawn for while all workers are busy, and the pool as a whole
    finishes at exactly the rate of its workers.
    """

    def __init__(self, channel: WindowedChannel[int], parallelism: int, table: Table) -> None:
        self._channel = channel
        self._parallelism = parallelism
        self._table = table
        self._started: list[int] = []
        self._spare_ms = 0.0  # work already done for the item that finishes next

    def finish(self, step_ms: int, slowdown: float) -> list[int]:
        """Finish as many items as the working time of the step covers."""
        table, started = self._table, self._started
        worked_ms = step_ms / slowdown
        budget_ms = self._spare_ms + self._parallelism * worked_ms
        reach = table.count_within(budget_ms)
        started += self._channel.receive_up_to(max(0, reach + self._parallelism - len(started)))
        busy = min(self._parallelism, len(started))
        if busy < self._parallelism:
            budget_ms = self._spare_ms + busy * worked_ms
            reach = table.count_within(budget_ms)
        count = min(reach, len(started))
        self._spare_ms = budget_ms - table.work_ms(count) if count < len(started) else 0.0
        self._record(count, slowdown)
        table.advance(count)
        finished, self._started = started[:count], started[count:]
        return finished

    def _record(self, count: int, slowdown: float) -> None:
        record = self._channel.latency.record
        latencies_ns = self._table.latencies_ns(count)
        if slowdown != 1.0:
            latencies_ns = [int(latency_ns * slowdown) for latency_ns in latencies_ns]
        for latency_ns in latencies_ns:
            record(latency_ns)


class _BatchWorker:
    """One batch after the other."""

    def __init__(
        self, channel: WindowedChannel[int], service: Batches, chance: random.Random
    ) -> None:
        self._channel = channel
        self._service = service
        self._chance = chance
        self._batch: list[int] = []
        self._span_ms = 0.0
        self._left_ms = 0.0

    def finish(self, step_ms: int, slowdown: float) -> list[int]:
        """Work on the batch; the next one begins in the step after it was handed on."""
        if not self._batch and not self._take(slowdown):
            return []
        self._left_ms -= step_ms
        if self._left_ms > 0:
            return []
        finished, self._batch = self._batch, []
        self._channel.latency.record(int(self._span_ms * _NS_PER_MS), len(finished))
        return finished

    def _take(self, slowdown: float) -> bool:
        self._batch = self._channel.receive_up_to(self._service.items_max)
        work_ms = self._service.per_item_ms * len(self._batch)
        whole_ms = self._service.fixed.draw_ms(self._chance) + work_ms
        self._span_ms = self._left_ms = slowdown * whole_ms
        return bool(self._batch)
