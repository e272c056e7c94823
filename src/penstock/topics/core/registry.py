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
from penstock.topics.core.versions import NEWEST, WrittenVersion

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
        self.is_replicated = False  # other nodes apply what is logged: every lease is
        self.written = WrittenVersion(NEWEST)  # of entries, by this node
        self.is_short = False  # a write found no room: old records should leave soon
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

    def check_topics(self, more: int) -> None:
        """Refuse more topics than a node may have."""
        topics_max = self.limits.topics_max
        if topics_max and self.totals.count + self.creating + more > topics_max:
            raise Throttled(
                f"the node has its limit of {topics_max} topics: drop one first",
                limit="max_topics",
                max=topics_max,
            )

    def check_total(self, more_bytes: int) -> None:
        """Refuse more bytes than a node may have, including those submitted to a log.

        Records count until an entry removes them: those that are too old, about one more second
        once a write found no room.
        """
        bytes_max = self.limits.total_bytes_max
        size_bytes = self.size_bytes + self.staged_bytes
        if bytes_max and size_bytes + more_bytes > bytes_max:
            self.is_short = True
            raise Throttled(
                f"the node has {size_bytes} of {bytes_max} bytes, too many for {more_bytes} more: "
                "delete records, or raise the limit",
                limit="max_total_bytes",
                max=bytes_max,
            )


def partition_of(name: str, partitions: int) -> int:
    """The partition of a name: a stable hash, independent of process and platform."""
    digest = blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % partitions
