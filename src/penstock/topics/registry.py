"""What the partitions of a node have in common: every topic by name, every router, and totals."""

from __future__ import annotations

from penstock.topics.errors import Throttled
from penstock.topics.model import TopicLimits
from penstock.topics.routers import RouterTable
from penstock.topics.topic import Topic


class Registry:
    """Topics of all partitions, for routers that cross them and for limits on the whole node."""

    def __init__(self, limits: TopicLimits | None = None) -> None:
        self.limits = limits or TopicLimits()
        self.topics: dict[str, Topic] = {}
        self.creating = 0  # topics that are on their way to a log
        self.routers = RouterTable(self.limits)
        self.size_bytes = 0
        self._counted: dict[str, int] = {}  # the bytes of each topic when it was last touched

    def add(self, topic: Topic) -> None:
        """A topic began."""
        self.topics[topic.name] = topic
        self.recount(topic)

    def remove(self, name: str) -> None:
        """A topic is gone."""
        del self.topics[name]
        self.size_bytes -= self._counted.pop(name, 0)

    def recount(self, topic: Topic) -> None:
        """Take over how many bytes a topic has now."""
        size_bytes = topic.size_bytes
        counted = self._counted.get(topic.name, 0)
        if size_bytes != counted:
            self._counted[topic.name] = size_bytes
            self.size_bytes += size_bytes - counted

    def check_topics(self, more: int) -> None:
        """Refuse more topics than a node may have."""
        topics_max = self.limits.topics_max
        if topics_max and len(self.topics) + self.creating + more > topics_max:
            raise Throttled(
                f"expected at most {topics_max} topics, found no room for another",
                limit="max_topics",
                max=topics_max,
            )

    def check_total(self, more_bytes: int) -> None:
        """Refuse more bytes than a node may have."""
        bytes_max = self.limits.total_bytes_max
        if bytes_max and self.size_bytes + more_bytes > bytes_max:
            raise Throttled(
                f"expected at most {bytes_max} bytes in all, found {self.size_bytes}",
                limit="max_total_bytes",
                max=bytes_max,
            )
