"""State shared by the partitions of a node: every topic by name, every router, and totals.

>>> partition_of("meters/7", partitions=64), partition_of("meters/8", partitions=64)
(36, 21)
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Final

from penstock.protocol.errors import Throttled
from penstock.protocol.limits import TopicLimits
from penstock.topics.core.router import RouterTable
from penstock.topics.core.topic import Topic
from penstock.topics.core.totals import Totals

EXPIRE_EVERY_MS: Final = 1_000
"""How often a full node starts to look for expired records, in every topic with a ttl."""
EXPIRE_TOPICS: Final = 4_096
"""How many topics it checks per write that finds no room; the next write continues."""
_FEW: Final = 16
"""Up to this many names are inserted one by one; more are sorted in together."""


def _nothing() -> None:
    pass


class Registry:
    """Topics of all partitions, for routers that cross them and for limits on the whole node."""

    def __init__(self, limits: TopicLimits | None = None) -> None:
        self.limits = limits or TopicLimits()
        self.topics: dict[str, Topic] = {}
        self.creating = 0  # topics submitted to a log
        self.routers = RouterTable(self.limits)
        self.totals = Totals()
        self.hot_bytes_max = sys.maxsize  # above this, `on_hot` is called
        self.refuse_bytes = sys.maxsize  # from this on, writes are refused
        self.on_hot: Callable[[], None] = _nothing
        self.staged_bytes = 0  # of records submitted to a log
        self.identity = 0  # of the data directory, so that epochs of another directory never match
        self._epoch = 0
        self._expired_ms = -EXPIRE_EVERY_MS  # when the last pass over all topics began
        self._to_expire: list[str] = []  # topics left in this pass
        self._names: list[str] = []  # of topics, sorted, except for recent additions
        self._added: list[str] = []

    @property
    def size_bytes(self) -> int:
        """Live bytes of all topics."""
        return self.totals.size_bytes

    @property
    def hot_bytes(self) -> int:
        """The bytes of records in memory, including overhead."""
        return self.totals.hot_bytes

    def add(self, topic: Topic) -> None:
        """Register a new topic."""
        if topic.name not in self.topics:
            self._added.append(topic.name)
        else:
            self.totals.remove(self.topics[topic.name])
        self.topics[topic.name] = topic
        topic.told_epoch = self.identity + topic.epoch
        self.totals.add(topic)

    def remove(self, name: str) -> None:
        """Remove a topic."""
        names = self._sorted_names()
        del names[bisect_left(names, name)]
        self.totals.remove(self.topics.pop(name))

    def names_from(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """The topics with a prefix, in order, after a name.

        The iterator must not be used after a topic is added or removed.
        """
        names = self._sorted_names()
        start = bisect_left(names, prefix)
        if after is not None:
            start = max(start, bisect_right(names, after))
        for place in range(start, len(names)):
            if not names[place].startswith(prefix):
                return
            yield names[place]

    def _sorted_names(self) -> list[str]:
        added, self._added = self._added, []
        if len(added) > _FEW:
            self._names.extend(added)
            self._names.sort()
        else:
            for name in added:
                insort(self._names, name)
        return self._names

    def recount(self, topic: Topic) -> None:
        """Update the totals from a topic's current state and configuration."""
        self.totals.recount(topic)
        self.totals.classify(topic)

    def next_epoch(self) -> int:
        """An epoch that no topic of the node has had."""
        self._epoch += 1
        return self._epoch

    def see_epoch(self, epoch: int) -> None:
        """Never assign this epoch again."""
        self._epoch = max(self._epoch, epoch)

    def check_topics(self, more: int) -> None:
        """Refuse more topics than a node may have."""
        topics_max = self.limits.topics_max
        if topics_max and self.totals.count + self.creating + more > topics_max:
            raise Throttled(
                f"the node has its limit of {topics_max} topics: drop one first",
                limit="max_topics",
                max=topics_max,
            )

    def check_total(self, more_bytes: int, now_ms: int) -> None:
        """Refuse more bytes than a node may have, including those submitted to a log.

        Expired records in a topic without readers or writers count for at most one more second;
        with very many topics, until enough writes without room have checked all of them.
        """
        bytes_max = self.limits.total_bytes_max
        if not bytes_max or self._total_bytes() + more_bytes <= bytes_max:
            return
        self._expire(now_ms)
        size_bytes = self._total_bytes()
        if size_bytes + more_bytes > bytes_max:
            raise Throttled(
                f"the node has {size_bytes} of {bytes_max} bytes, too many for {more_bytes} more: "
                "delete records, or raise the limit",
                limit="max_total_bytes",
                max=bytes_max,
            )

    def _total_bytes(self) -> int:
        return self.size_bytes + self.staged_bytes

    def _expire(self, now_ms: int) -> None:
        """Expire records by age, some topics at a time, unless that was done just now."""
        if not self._to_expire:
            if now_ms - self._expired_ms < EXPIRE_EVERY_MS:
                return
            self._expired_ms = now_ms
            self._to_expire = self.totals.aging()
        for name in self._to_expire[-EXPIRE_TOPICS:]:
            topic = self.topics.get(name)
            if topic is not None:
                topic.expire(now_ms)
        del self._to_expire[-EXPIRE_TOPICS:]


def partition_of(name: str, partitions: int) -> int:
    """The partition of a name: a stable hash, independent of process and platform."""
    digest = blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % partitions
