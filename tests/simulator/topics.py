"""Ready topics in virtual time: marked at random, served by workers, governed by their pressure.

The queue, its ageing and the governor are the real ones. Time moves by the millisecond, as a
scheduling latency of 5 ms is already full pressure.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, NamedTuple

from penstock.flow.ageing import AgeingQueue
from penstock.flow.drain import LIMIT_MS
from penstock.flow.governor import SAMPLE_MS, Governor, Load, Rung
from penstock.flow.priority import TICK_MS, Urgency
from penstock.metering.shapes import Arrivals, Shape
from tests.simulator.latency import Exponential, Latency

_CHOICES: Final = 1_024
_AGAIN_PER_MS: Final = 1


@dataclass(frozen=True, slots=True)
class Group:
    """Topics that are alike: how many, how urgent, and their share of all writes.

    Without a priority it is recency that counts: `watched` topics are consumed when served.
    """

    name: str
    topics: int
    share: float
    priority: int | None = None
    watched: bool = False


GROUPS: Final = (
    Group("alarms", topics=20, share=0.10, priority=900),
    Group("watched", topics=80, share=0.40, watched=True),
    Group("plain", topics=100, share=0.25, priority=100),
    Group("forgotten", topics=100, share=0.15),
    Group("archive", topics=60, share=0.10, priority=-400),
)


@dataclass(frozen=True, slots=True)
class TopicsSettings:
    """What a run depends on beside its seed. Without `deferral` that rung has no effect."""

    shape: Shape
    groups: tuple[Group, ...] = GROUPS
    workers: int = 8
    service: Latency = field(default_factory=lambda: Exponential(2.0))
    deferral: bool = True


class Topic(NamedTuple):
    """The key that becomes ready."""

    group: str
    number: int


class Topics:
    """A run of the topic scheduler, one millisecond at a time.

    `ingest_full` is what the ingest side would tell the governor. Writers that are refused wait
    outside and come again.
    """

    def __init__(self, settings: TopicsSettings, seed: int) -> None:
        self.settings = settings
        self.now_ms = 0
        self.arrivals = Arrivals(settings.shape)
        self.governor = Governor()
        self.queue: AgeingQueue[Topic] = AgeingQueue(self._urgency)
        self.ingest_full = False
        self._full_ms = 0  # it has been full for so long, and so takes as long at least to drain
        self.outside = 0  # refused, to be tried again
        self.written = 0
        self.pushed = 0
        self.served = 0
        self._chance = random.Random(f"{seed}:topics")
        self._groups = {group.name: group for group in settings.groups}
        self._choices = self._draw_choices()
        self._consumed_ms: dict[Topic, int] = {}
        self._pending: dict[Topic, int] = {}
        self._marked_ms: dict[Topic, int] = {}
        self._busy: list[tuple[float, Topic]] = []
        self._busy_ms = 0
        self._waits_ms: list[int] = []

    @property
    def rung(self) -> Rung:
        """Where the governor is on its ladder."""
        return self.governor.rung

    @property
    def pending(self) -> int:
        """How many records were written and not yet pushed."""
        return self.written - self.pushed

    def run(self, span_ms: int) -> Topics:
        """Let virtual time pass."""
        for _ in range(span_ms):
            self.step()
        return self

    def step(self) -> None:
        """One millisecond: writes arrive, services end, free workers take the next keys."""
        for _ in range(self._admit(self.arrivals.take(self.now_ms, 1))):
            self.write(self._chance.choice(self._choices))
        self._end_services()
        self._begin_services()
        self.now_ms += 1
        self._busy_ms += len(self._busy)
        if self.now_ms % TICK_MS == 0:
            self.queue.tick(self.now_ms)
        if self.now_ms % SAMPLE_MS == 0:
            self._govern()

    def write(self, topic: Topic) -> None:
        """One record: the topic is ready from now on, or keeps its place if it was."""
        self.written += 1
        self._pending[topic] = self._pending.get(topic, 0) + 1
        self._marked_ms.setdefault(topic, self.now_ms)
        self.queue.mark(topic, self.now_ms)

    def _admit(self, arrived: int) -> int:
        """How many writes are let in: none while writes are refused, a few more afterwards."""
        if self.rung.refusing:
            self.outside += arrived
            return 0
        again = min(self.outside, _AGAIN_PER_MS)
        self.outside -= again
        return arrived + again

    def _end_services(self) -> None:
        while self._busy and self._busy[0][0] <= self.now_ms:
            _, topic = heappop(self._busy)
            if self._groups[topic.group].watched:
                self._consumed_ms[topic] = self.now_ms
            self.queue.done(topic, self.now_ms)

    def _begin_services(self) -> None:
        while len(self._busy) < self.settings.workers:
            topic = self.queue.pop()
            if topic is None:
                return
            self.served += 1
            self.pushed += self._pending.pop(topic)
            self._waits_ms.append(self.now_ms - self._marked_ms.pop(topic))
            span_ms = self.settings.service.draw_ms(self._chance)
            heappush(self._busy, (self.now_ms + span_ms, topic))

    def _govern(self) -> None:
        """Sample and obey.

        Deferred keys are not ready: counted, they would keep up the pressure that defers them.
        """
        self._full_ms = self._full_ms + SAMPLE_MS if self.ingest_full else 0
        waits_ms = self._waits_ms or [0]
        rung = self.governor.sample(
            Load(
                ready=sum(band.depth for band in self.queue.bands() if not band.paused),
                workers=self.settings.workers,
                latency_ms=sum(waits_ms) / len(waits_ms),
                pool_busy=self._busy_ms / (SAMPLE_MS * self.settings.workers),
                drain_ms=self._full_ms,
                drain_ms_max=LIMIT_MS,
            )
        )
        self._waits_ms, self._busy_ms = [], 0
        if rung.deferring and self.settings.deferral and not self.queue.deferring:
            self.queue.defer()
        elif self.queue.deferring and not rung.deferring:
            self.queue.resume(self.now_ms)

    def _urgency(self, topic: Topic) -> Urgency:
        group = self._groups[topic.group]
        return Urgency(group.priority, last_consumed_ms=self._consumed_ms.get(topic))

    def _draw_choices(self) -> list[Topic]:
        """Topics in proportion to their share, so that a draw is one look into a list."""
        groups = self.settings.groups
        drawn = self._chance.choices(groups, [group.share for group in groups], k=_CHOICES)
        return [Topic(group.name, self._chance.randrange(group.topics)) for group in drawn]
