"""The order of turns: changed topics are served one after another by the fair queue.

Serving a topic means pushing it to its watchers and through its routers. Pressure changes when that
happens: turns are delayed a little to carry more (coalescing), the log's commit window widens, and
the lowest band waits while the machine is hot.

A pass of the loop reads and answers everything that is ready, which takes longer with more writers.
While topics wait, pushing gets a share of each pass that grows with its length: deliveries must
keep up with writes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from penstock.flow.ageing import AgeingQueue
from penstock.flow.fairqueue import BandState
from penstock.flow.governor import SAMPLE_MS, Governor, Load, Rung, climb
from penstock.flow.histogram import LatencyHistogram
from penstock.flow.latency_window import LatencyWindow
from penstock.flow.priority import TICK_MS, Urgency, base_priority
from penstock.kernel.clock import Clock
from penstock.topics.core.registry import Registry

SLICE_MS: Final = 2
"""How long topics are served before the loop may do other work, however short its passes."""

SLICE_MS_MAX: Final = 50
"""How long they are served at most, however long its passes: requests wait meanwhile."""

_READY_FOR_FULL_DEPTH: Final = 256
_LOGGER: Final = logging.getLogger("penstock.topics")


class Turns:
    """Serves dirty topics on the event loop. A topic waits at most once, however often marked."""

    def __init__(
        self,
        serve: Callable[[str], None],
        urgency_of: Callable[[str], Urgency],
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        on_rung: Callable[[Rung], None],
        on_busy: Callable[[float], None],
        drain: Callable[[float], tuple[float, float]],
        waited_ns: Callable[[], int] = lambda: 0,
    ) -> None:
        """`waited_ns` is how long this thread has waited for a processor.

        `drain` takes the ms since its last call and returns how long the queue for the log would
        take, and how long it may take.
        """
        self._serve = serve
        self._loop = loop
        self._clock = clock
        self._on_rung = on_rung
        self._on_busy = on_busy
        self._drain = drain
        self._waited_ns = waited_ns
        self._queue: AgeingQueue[str] = AgeingQueue(urgency_of)
        self._marked_ns: dict[str, int] = {}
        self._scheduled = False
        self._since_ns = 0  # when other work got the loop, while topics wait
        self._steps: deque[Callable[[], None]] = deque()  # of pushes in progress
        self._steps_since_ns = 0
        self._goes_on = False  # they run in this pass or the next
        self._held_until_ns = 0
        self._waits_ns = 0  # of all topics served since the last sample
        self._turns = 0
        self._push_ns = 0  # time spent serving since then
        self._pushed_ns = 0  # and before the last sample
        self._turn_ns = 0.0  # mean time to serve a topic
        self._busy_ns = 0
        self._sampled_ns = clock.monotonic_ns()
        self._forced: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.governor = Governor()
        self.latency = LatencyHistogram()
        self.recent = LatencyWindow()  # the latencies of the present second
        self.served = 0

    def start(self) -> None:
        """Start to sample the load."""
        self._busy_ns = self._now_busy_ns()
        self._timer = self._loop.call_later(TICK_MS / 1e3, self._tick)

    def stop(self) -> None:
        """Stop sampling; waiting topics are still served."""
        if self._timer is not None:
            self._timer.cancel()

    def mark(self, topic: str) -> None:
        """Give a changed topic a turn. No effect if it is already waiting."""
        if topic in self._marked_ns:
            return
        self._marked_ns[topic] = self._clock.monotonic_ns()
        self._queue.mark(topic, self._clock.monotonic_ms())
        if not self._scheduled:
            self._schedule()

    def later(self, step: Callable[[], None]) -> None:
        """Continue a push to very many watchers in the next pass of the loop, or the one after.

        One step per pass while passes are short, several while they are long.
        """
        self._steps.append(step)
        if not self._goes_on:
            self._goes_on = True
            self._steps_since_ns = self._clock.monotonic_ns()
            self._loop.call_soon(self._go_on)

    def reconsider(self, topic: str) -> None:
        """Update a topic's place after its priority changed."""
        self._queue.reconsider(topic, self._clock.monotonic_ms())

    def force_pressure(self, pressure: float | None) -> None:
        """Fix the pressure at a value whatever the load, or return to measuring it."""
        self._forced = pressure
        self._sample_now()

    @property
    def rung(self) -> Rung:
        """The current rung of the ladder."""
        return self.governor.rung

    def bands(self) -> list[BandState]:
        """Every band of waiting topics, lowest first."""
        return self._queue.bands()

    def run(self) -> None:
        """Serve everything that is ready, for a clean shutdown."""
        while self._queue.has_ready():
            self._turn()

    def view(self, topic: str | None = None) -> dict[str, Any]:
        """The waiting topics, and why they wait, for people."""
        now_ms = self._clock.monotonic_ms()
        rung = self.rung
        quantiles = self.latency.quantiles((0.5, 0.99))
        shown: dict[str, Any] = {
            "pressure": round(rung.pressure, 4),
            "rung": rung.level.name.lower(),
            "forced": self._forced is not None,
            "coalesce_ms": rung.coalesce_ms,
            "commit_window_ms": rung.commit_window_ms,
            "deferring": rung.deferring,
            "refusing": rung.refusing,
            "drain_ms": round(rung.drain_ms, 1),
            "push_share": round(self.governor.push_share, 4),
            "push_need": round(self.governor.push_need, 4),
            "push_seconds_total": round((self._pushed_ns + self._push_ns) / 1e9, 6),
            "waiting": len(self._queue),
            "served_total": self.served,
            "latency_us": {"p50": quantiles[0] // 1_000, "p99": quantiles[1] // 1_000},
            "bands": [
                {
                    "band": f"B{number}",
                    "weight": band.weight,
                    "depth": band.depth,
                    "paused": band.paused,
                    "oldest_ms": None
                    if band.oldest_ms is None
                    else max(0, now_ms - band.oldest_ms),
                }
                for number, band in enumerate(self._queue.bands())
            ],
        }
        if topic is not None:
            shown["topic"] = self.place(topic)
        return shown

    def place(self, topic: str) -> dict[str, Any]:
        """Where a topic stands, and why it waits, for people."""
        place = self._queue.place(topic, self._clock.monotonic_ms())
        marked_ns = self._marked_ns.get(topic)
        now_ns = self._clock.monotonic_ns()
        return {
            "topic": topic,
            "standing": place.standing.value,
            "band": None if place.band is None else f"B{place.band}",
            "waited_ms": 0 if marked_ns is None else (now_ns - marked_ns) // 1_000_000,
            "effective_priority": place.effective_priority,
            "reason": self._reason(topic, place.reason),
        }

    def longest(self, most: int) -> list[str]:
        """The topics that have waited longest for their turn, the longest first."""
        return list(islice(self._marked_ns, most))

    def _reason(self, topic: str, reason: str) -> str:
        if topic not in self._marked_ns:
            return "nothing to push: every watcher and router has had its turn"
        if self.rung.coalesce_ms and "deferred" not in reason:
            return f"{reason}; turns are {self.rung.coalesce_ms:g} ms apart to carry more at once"
        return reason

    def _schedule(self) -> None:
        self._scheduled = True
        self._since_ns = self._clock.monotonic_ns()
        coalesce_ms = self.governor.rung.coalesce_ms
        if coalesce_ms:
            self._held_until_ns = self._since_ns + int(coalesce_ms * 1e6)
            self._loop.call_later(coalesce_ms / 1e3, self._turn)
        else:
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = True  # until the end: topics marked meanwhile are served with the rest
        clock = self._clock
        began_ns = now_ns = clock.monotonic_ns()
        share_ns = self._share_ns(began_ns - self._since_ns, shared=bool(self._steps))
        until_ns = began_ns + max(share_ns, SLICE_MS * 1_000_000)
        pop = self._queue.pop
        while now_ns < until_ns:
            topic = pop()
            if topic is None:
                break
            marked_ns = self._marked_ns.pop(topic)
            self.latency.record(now_ns - marked_ns)
            self.recent.record(now_ns - marked_ns)
            # Deliberate delay is not a sign of load: counting it would cause ever more delay.
            self._waits_ns += max(0, now_ns - max(marked_ns, self._held_until_ns))
            self._turns += 1
            try:
                self._serve(topic)
            except Exception:
                _LOGGER.exception("the turn of topic %r failed", topic)
            self._queue.done(topic, now_ns // 1_000_000)
            self.served += 1
            now_ns = clock.monotonic_ns()
        self._push_ns += now_ns - began_ns
        self._since_ns = now_ns
        self._scheduled = self._queue.has_ready()
        if self._scheduled:
            # At once: this backlog already carries everything. If delayed again, it would get one
            # slice per delay, and a lasting backlog is itself a reason to delay.
            self._loop.call_soon(self._turn)

    def _go_on(self) -> None:
        """Run one step of the pushes in progress, or as many as there is time for."""
        clock = self._clock
        began_ns = now_ns = clock.monotonic_ns()
        share_ns = self._share_ns(began_ns - self._steps_since_ns, shared=self._scheduled)
        while self._steps:
            step = self._steps.popleft()
            try:
                step()
            except Exception:
                _LOGGER.exception("a push to watchers failed")
            now_ns = clock.monotonic_ns()
            if now_ns - began_ns >= share_ns:
                break
        self._push_ns += now_ns - began_ns
        self._steps_since_ns = now_ns
        self._goes_on = bool(self._steps)
        if self._goes_on:
            self._loop.call_soon(self._go_on)

    def _share_ns(self, others_ns: int, *, shared: bool) -> int:
        """How long to push after the loop has done other work for this long."""
        share = self.governor.push_share
        wanted_ns = int(others_ns * share / (1.0 - share))
        return min(wanted_ns, SLICE_MS_MAX * 1_000_000) // (2 if shared else 1)

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_MS / 1e3, self._tick)
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._sampled_ns >= (SAMPLE_MS - TICK_MS // 2) * 1_000_000:
            self._sample_now()
        if len(self._queue):
            self._queue.tick(now_ns // 1_000_000)
            if self._queue.has_ready() and not self._scheduled:
                self._schedule()

    def _sample_now(self) -> None:
        now_ns, busy_ns = self._clock.monotonic_ns(), self._now_busy_ns()
        span_ns = max(1, now_ns - self._sampled_ns)
        pool_busy = (busy_ns - self._busy_ns) / span_ns
        self._sampled_ns, self._busy_ns = now_ns, busy_ns
        self._on_busy(pool_busy)
        ready = sum(band.depth for band in self._queue.bands() if not band.paused)
        drain_ms, drain_ms_max = self._drain(span_ns / 1e6)
        latency_ms = self._waits_ns / max(1, self._turns) / 1e6
        if self._turns:
            self._turn_ns = self._push_ns / self._turns
        self._pushed_ns += self._push_ns
        self._waits_ns = self._turns = self._push_ns = 0
        before = self.governor.rung
        self.governor.share_push(ready * self._turn_ns / 1e6)
        if self._forced is not None:
            rung = climb(self._forced, before, drain_ms=drain_ms, drain_ms_max=drain_ms_max)
            self.governor.rung = rung
        else:
            rung = self.governor.sample(
                Load(ready, _READY_FOR_FULL_DEPTH, latency_ms, pool_busy, drain_ms, drain_ms_max)
            )
        self._obey(before, rung)
        if self._queue.has_ready() and not self._scheduled:
            self._schedule()

    def _now_busy_ns(self) -> int:
        """The time this thread computed, plus the time it waited for a processor."""
        return time.thread_time_ns() + self._waited_ns()

    def _obey(self, before: Rung, rung: Rung) -> None:
        now_ms = self._clock.monotonic_ms()
        if rung.deferring and not self._queue.deferring:
            self._queue.defer()
        elif not rung.deferring and self._queue.deferring:
            self._queue.resume(now_ms)
        if rung.level != before.level or rung.commit_window_ms != before.commit_window_ms:
            self._on_rung(rung)


class Recency:
    """The last time each topic was read, claimed from or pushed to watchers."""

    def __init__(self, registry: Registry, clock: Clock, is_deferring: Callable[[], bool]) -> None:
        """While `is_deferring`, topics fed by routers get their turns later."""
        self._registry = registry
        self._clock = clock
        self._is_deferring = is_deferring
        self._consumed: dict[str, tuple[int, int]] = {}  # topic -> (wall, monotonic) ms

    def touch(self, topic: str) -> None:
        """Note that a topic is consumed: its next turns come sooner."""
        self._consumed[topic] = (self._clock.now_ms(), self._clock.monotonic_ms())

    def forget(self, topic: str) -> None:
        """Forget a removed topic."""
        self._consumed.pop(topic, None)

    def last_ms(self, topic: str) -> int | None:
        """When a topic was last consumed, by the wall clock."""
        consumed = self._consumed.get(topic)
        return consumed[0] if consumed else None

    def priority(self, topic: str) -> int:
        """Manual priority or recency of consumption, now."""
        return base_priority(self.urgency(topic), self._clock.monotonic_ms())

    def urgency(self, topic: str) -> Urgency:
        """What the order of a topic's turns depends on."""
        found = self._registry.topics.get(topic)
        if found is None:
            return Urgency()
        consumed, config = self._consumed.get(topic), found.config
        lowered = self._is_deferring() and bool(self._registry.routers.feeders_of(topic))
        return Urgency(
            config.priority, config.auto_priority, consumed[1] if consumed else None, lowered
        )
