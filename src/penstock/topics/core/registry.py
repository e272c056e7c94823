"""What the partitions of a node have in common: every topic by name, every router, and totals."""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from typing import Final

from penstock.protocol.errors import Throttled
from penstock.protocol.limits import TopicLimits
from penstock.topics.core.router import RouterTable
from penstock.topics.core.topic import Topic
from penstock.topics.core.totals import Totals

EXPIRE_EVERY_MS: Final = 1_000
"""How often a full node begins to look for records over their age, in every topic with a ttl."""
EXPIRE_TOPICS: Final = 4_096
"""At so many topics it looks for one write that finds no room; the next goes on."""
_FEW: Final = 16
"""So many names are put in their places one by one; more are sorted in together."""


def _nothing() -> None:
    pass


class Registry:
    """Topics of all partitions, for routers that cross them and for limits on the whole node."""

    def __init__(self, limits: TopicLimits | None = None) -> None:
        self.limits = limits or TopicLimits()
        self.topics: dict[str, Topic] = {}
        self.creating = 0  # topics that are on their way to a log
        self.routers = RouterTable(self.limits)
        self.totals = Totals()
        self.hot_bytes_max = sys.maxsize  # when memory holds more, `on_hot` is called
        self.refuse_bytes = sys.maxsize  # when it holds so much, writes are refused
        self.on_hot: Callable[[], None] = _nothing
        self.staged_bytes = 0  # of records that are on their way to a log
        self.identity = 0  # of the data directory: readers of another one never know an epoch
        self._epoch = 0
        self._expired_ms = -EXPIRE_EVERY_MS  # when time last began to pass in every topic
        self._to_expire: list[str] = []  # topics where it has not passed since
        self._names: list[str] = []  # of topics, sorted, but for those that were added since
        self._added: list[str] = []

    @property
    def size_bytes(self) -> int:
        """Live bytes of all topics."""
        return self.totals.size_bytes

    @property
    def hot_bytes(self) -> int:
        """The bytes of records that are in memory, with what they need beside."""
        return self.totals.hot_bytes

    def add(self, topic: Topic) -> None:
        """A topic began."""
        if topic.name not in self.topics:
            self._added.append(topic.name)
        else:
            self.totals.remove(self.topics[topic.name])
        self.topics[topic.name] = topic
        topic.told_epoch = self.identity + topic.epoch
        self.totals.add(topic)

    def remove(self, name: str) -> None:
        """A topic is gone."""
        names = self._sorted_names()
        del names[bisect_left(names, name)]
        self.totals.remove(self.topics.pop(name))

    def names_from(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """The topics whose names begin so, in order, from behind a name on.

        To be read to where it is wanted before a topic comes or goes.
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
        """Take over what a topic has now and how it is configured."""
        self.totals.recount(topic)
        self.totals.classify(topic)

    def next_epoch(self) -> int:
        """An epoch that no topic of the node ever had."""
        self._epoch += 1
        return self._epoch

    def see_epoch(self, epoch: int) -> None:
        """An epoch was given to a topic before."""
        self._epoch = max(self._epoch, epoch)

    def check_topics(self, more: int) -> None:
        """Refuse more topics than a node may have."""
        topics_max = self.limits.topics_max
        if topics_max and len(self.topics) + self.creating + more > topics_max:
            raise Throttled(
                f"expected at most {topics_max} topics, found no room for another",
                limit="max_topics",
                max=topics_max,
            )

    def check_total(self, more_bytes: int, now_ms: int) -> None:
        """Refuse more bytes than a node may have. Those on their way to a log count.

        Those over their age in a topic that nobody looks at count for a second more at most; where
        there are very many topics, until enough writes found no room to look at all of them.
        """
        bytes_max = self.limits.total_bytes_max
        if not bytes_max or self._total_bytes() + more_bytes <= bytes_max:
            return
        self._expire(now_ms)
        size_bytes = self._total_bytes()
        if size_bytes + more_bytes > bytes_max:
            raise Throttled(
                f"expected at most {bytes_max} bytes in all, "
                f"found {size_bytes} and {more_bytes} more",
                limit="max_total_bytes",
                max=bytes_max,
            )

    def _total_bytes(self) -> int:
        return self.size_bytes + self.staged_bytes

    def _expire(self, now_ms: int) -> None:
        """Let time pass where records leave by age, some at a time, unless it did just now."""
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
