"""The ingest pipeline in virtual time: five stages, the real channels between them, one planner.

Time moves in steps of 10 ms. In a step the last stage works first, so what it frees can be used
above it in the same step. Channels are measured every 100 ms and planned every second, as in the
real pipeline. Every step checks that nothing is lost, doubled or out of order.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple

from penstock.flow.channel import MEASURE_MS, WindowedChannel
from penstock.flow.meter import Measurement
from penstock.flow.planner import PLAN_MS, Plan, PlannerPolicy, WindowPlanner
from penstock.kernel.errors import Rejected
from penstock.metering.shapes import Arrivals, Shape
from tests.simulator.sizes import Sizes
from tests.simulator.stage import HandOn, Service, Stage

STAGES: Final = ("accept", "reassemble", "parse", "evaluate", "store")
STEP_MS: Final = 10
_SECONDS_KEPT: Final = 3_600


class Lost(AssertionError):
    """An item was lost, doubled or overtaken."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run depends on beside its seed. `bytes_factors` is how items grow by stage."""

    services: tuple[Service, ...]
    shape: Shape
    policy: PlannerPolicy = field(default_factory=lambda: PlannerPolicy(stages=STAGES))
    item_bytes: float = 500.0
    item_spread: float = 0.5
    bytes_factors: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0, 1.0)

    def __post_init__(self) -> None:
        counts = len(self.policy.stages), len(self.services), len(self.bytes_factors)
        if len(set(counts)) != 1:
            raise Rejected(f"expected as many services and byte factors as stages, found {counts}")

    @property
    def capacity_per_s(self) -> float:
        """What the slowest stage can do."""
        return min(service.capacity_per_s for service in self.services)


class Second(NamedTuple):
    """The end of one second of a run; offered and delivered count from the beginning."""

    at_ms: int
    offered: int
    delivered: int
    backlog: int
    measured: tuple[Measurement, ...]
    plan: Plan
    in_flight_bytes: int


class Pipeline:
    """A run of the pipeline, one step at a time.

    The backlog is what devices still hold: a source that finds no credit waits.
    """

    def __init__(self, settings: Settings, seed: int) -> None:
        self.settings = settings
        self.now_ms = 0
        self.arrivals = Arrivals(settings.shape)
        self.sizes = Sizes(
            random.Random(f"{seed}:sizes"),
            mean_bytes=settings.item_bytes,
            spread=settings.item_spread,
        )
        self.planner = WindowPlanner(settings.policy)
        self.memory = self.planner.begin(
            [factor * settings.item_bytes for factor in settings.bytes_factors]
        )
        self.channels = [WindowedChannel[int](window) for window in self.memory.windows]
        self.stages = [
            Stage(channel, service, random.Random(f"{seed}:{name}"))
            for name, channel, service in zip(
                settings.policy.stages, self.channels, settings.services, strict=True
            )
        ]
        senders: list[HandOn] = [partial(self._send, n) for n in range(1, len(self.stages))]
        hand_ons = [*senders, self._deliver]
        self._downstream_first = [*zip(self.stages, hand_ons, strict=True)][::-1]
        self.offered = 0
        self.delivered = 0
        self.occupancies: list[tuple[float, ...]] = []  # one sample every 100 ms
        self.seconds: deque[Second] = deque(maxlen=_SECONDS_KEPT)
        self.warnings: list[str] = []
        self.in_flight_bytes_max = 0

    @property
    def backlog(self) -> int:
        """How many items were offered and are not yet let in."""
        return self.offered - self.channels[0].items_in

    @property
    def in_flight(self) -> int:
        """How many items are inside."""
        return sum(channel.occupied for channel in self.channels)

    @property
    def in_flight_bytes(self) -> int:
        """How many bytes the items inside really have."""
        return round(
            sum(
                factor * self.sizes.between(channel.items_out, channel.items_in)
                for factor, channel in zip(self.settings.bytes_factors, self.channels, strict=True)
            )
        )

    def stage(self, name: str) -> Stage:
        """A stage by its name."""
        return self.stages[self.settings.policy.stages.index(name)]

    def set_windows(self, windows: Sequence[int]) -> None:
        """Put windows in force that the planner did not choose, as if it had."""
        stages = zip(self.memory.stages, windows, self.channels, strict=True)
        kept = tuple(
            stage.decreased(window, channel.occupied)._replace(window=window)
            for stage, window, channel in stages
        )
        for channel, window in zip(self.channels, windows, strict=True):
            channel.resize(window)
        self.memory = self.memory._replace(stages=kept)

    def run(self, span_ms: int) -> Pipeline:
        """Let virtual time pass."""
        for _ in range(span_ms // STEP_MS):
            self.step()
        return self

    def drain(self, within_ms: int) -> Pipeline:
        """Offer nothing more and run until everything is delivered, or the time is over."""
        self.arrivals.factor = 0.0
        until_ms = self.now_ms + within_ms
        while self.delivered < self.offered and self.now_ms < until_ms:
            self.step()
        return self

    def step(self) -> None:
        """Ten milliseconds."""
        for stage, hand_on in self._downstream_first:
            stage.step(STEP_MS, hand_on)
        self._offer()
        self.now_ms += STEP_MS
        if self.now_ms % MEASURE_MS == 0:
            self._measure()
        if self.now_ms % PLAN_MS == 0:
            self._plan()

    def _offer(self) -> None:
        count = self.arrivals.take(self.now_ms, STEP_MS)
        self.sizes.arrive(count)
        self.offered += count
        let_in = self.channels[0].items_in
        if let_in < self.offered:
            self._send(0, range(let_in, self.offered))

    def _send(self, number: int, items: Sequence[int]) -> int:
        channel = self.channels[number]
        first = channel.items_in
        if items[0] != first:
            raise Lost(f"expected item {first} into stage {number}, found {items[0]}")
        total = self.sizes.between(first, first + len(items))
        mean_bytes = self.settings.bytes_factors[number] * total / len(items)
        return channel.try_send_many(items, round(mean_bytes))

    def _deliver(self, items: Sequence[int]) -> int:
        after = self.delivered + len(items)
        if items != list(range(self.delivered, after)):
            raise Lost(f"expected items {self.delivered} to {after - 1}, found {items}")
        self.delivered = after
        return len(items)

    def _measure(self) -> None:
        for channel in self.channels:
            channel.measure(self.now_ms)
        self.occupancies.append(tuple(channel.occupancy for channel in self.channels))
        self.in_flight_bytes_max = max(self.in_flight_bytes_max, self.in_flight_bytes)
        self._check()

    def _plan(self) -> None:
        measured = tuple(channel.report(self.now_ms) for channel in self.channels)
        plan = self.planner.plan(self.memory, measured)
        self.memory = plan.memory
        for number, window in plan.changes:
            self.channels[number].resize(window)
        if plan.warning:
            self.warnings.append(plan.warning)
        self.seconds.append(
            Second(
                self.now_ms,
                self.offered,
                self.delivered,
                self.backlog,
                measured,
                plan,
                self.in_flight_bytes,
            )
        )

    def _check(self) -> None:
        """What left one stage is what entered the next, and all of it is accounted for."""
        for above, below in pairwise(self.channels):
            if above.items_out != below.items_in:
                raise Lost(f"expected {above.items_out} items handed on, found {below.items_in}")
        if self.offered != self.backlog + self.in_flight + self.delivered:
            raise Lost(
                f"expected {self.offered} items, found {self.backlog} waiting, "
                f"{self.in_flight} inside and {self.delivered} delivered"
            )
