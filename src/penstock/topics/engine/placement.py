"""Which partition writer a topic belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.kernel.ids import partition_of
from penstock.topics.engine.writers import PartitionWriter


class Writers:
    """The writers of a node's partitions, by number and by topic."""

    def __init__(self, writers: Sequence[PartitionWriter]) -> None:
        self._writers = tuple(writers)
        self.by_topic: dict[
            str, PartitionWriter
        ] = {}  # of existing topics: saves hashing their names

    def __iter__(self) -> Iterator[PartitionWriter]:
        return iter(self._writers)

    def of(self, topic: str) -> PartitionWriter:
        """The writer of a topic, whether the topic exists or not.

        Raises `PartitionFailed` if its partition is out of service: then its topics are not known.
        """
        writer = self.by_topic.get(topic)
        if writer is None:
            writer = self._writers[partition_of(topic, len(self._writers))]
            writer.check()
        return writer

    def created(self, topic: str) -> None:
        """Remember a new topic."""
        self.by_topic[topic] = self.of(topic)

    def dropped(self, topic: str) -> None:
        """Forget a topic."""
        self.by_topic.pop(topic, None)
