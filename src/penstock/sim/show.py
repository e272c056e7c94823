"""What the demonstration shows: the pipeline and the topics under one load, and a script of events.

The script lasts a minute and then begins again. The same seed shows the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.flow import PlannerPolicy
from penstock.flow.planner import Growth
from penstock.sim.latency import Bimodal, Exponential, Lognormal, Uniform
from penstock.sim.load import Shape, named_shape
from penstock.sim.pipeline import STAGES, STEP_MS, Pipeline, Settings
from penstock.sim.stage import Batches, Service, Workers
from penstock.sim.topics import Topics, TopicsSettings

SCRIPT_MS: Final = 60_000
TRACE_MS: Final = 250
LOW_PER_S: Final = 2_500
HIGH_PER_S: Final = 5_500
PERIOD_MS: Final = 12_000
TOPIC_WRITES_SHARE: Final = 0.52  # of the load, the rest is for the pipeline alone

SERVICES: Final[tuple[Service, ...]] = (
    Workers(Exponential(0.15), parallelism=4),
    Workers(Uniform(0.1, 0.4), parallelism=4),
    Workers(Lognormal(0.35, 0.6), parallelism=8),
    Workers(Bimodal(0.2, 2.5, slow_share=0.08), parallelism=6),
    Batches(Uniform(80, 120), per_item_ms=0.02, items_max=1_500),
)


class Event(NamedTuple):
    """Something that happens at a time of the script, and what to watch for."""

    at_ms: int
    text: str
    happen: Callable[[Show], None]


class Trace(NamedTuple):
    """A quarter of a second of flow, as rates."""

    offered_per_s: float
    delivered_per_s: float


class Show:
    """A pipeline and a topic scheduler side by side, with what a viewer should know of them."""

    def __init__(self, *, seed: int, shape: str, growth: Growth) -> None:
        self.seed = seed
        self.shape = shape
        self.growth = growth
        self.now_ms = 0
        self.event: Event = SCRIPT[0]
        self.traces: deque[Trace] = deque(maxlen=240)
        policy = PlannerPolicy(stages=STAGES, growth=growth)
        self.pipeline = Pipeline(Settings(SERVICES, self._load(1.0), policy), seed)
        self.topics = Topics(TopicsSettings(self._load(TOPIC_WRITES_SHARE)), seed)
        self._offered = 0
        self._delivered = 0

    def advance(self, span_ms: int) -> list[Event]:
        """Let virtual time pass; returns the events that happened."""
        happened = []
        for _ in range(span_ms // STEP_MS):
            happened += self._happen()
            self.pipeline.step()
            self.topics.ingest_full = self.pipeline.channels[0].room == 0
            self.topics.run(STEP_MS)
            self.now_ms += STEP_MS
            if self.now_ms % TRACE_MS == 0:
                self._trace()
        return happened

    def set_load(self, factor: float) -> None:
        """Multiply the load on both from now on."""
        self.pipeline.arrivals.factor = factor
        self.topics.arrivals.factor = factor

    def _load(self, share: float) -> Shape:
        return named_shape(
            self.shape,
            low_per_s=share * LOW_PER_S,
            high_per_s=share * HIGH_PER_S,
            period_ms=PERIOD_MS,
            seed=self.seed,
        )

    def _happen(self) -> list[Event]:
        at_ms = self.now_ms % SCRIPT_MS
        events = [event for event in SCRIPT if event.at_ms == at_ms]
        for event in events:
            event.happen(self)
            self.event = event
        return events

    def _trace(self) -> None:
        pipeline, per_s = self.pipeline, 1_000 / TRACE_MS
        self.traces.append(
            Trace(
                per_s * (pipeline.offered - self._offered),
                per_s * (pipeline.delivered - self._delivered),
            )
        )
        self._offered, self._delivered = pipeline.offered, pipeline.delivered


def _block(name: str, blocked: bool) -> Callable[[Show], None]:
    def happen(show: Show) -> None:
        show.pipeline.stage(name).blocked = blocked

    return happen


def _slow(name: str, slowdown: float) -> Callable[[Show], None]:
    def happen(show: Show) -> None:
        show.pipeline.stage(name).slowdown = slowdown

    return happen


def _load(factor: float) -> Callable[[Show], None]:
    return lambda show: show.set_load(factor)


SCRIPT: Final = (
    Event(0, "an ordinary load: every stage keeps up, no window holds anybody back", _load(1)),
    Event(
        8_000,
        "load ×3: devices wait outside while full stages rest at 70 % of their windows",
        _load(3),
    ),
    Event(
        15_000,
        "evaluate takes 3 times as long: its p99 passes twice its baseline, its window shrinks",
        _slow("evaluate", 3),
    ),
    Event(
        21_000,
        "evaluate is itself again: windows grow where they hold a stage back",
        _slow("evaluate", 1),
    ),
    Event(26_000, "load back to normal: what waited outside is let in", _load(1)),
    Event(
        38_000,
        "store blocks now: in 5 s it and all above it are at the smallest window",
        _block("store", True),
    ),
    Event(
        45_000,
        "store works again: everything drains in order, nothing was dropped",
        _block("store", False),
    ),
)
