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
        self.staged_bytes = 0  # of records that are on their way to a log
        self._epoch = 0

    def add(self, topic: Topic) -> None:
        """A topic began."""
        self.topics[topic.name] = topic
        self.recount(topic)

    def remove(self, name: str) -> None:
        """A topic is gone."""
        self.size_bytes -= self.topics.pop(name).counted_bytes

    def recount(self, topic: Topic) -> None:
        """Take over how many bytes a topic has now."""
        size_bytes = topic.size_bytes
        self.size_bytes += size_bytes - topic.counted_bytes
        topic.counted_bytes = size_bytes

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

    def check_total(self, more_bytes: int) -> None:
        """Refuse more bytes than a node may have. Those on their way to a log count."""
        bytes_max = self.limits.total_bytes_max
        size_bytes = self.size_bytes + self.staged_bytes
        if bytes_max and size_bytes + more_bytes > bytes_max:
            raise Throttled(
                f"expected at most {bytes_max} bytes in all, "
                f"found {size_bytes} and {more_bytes} more",
                limit="max_total_bytes",
                max=bytes_max,
            )
