"""The digest of a partition at one index of its log, made while the partition goes on.

The leader holds back its commands while every member captures the same index; what was captured is
hashed afterwards, a few records at a time, with cold records read from their files.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from penstock.kernel.errors import Rejected
from penstock.protocol.cluster_answers import PartitionDigest
from penstock.protocol.errors import StateMoved
from penstock.topics.core.digest import (
    CapturedTopic,
    capture,
    capture_itself,
    digest,
    hash_cold,
    hash_hot,
)
from penstock.topics.engine.writers import PartitionWriter, Writers
from penstock.topics.persist.cold import ColdCache

TOPICS_MAX: Final = 100_000
"""A partition with more topics is not compared: its answer would not fit into a letter."""
_SLICE_S: Final = 0.002
_RECORDS: Final = 256


class Captured:
    """A partition at one index, still to be hashed."""

    def __init__(self, writer: PartitionWriter, cold: ColdCache) -> None:
        self.index = writer.applied_index
        self.partition = writer.number
        self._writer = writer
        self._cold = cold
        self._topics: list[CapturedTopic] = []
        self._records = 0
        self._slice = _Slice()

    async def take(self) -> None:
        """Capture every topic; raises `StateMoved` if an entry is applied meanwhile."""
        partition = self._writer.partition
        if len(partition.topics) > TOPICS_MAX:
            raise Rejected(
                f"partition {self.partition} has {len(partition.topics)} topics: with more than "
                f"{TOPICS_MAX} it cannot be compared"
            )
        self._topics.append(capture_itself(partition))
        for topic in list(partition.topics.values()):
            self._topics.append(capture(partition, topic))
            await self._slice.rest()
            self._check_index()

    async def digest(self) -> PartitionDigest:
        """Hash what was captured."""
        found: dict[str, str] = {}
        left_out: list[str] = []
        for topic in self._topics:
            if topic.is_compared:
                found[topic.name] = await self._digest_of(topic)
            else:
                left_out.append(topic.name)
        self._topics.clear()
        return PartitionDigest(
            partition=self.partition,
            index=self.index,
            records=self._records,
            topics=found,
            not_compared=tuple(left_out),
        )

    def _check_index(self) -> None:
        at = self._writer.applied_index
        if at != self.index:
            raise StateMoved(f"partition {self.partition} is at {at}, not at {self.index} any more")

    async def _digest_of(self, topic: CapturedTopic) -> str:
        sums = []
        for start in range(0, len(topic.items), _RECORDS):
            sums.append(self._count(hash_hot(topic, start, start + _RECORDS)))
            await self._slice.rest()
        for block in topic.cold:
            if any(block.sizes):
                records = await self._cold.read(block.block)
                sums.append(self._count(hash_cold(block, records)))
                await self._slice.rest()
        return digest(topic, sums)

    def _count(self, found: tuple[int, int]) -> int:
        total, count = found
        self._records += count
        return total


class Digests:
    """The last captured state of each partition, hashed in the background until it is taken."""

    def __init__(self, writers: Writers, cold: ColdCache) -> None:
        self._writers = writers
        self._cold = cold
        self._hashing: dict[int, tuple[int, asyncio.Task[PartitionDigest]]] = {}

    async def capture(self, partition: int, index: int | None = None) -> int:
        """Capture a partition as it is, at an index if one is given; the index it is at."""
        writer = list(self._writers)[partition]
        writer.check()
        if index is not None and writer.applied_index != index:
            raise StateMoved(f"partition {partition} is at {writer.applied_index}, not at {index}")
        captured = Captured(writer, self._cold)
        await captured.take()
        self._forget(partition)
        hashing = asyncio.get_running_loop().create_task(captured.digest())
        hashing.add_done_callback(_look)
        self._hashing[partition] = captured.index, hashing
        return captured.index

    async def take(self, partition: int, index: int) -> PartitionDigest:
        """The digest of a partition that was captured at an index."""
        at, hashing = self._hashing.get(partition, (-1, None))
        if hashing is None or at != index:
            raise StateMoved(f"partition {partition} was not captured at {index}")
        try:
            return await asyncio.shield(hashing)
        finally:
            self._hashing.pop(partition, None)

    def stop(self) -> None:
        """Forget everything."""
        for partition in list(self._hashing):
            self._forget(partition)

    def _forget(self, partition: int) -> None:
        _, hashing = self._hashing.pop(partition, (0, None))
        if hashing is not None:
            hashing.cancel()


def _look(task: asyncio.Task[PartitionDigest]) -> None:
    """Retrieve an error that nothing asked for."""
    if not task.cancelled():
        task.exception()


class _Slice:
    """Lets the rest of the node have its turn after a while."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    async def rest(self) -> None:
        if time.monotonic() - self._began_s > _SLICE_S:
            await asyncio.sleep(0)
            self._began_s = time.monotonic()
