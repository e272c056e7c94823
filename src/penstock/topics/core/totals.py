"""Totals of all topics of a node, maintained incrementally instead of by a scan.

A topic reports every change of its records, and a queue its leases. What is too old but has not
left yet is counted by `overdue` when the totals are requested, only where there can be some.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from penstock.protocol.config import TopicConfig
    from penstock.topics.core.queue import Queue
    from penstock.topics.core.topic import Topic


SHELF_MAX: Final = 512
"""How many topics are listed at once: listing 100,000 takes several milliseconds."""
T = TypeVar("T")
Shelf = dict[str, T]


class Shelves(Generic[T]):
    """Very many things by name in small groups, so that a walk tolerates changes between groups.

    Nothing moves between shelves, so a walk sees everything that stays exactly once.
    """

    def __init__(self) -> None:
        self._shelves: list[Shelf[T]] = []

    def add(self, name: str, thing: T) -> Shelf[T]:
        """Add a thing; return the shelf, needed to `take` it."""
        if not self._shelves or len(self._shelves[-1]) >= SHELF_MAX:
            self._shelves.append({})
        shelf = self._shelves[-1]
        shelf[name] = thing
        return shelf

    def take(self, name: str, shelf: Shelf[T] | None) -> None:
        """Remove a thing from its shelf, if it is on one."""
        if shelf is not None:
            del shelf[name]
            if not shelf:
                self._shelves.remove(shelf)

    def part(self, number: int) -> list[T]:
        """One shelf; numbers beyond the last start over, so that counting walks over everything."""
        return list(self._shelves[number % len(self._shelves)].values()) if self._shelves else []

    def parts(self) -> Iterator[list[T]]:
        """Everything, one shelf at a time."""
        for shelf in list(self._shelves):
            yield list(shelf.values())


class Counted:
    """One topic's share of the totals, and where it is listed."""

    __slots__ = (
        "aging",
        "config",
        "hot_bytes",
        "leased",
        "leases",
        "listed",
        "records",
        "size_bytes",
    )

    def __init__(self) -> None:
        self.config: TopicConfig | None = None
        self.records = 0
        self.size_bytes = 0
        self.hot_bytes = 0
        self.leases = 0
        self.listed: Shelf[Topic] | None = None
        self.aging: Shelf[Topic] | None = None
        self.leased: Shelf[Queue] | None = None


@dataclass(slots=True)
class Overdue:
    """How much of the totals is too old, or leased for too long."""

    records: int = 0
    size_bytes: int = 0
    leases: int = 0


class Totals:
    """Records, bytes, leases and topics by kind, over all added topics."""

    def __init__(self) -> None:
        self.count = 0  # of topics, without the server's own, which count in no total but memory
        self.records = 0
        self.size_bytes = 0
        self.hot_bytes = 0  # of records in memory
        self.leases = 0
        self.in_records = 0  # ever written, without what routers copy and the server's own topics
        self.in_bytes = 0
        self.by_class: Counter[str] = Counter()
        self.by_type: Counter[str] = Counter()
        self.topics: Shelves[Topic] = Shelves()
        self._aging: Shelves[Topic] = Shelves()  # those whose records leave by age
        self._leased: Shelves[Queue] = Shelves()  # those with leases, which end by time

    def add(self, topic: Topic) -> None:
        """Count a topic's changes from now on."""
        topic.totals = self
        topic.counted = Counted()
        topic.counted.listed = self.topics.add(topic.name, topic)
        self.classify(topic)
        self.recount(topic)

    def remove(self, topic: Topic) -> None:
        """Stop counting a topic and all its later changes."""
        counted = topic.counted
        self.records -= counted.records
        self.size_bytes -= counted.size_bytes
        self.hot_bytes -= counted.hot_bytes
        self.leases -= counted.leases
        self._unclassify(topic)
        self._leased.take(topic.name, counted.leased)
        self.topics.take(topic.name, counted.listed)
        topic.totals = None

    def recount(self, topic: Topic) -> None:
        """Update the totals from a topic's current state."""
        counted = topic.counted
        if not topic.is_reserved:
            records, size_bytes = topic.count, topic.size_bytes
            self.records += records - counted.records
            self.size_bytes += size_bytes - counted.size_bytes
            counted.records = records
            counted.size_bytes = size_bytes
        hot_bytes = topic.row.hot_bytes
        self.hot_bytes += hot_bytes - counted.hot_bytes
        counted.hot_bytes = hot_bytes

    def recount_leases(self, queue: Queue) -> None:
        """Update the totals from a queue's current number of leases."""
        counted, leases = queue.topic.counted, queue.in_flight
        self.leases += leases - counted.leases
        counted.leases = leases
        if leases and counted.leased is None:
            counted.leased = self._leased.add(queue.topic.name, queue)
        elif not leases and counted.leased is not None:
            self._leased.take(queue.topic.name, counted.leased)
            counted.leased = None

    def classify(self, topic: Topic) -> None:
        """Update the totals if a topic's configuration has changed."""
        config = topic.config
        if topic.counted.config is config:
            return
        self._unclassify(topic)
        topic.counted.config = config
        self._count_kind(topic, config, 1)
        if config.ttl_ms:
            topic.counted.aging = self._aging.add(topic.name, topic)

    def overdue(self, now_ms: int, found: Overdue) -> Iterator[None]:
        """Count what the totals contain and readers no longer see, one topic per step."""
        for topics in self._aging.parts():
            for topic in topics:
                live = topic.at(now_ms)
                found.records += topic.count - live.count
                found.size_bytes += topic.size_bytes - live.size_bytes
                yield
        for queues in self._leased.parts():
            for queue in queues:
                found.leases += queue.in_flight - queue.counts(now_ms).in_flight
                yield

    def _unclassify(self, topic: Topic) -> None:
        config, topic.counted.config = topic.counted.config, None
        if config is not None:
            self._count_kind(topic, config, -1)
            self._aging.take(topic.name, topic.counted.aging)
            topic.counted.aging = None

    def _count_kind(self, topic: Topic, config: TopicConfig, more: int) -> None:
        if not topic.is_reserved:
            self.count += more
            self.by_class[config.durability] += more
            self.by_type[config.type] += more
