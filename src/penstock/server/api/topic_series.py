"""How busy single topics are over time: a few of them, each in a fixed amount of memory.

Followed are topics that are looked at, and busy ones: each second one shelf of all topics is
searched for those. So the cost depends on how many are followed, never on how many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from typing import TYPE_CHECKING, Final

from penstock.flow.latency_window import LatencyWindow
from penstock.flow.series import SeriesRings
from penstock.kernel.clock import Clock
from penstock.protocol.history import (
    MINUTES_KEPT,
    QUEUE_SERIES,
    SECONDS_KEPT,
    TOPIC_SERIES,
    TOPICS_FOLLOWED,
    History,
)
from penstock.server.api.sampler import history_of
from penstock.topics.core.queue import Queue
from penstock.topics.core.topic import Topic

if TYPE_CHECKING:
    from penstock.topics.engine.engine import Engine

BUSY_MS: Final = 60_000
"""A topic that did something within this time keeps its place."""
LOOKED_MS: Final = 10_000
"""So does one that was looked at within this time, against topics that are looked at now."""


class _Followed:
    """One topic: its counters as of the last sample, and its numbers since it is followed."""

    __slots__ = ("_at_ms", "_in_records", "_out_records", "_queue", "looked_ms", "rings", "topic")

    def __init__(self, topic: Topic, queue: Queue | None, now_ms: int) -> None:
        self.topic, self._queue = topic, queue
        self.rings = SeriesRings(len(self.names), seconds=SECONDS_KEPT, minutes=MINUTES_KEPT)
        self.looked_ms = 0
        self._at_ms, self._in_records, self._out_records = now_ms, topic.head_seq, topic.out_records

    @property
    def names(self) -> tuple[str, ...]:
        """Its series, in their order."""
        return TOPIC_SERIES if self._queue is None else QUEUE_SERIES

    def sample(self, now_ms: int) -> None:
        topic, span_s = self.topic, max(now_ms - self._at_ms, 1) / 1e3
        row = [
            round((topic.head_seq - self._in_records) / span_s, 2),
            round((topic.out_records - self._out_records) / span_s, 2),
        ]
        if self._queue is None:
            row.append(self._push_p99_ms(now_ms))
        else:
            counts = self._queue.counts(now_ms)
            row += [counts.ready, counts.in_flight]
        self._at_ms, self._in_records, self._out_records = now_ms, topic.head_seq, topic.out_records
        self.rings.add(now_ms, row)

    def look(self, now_ms: int) -> None:
        """It is looked at: measure its pushes for a while."""
        self.looked_ms = now_ms
        if self._queue is None and self.topic.push_ms is None:
            self.topic.push_ms = LatencyWindow()

    def leave(self) -> None:
        """Measure its pushes no more."""
        self.topic.push_ms = None

    def _push_p99_ms(self, now_ms: int) -> float:
        """Of the pushes since the last sample; NaN if there were none or none was measured."""
        window: LatencyWindow | None = self.topic.push_ms
        found = None if window is None else window.take((0.99,))
        if self.looked_ms < now_ms - LOOKED_MS:
            self.leave()
        return nan if found is None else float(found[0])


class TopicSeries:
    """The numbers of some topics over the last 15 minutes and 24 hours."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine, self._clock = engine, clock
        self._followed: dict[str, _Followed] = {}
        self._shelf = 0  # the one that was searched last

    @property
    def size_bytes(self) -> int:
        """The memory that history takes."""
        return sum(each.rings.size_bytes for each in self._followed.values())

    def sample(self, now_ms: int) -> None:
        """Called once a second: add a row for every followed topic, and search for busy ones."""
        topics = self._engine.registry.topics
        for name, followed in list(self._followed.items()):
            if topics.get(name) is followed.topic:
                followed.sample(now_ms)
            else:
                self._followed.pop(name).leave()  # it was removed, or made again
        self._shelf += 1
        since_ms = now_ms - BUSY_MS
        for topic in self._engine.registry.totals.topics.part(self._shelf):
            if last_ms(topic) > since_ms and not topic.is_reserved:
                if topic.name in self._followed:
                    continue
                if self._follow(topic, now_ms, BUSY_MS, _busy_ms) is None:
                    return

    def history(self, name: str, step: str, since_ms: int) -> History:
        """The series of a topic after a time, oldest first; it is followed from now on."""
        topic, now_ms = self._engine.topic(name), self._clock.now_ms()
        found = self._followed.get(name)
        if found is None or found.topic is not topic:
            found = self._follow(topic, now_ms, LOOKED_MS, _looked_ms)
        if found is None:
            return History(step, [], {})
        found.look(now_ms)
        return history_of(found.rings, found.names, range(len(found.names)), step, since_ms)

    def _follow(
        self, topic: Topic, now_ms: int, kept_ms: int, when: Callable[[_Followed], int]
    ) -> _Followed | None:
        """Follow a topic, in place of the one for which `when` is longest ago.

        None if that is not long enough ago.
        """
        if len(self._followed) >= TOPICS_FOLLOWED:
            idlest = min(self._followed.values(), key=when)
            if when(idlest) > now_ms - kept_ms:
                return None
            self._followed.pop(idlest.topic.name).leave()
        queue = self._engine.writer(topic.name).partition.queues.get(topic.name)
        found = self._followed[topic.name] = _Followed(topic, queue, now_ms)
        return found


def _looked_ms(followed: _Followed) -> int:
    return followed.looked_ms


def _busy_ms(followed: _Followed) -> int:
    return max(last_ms(followed.topic), followed.looked_ms)


def last_ms(topic: Topic) -> int:
    """When a topic was last written or read."""
    return max(topic.last_write_ms or 0, topic.last_out_ms)
